"""Keys that are to be looked at, each by one worker at a time. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

import heapq

from webhook.objects import Names


class WorkQueue:
    """A set of keys with a time each. Times are seconds by whatever clock the caller has.

    A key that is put again while a worker has it comes up again when that worker has finished:
    what was put in between is not lost, and not done twice at once.
    """

    def __init__(self) -> None:
        self._at: dict[Names, float] = {}
        self._heap: list[tuple[float, Names]] = []
        self._under_way: set[Names] = set()

    def __len__(self) -> int:
        return len(self._at)

    @property
    def under_way(self) -> int:
        """Count the keys that workers have."""
        return len(self._under_way)

    def put(self, key: Names, at: float = 0.0) -> None:
        """Have a key looked at, at this time, or earlier where that was said already."""
        known = self._at.get(key)
        if known is not None and known <= at:
            return
        self._at[key] = at
        if key not in self._under_way:
            heapq.heappush(self._heap, (at, key))

    def discard(self, key: Names) -> None:
        """Forget a key that waits; a worker that has it goes on."""
        self._at.pop(key, None)
        # what is put and dropped over and over must not grow the heap without end
        if len(self._heap) > 2 * len(self._at) + 1_000:
            self._heap = [(at, one) for one, at in self._at.items() if one not in self._under_way]
            heapq.heapify(self._heap)

    def take(self, now: float) -> Names | None:
        """Hand out a key whose time has come, or None; `finish` has to be called for it."""
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._at.get(key) == at and key not in self._under_way:
                del self._at[key]
                self._under_way.add(key)
                return key
        return None

    def finish(self, key: Names) -> None:
        """Take a key back from its worker."""
        self._under_way.discard(key)
        if key in self._at:
            heapq.heappush(self._heap, (self._at[key], key))

    def next_at(self) -> float:
        """Tell when the next key may come up; infinite where none waits."""
        return self._heap[0][0] if self._heap else float("inf")
