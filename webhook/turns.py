"""Whose turn it is among connections that are ready at the same time."""

from __future__ import annotations

import selectors


class FairSelector(selectors.DefaultSelector):
    """Gives the sockets that are ready, those first that have waited longest for their turn.

    epoll names sockets that it has named before ahead of others. Whoever is answered last would be
    last again in the next round, which begins before its next request has come, and so wait twice
    as long as all others, each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0
        self._served: dict[int, int] = {}
        """By descriptor, its last turn: they are numbered."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as any selector does."""
        ready = super().select(timeout)
        if len(ready) > 1:
            served = self._served
            ready.sort(key=lambda one: served.get(one[0].fd, 0))
        for key, _ in ready:
            self._turn += 1
            self._served[key.fd] = self._turn
        return ready
