"""The queue of a controller: delaying, rate-limited and fair. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.backoff import Backoff
from holdfast.webhook.workqueue.delaying import DelayHeap
from holdfast.webhook.workqueue.fair import FairQueue

READY_AT_ONCE = 1_000
"""Maximum number of keys that become ready in one call. More would delay the first key."""

Item = TypeVar("Item")


EVERYWHERE = ""
"""Stands for all namespaces in a pause."""


def local_clock(local: float) -> float:
    """Return local time unchanged (default clock)."""
    return local


class WorkQueue(Generic[Item]):
    """Items by key, each waiting for its due time, ready, in flight, or backing off.

    `time_of` returns the due time of an item by `clock`, which maps local time to the current time,
    or to None while that is unknown. It has `per_second` units per second. Local times are seconds
    by a monotonic clock. `limit` is the maximum number of workers for one namespace, or for all
    slow namespaces together; `first` is the number that a namespace starts with. Of items with the
    same due time, the item with the lowest `rank_of` comes first. `on_paused` is called with each
    key that is due in a paused namespace.

    With `keeps_failures`, the failures of a key count until its item is dropped.

    A key is never in flight twice: a key that is scheduled while in flight is queued again after
    `done`.

    state                  in _left_heap   in _in_flight   where it waits
    before its due time    no              no              the heap
    ready, or paused       yes             no              the fair queue
    in flight              yes             yes             nowhere
    in flight, scheduled   no              yes             nowhere; in the heap after `done`
    backing off            yes             no              the back-off
    """

    def __init__(
        self,
        time_of: Callable[[Item], float],
        limit: int,
        *,
        first: int,
        clock: Callable[[float], float | None] = local_clock,
        per_second: float = 1.0,
        rank_of: Callable[[Item], int] = lambda _: 0,
        keeps_failures: bool = False,
        on_paused: Callable[[ObjectKey], None] = lambda _: None,
    ) -> None:
        self._time_of = time_of
        self._rank_of = rank_of
        self._clock = clock
        self._per_second = per_second
        self._keeps_failures = keeps_failures
        self._on_paused = on_paused
        self._paused_until: Mapping[str, float] = {}
        self._resumes_at = float("inf")
        self._items: dict[ObjectKey, Item] = {}
        self._waiting = DelayHeap(self._waits_until)
        self._backoff = Backoff()
        self._ready = FairQueue(limit, first=first, may_start=self.may_start)
        self._in_flight: set[ObjectKey] = set()
        self._left_heap: set[ObjectKey] = set()
        """Keys that left the heap because they were due, and have not been scheduled again."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._items)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._items

    def get(self, key: ObjectKey) -> Item | None:
        """Return the item of a key, or None."""
        return self._items.get(key)

    # --- adding and scheduling -----------------------------------------------------------------

    def put(self, key: ObjectKey, item: Item) -> None:
        """Add or replace an item. The key keeps its place unless its due time has changed."""
        old_item = self._items.get(key)
        self._items[key] = item
        if old_item is None or self._time_of(old_item) != self._time_of(item):
            self.schedule(key)

    def schedule(self, key: ObjectKey) -> None:
        """Schedule a key for its due time, even if it is in flight or backs off."""
        self._left_heap.discard(key)
        item = self._items.get(key)
        if item is not None and key not in self._in_flight:
            self._ready.discard(key)
            self._waiting.push(key, self._time_of(item), self._rank_of(item))

    def discard(self, key: ObjectKey) -> None:
        """Drop an item and its failures. An attempt in flight continues."""
        self._items.pop(key, None)
        self._left_heap.discard(key)
        self._backoff.forget(key)
        if key not in self._in_flight:
            self._ready.discard(key)

    def waits(self, key: ObjectKey) -> bool:
        """Return whether a key is scheduled or ready, even if it is also in flight."""
        return key in self._items and (key not in self._left_heap or key in self._ready)

    def pause(self, until: Mapping[str, float], local: float) -> None:
        """Pause these namespaces until these times, and resume all others.

        EVERYWHERE may be one of them.
        """
        self._paused_until = until
        self._apply_pauses(self._clock(local))

    def is_paused(self, namespace: str) -> bool:
        """Return whether a namespace is paused."""
        paused = self._paused_until
        return namespace in paused or EVERYWHERE in paused

    def is_kept_ready(self, key: ObjectKey) -> bool:
        """Return whether a key would go to a worker if its namespace were not paused."""
        return self.is_paused(key[0]) and key in self._ready

    def _apply_pauses(self, now: float | None) -> None:
        """Drop expired pauses, and move keys accordingly."""
        self._paused_until = {
            namespace: until
            for namespace, until in self._paused_until.items()
            if now is None or until > now
        }
        self._resumes_at = min(self._paused_until.values(), default=float("inf"))
        for key in self._ready.pause(self.is_paused):
            self._on_paused(key)

    # --- workers -------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of keys in flight."""
        return len(self._in_flight)

    @property
    def in_flight_fast(self) -> int:
        """Number of keys in flight that are not in a slow namespace."""
        return len(self._in_flight) - self._ready.count_slow()

    def next(self, local: float) -> ObjectKey | None:
        """Return the next key for a worker, or None. The caller must call `done` or `requeue`."""
        now = self._clock(local)
        if now is None:
            return None
        if now >= self._resumes_at:
            self._apply_pauses(now)
        self._make_ready(now, local)
        while (key := self._ready.take(local)) is not None:
            if self._time_of(self._items[key]) <= now:
                self._in_flight.add(key)
                return key
            self._ready.give_back(key)
            self.schedule(key)  # the API server's clock was set back
        return None

    def may_start(self, key: ObjectKey) -> bool:  # noqa: ARG002
        """Return whether a ready key can start despite other keys of its namespace in flight."""
        return True

    def done(self, key: ObjectKey, seconds: float, local: float, *, succeeded: bool) -> bool:
        """Mark an attempt as done, and return whether it made the key's namespace slow.

        The attempt took `seconds` and ended at `local` time. After a success the item is dropped,
        unless it was scheduled meanwhile. After a failure the caller must call `retry`.
        """
        self._in_flight.discard(key)
        if succeeded and not self._keeps_failures:
            self._backoff.forget(key)
        if key in self._items:
            if key not in self._left_heap:
                self.schedule(key)
            elif succeeded:
                self.discard(key)
        return self._ready.done(key, seconds, local, succeeded=succeeded)

    def retry(self, key: ObjectKey, local: float, *, at_least: float) -> float:
        """Make a failed key back off, and return the seconds until its retry."""
        return self._backoff.failed(key, now=local, at_least=at_least)

    def requeue(self, key: ObjectKey) -> None:
        """Requeue a key that the worker has not started."""
        self._in_flight.discard(key)
        self._ready.give_back(key)
        self.schedule(key)

    def wait(self, local: float) -> float:
        """Return the seconds until a key may become ready, or infinity if no time is known."""
        now = self._clock(local)
        if now is None:
            return float("inf")
        due = (min(self._waiting.next_at(), self._resumes_at) - now) / self._per_second
        return min(due, self._backoff.next_at() - local)

    def has_room(self, namespace: str) -> bool:
        """Return whether a namespace has a ready key and may have one more worker."""
        return self._ready.has_room(namespace)

    def needs_long_timeout(self, key: ObjectKey, local: float) -> bool:
        """Return whether the attempt's timeout must cover the maximum time of admission.

        True only after a failure in a slow namespace: other keys must not occupy a worker for so
        long.
        """
        return self._backoff.has_failed(key) and self._ready.is_slow(key[0], local)

    def due(self, now: float) -> Iterator[tuple[ObjectKey, Item]]:
        """Iterate over the due items without visiting the others."""
        for key in {*self._left_heap, *self._in_flight, *self._waiting.due(now)}:
            item = self._items.get(key)
            if item is not None and self._time_of(item) <= now:
                yield key, item

    def _make_ready(self, now: float, local: float) -> None:
        """Move keys that are due, or whose back-off is over, to the ready keys."""
        for _ in range(READY_AT_ONCE):
            key = self._backoff.pop(local)
            if key is not None:
                if key in self._in_flight or key not in self._left_heap:
                    continue  # it changed meanwhile: in flight, or with a new due time
            elif (key := self._waiting.pop(now)) is not None:
                self._left_heap.add(key)
            else:
                return
            self._ready.put(key, local, again=self._backoff.has_failed(key))
            if self.is_paused(key[0]):
                self._on_paused(key)

    def _waits_until(self, key: ObjectKey) -> float | None:
        item = self._items.get(key)
        is_waiting = item is not None and key not in self._left_heap and key not in self._in_flight
        return self._time_of(item) if item is not None and is_waiting else None
