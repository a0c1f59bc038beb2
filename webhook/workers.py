"""Threads beside the controller's loop: they begin and end with it, and with each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

JOIN_SECONDS = 10.0
"""How long the end waits for a thread: longer than any of its requests should hang."""

_log = logging.getLogger("holdfast.controller")

Work = Callable[[threading.Event], None]


class Workers:
    """Runs each worker in a thread of its own; a context manager that ends them all.

    What nobody expected in one of them is logged, and `on_failure` is called, to end the process.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failed = False

    def add(self, name: str, work: Work) -> None:
        """Add one, before they begin; it is called with the event that ends it."""
        self._threads.append(
            threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True)
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _guarded(self, name: str, work: Work) -> None:
        try:
            work(self._stop)
        except Exception:  # noqa: BLE001 - whatever it was, it is logged and ends the process
            _log.exception("the thread %s died; the process ends to be started again", name)
            self.failed = True
            self._on_failure()
