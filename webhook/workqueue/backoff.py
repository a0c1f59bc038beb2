"""Exponential back-off of keys that failed. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

import random
from typing import NamedTuple

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.delaying import DelayHeap

FIRST_SECONDS, LIMIT_SECONDS = 0.25, 20.0
"""Initial and maximum wait in seconds. Each further wait is twice as long, up to the maximum, and
retries never stop."""
_DOUBLINGS = 10
"""Enough doublings to get from the first wait to the limit."""
FORGET_SECONDS = 120.0
"""Seconds after the planned retry for which earlier failures still count. A key may succeed for
hours in between."""
LONGEST_ASKED = 30.0
"""Longest Retry-After in seconds that is honored: a maintenance page may ask for a day."""


class _Plan(NamedTuple):
    failures: int
    at: float
    is_waiting: bool = True


class Backoff:
    """Keys that wait for a retry. Times are seconds by the caller's clock."""

    def __init__(self) -> None:
        self._plans: dict[ObjectKey, _Plan] = {}
        self._heap = DelayHeap(self._retry_at)

    def failed(self, key: ObjectKey, *, now: float, at_least: float) -> float:
        """Record a failure and return the seconds until the retry.

        `at_least` is the server's Retry-After, honored up to LONGEST_ASKED. A failure before the
        planned retry, after a change, does not make the wait longer: otherwise a busy watch would
        push a pod to the limit within a second.
        """
        old_plan, at_least = self._plans.get(key, _Plan(0, now)), min(at_least, LONGEST_ASKED)
        # After `pop`, `now` may still precede `at`: the worker read its clock earlier.
        if old_plan.is_waiting and now < old_plan.at:
            plan = old_plan._replace(at=max(old_plan.at, now + at_least))
        else:
            failures = old_plan.failures if now < old_plan.at + FORGET_SECONDS else 0
            # A key may fail for hours, and 2**1024 exceeds a float.
            doublings = min(failures, _DOUBLINGS)
            wait: float = min(FIRST_SECONDS * 2**doublings, LIMIT_SECONDS)
            wait *= random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
            plan = _Plan(failures + 1, now + max(wait, at_least))
        if plan != old_plan:
            self._plans[key] = plan
            self._heap.push(key, plan.at)
        return plan.at - now

    def pop(self, now: float) -> ObjectKey | None:
        """Remove and return a key whose wait is over, or None; its failures still count."""
        key = self._heap.pop(now)
        if key is not None:
            self._plans[key] = self._plans[key]._replace(is_waiting=False)
        return key

    def next_at(self) -> float:
        """Return when the next wait is over, or infinity if no key waits."""
        return self._heap.next_at()

    def has_failed(self, key: ObjectKey) -> bool:
        """Return whether a key has failed since it was last forgotten."""
        return key in self._plans

    def forget(self, key: ObjectKey) -> None:
        """Drop a key and its failures."""
        self._plans.pop(key, None)

    def _retry_at(self, key: ObjectKey) -> float | None:
        plan = self._plans.get(key)
        return plan.at if plan is not None and plan.is_waiting else None
