"""A heap of keys by time, cleaned lazily. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import groupby

from holdfast.webhook.model.objects import ObjectKey

SLACK = 1_000
"""Number of stale entries that is not worth a cleanup."""


class DelayHeap:
    """Keys in the order of their times, in the caller's unit.

    `time_of` returns the time at which a key comes up, or None for a key that does not wait. An
    entry with another time is stale: it is dropped when it reaches the top. A key therefore costs
    one small tuple, and a change is a push, not a search. Of keys with the same time, the key with
    the lowest rank comes first.
    """

    def __init__(self, time_of: Callable[[ObjectKey], float | None]) -> None:
        self._time_of = time_of
        self._entries: list[tuple[float, int, ObjectKey]] = []
        self._limit = SLACK

    def push(self, key: ObjectKey, at: float, rank: int = 0) -> None:
        """Add a key that waits until `at`, or whose time has changed to `at`."""
        heapq.heappush(self._entries, (at, rank, key))
        if len(self._entries) > self._limit:
            self._compact()

    def next_at(self) -> float:
        """Return the time of the first key, or infinity if no key waits."""
        while self._entries:
            at, _, key = self._entries[0]
            if self._time_of(key) == at:
                return at
            heapq.heappop(self._entries)
        return float("inf")

    def pop(self, now: float) -> ObjectKey | None:
        """Remove and return the first due key, or None.

        The caller must make `time_of` return None for the key, because it may have a second entry.
        """
        return heapq.heappop(self._entries)[2] if self.next_at() <= now else None

    def due(self, now: float) -> Iterator[ObjectKey]:
        """Iterate over the due entries, including stale and duplicate ones.

        The cost depends only on the number of due entries: a scrape must not delay a release.
        """
        indexes = [0]
        while indexes:
            index = indexes.pop()
            if index < len(self._entries) and self._entries[index][0] <= now:
                yield self._entries[index][2]
                indexes += (2 * index + 1, 2 * index + 2)

    def _compact(self) -> None:
        # keys that change over and over must not grow the heap without bound
        self._entries.sort()  # a sorted list is a heap
        self._entries = [
            entry for entry, _ in groupby(self._entries) if self._time_of(entry[2]) == entry[0]
        ]
        self._limit = 2 * len(self._entries) + SLACK
