"""Releases that failed: when each is tried again. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

import heapq
import random

from webhook.objects import Names

FIRST_SECONDS, LIMIT_SECONDS = 0.25, 30.0
"""The first wait; each further one is twice as long, up to the limit. It never gives up."""


class Retries:
    """Pods that wait for another try. Times are seconds by whatever clock the caller has."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Names]] = []
        self._failures: dict[Names, int] = {}

    def failed(self, key: Names, *, now: float, at_least: float) -> float:
        """Note a failure, and tell in how many seconds the next try is."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait: float = min(FIRST_SECONDS * 2 ** (failures - 1), LIMIT_SECONDS)
        wait *= random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
        wait = max(wait, at_least)
        heapq.heappush(self._waiting, (now + wait, key))
        return wait

    def pop_due(self, now: float) -> Names | None:
        """Hand out a pod whose wait is over, or None."""
        if not self._waiting or self._waiting[0][0] > now:
            return None
        return heapq.heappop(self._waiting)[1]

    def next_at(self) -> float:
        """Tell when the next wait is over; infinite where nothing waits."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def forget(self, key: Names) -> None:
        """Begin anew with a pod, should it ever fail again."""
        self._failures.pop(key, None)
