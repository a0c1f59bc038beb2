"""Releases that failed: when each is tried again. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

from webhook.objects import Names

FIRST_SECONDS, LIMIT_SECONDS = 0.25, 20.0
"""The first wait; each further one is twice as long, up to the limit. It never gives up."""
LONGEST_ASKED = 30.0
"""How many seconds a server may ask for: a page for maintenance may ask for a day."""


class _Plan(NamedTuple):
    failures: int
    at: float


class Retries:
    """Pods that wait for another try. Times are seconds by whatever clock the caller has."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Names]] = []
        self._plans: dict[Names, _Plan] = {}

    def failed(self, key: Names, *, now: float, at_least: float) -> float:
        """Note a failure, and tell in how many seconds the next try is.

        `at_least` is what the server asked for; more than LONGEST_ASKED is not given.
        A try ahead of its time, because something changed, does not make the wait longer: else a
        busy watch would push a pod to the limit within a second.
        """
        known, at_least = self._plans.get(key, _Plan(0, now)), min(at_least, LONGEST_ASKED)
        if now < known.at:
            plan = known._replace(at=max(known.at, now + at_least))
        else:
            wait: float = min(FIRST_SECONDS * 2**known.failures, LIMIT_SECONDS)
            wait *= random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
            plan = _Plan(known.failures + 1, now + max(wait, at_least))
        if plan != known:
            self._plans[key] = plan
            heapq.heappush(self._waiting, (plan.at, key))
        return plan.at - now

    def pop_due(self, now: float) -> Names | None:
        """Hand out a pod whose wait is over, or None."""
        while self._waiting and self._waiting[0][0] <= now:
            at, key = heapq.heappop(self._waiting)
            plan = self._plans.get(key)
            if plan is not None and plan.at == at:
                return key
        return None

    def next_at(self) -> float:
        """Tell when the next wait is over; infinite where nothing waits."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def has_failed(self, key: Names) -> bool:
        """Tell whether a pod has failed before."""
        return key in self._plans

    def forget(self, key: Names) -> None:
        """Begin anew with a pod, should it ever fail again."""
        self._plans.pop(key, None)
