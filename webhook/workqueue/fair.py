"""Ready keys, shared fairly: no namespace can starve another of workers.

If a webhook hangs or rejects every pod of one namespace, workers retry those pods again and again.
The next key therefore comes from the namespace with the fewest workers. No namespace has more
workers than its limit, and neither have all slow namespaces together. A namespace starts with a few
workers, as a TCP connection starts with a few segments, and gets one more for each success. A
namespace whose keys hang from the start gets more workers only slowly. This leaves room on the API
server: after idle time, it has about 25 seats for all ServiceAccounts (API Priority and Fairness
lends the others elsewhere, and takes them back every ten seconds).

Pure: no I/O, no clock, no locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from holdfast.webhook.model.objects import ObjectKey

Waiting = dict[str, "FIFO"]

SLOW_SECONDS = 2.0
"""An attempt that takes this long makes its namespace slow. Most take some milliseconds."""
REMEMBERED_SECONDS = 90.0
"""Seconds that a namespace stays slow afterwards, extended while it has ready keys. Longer than the
time between two retries can be."""
MORE_SECONDS = 10.0
"""Seconds until a namespace with hanging attempts may have a few more workers. The API server takes
back the seats that it has lent at this interval."""


class FairQueue:
    """Ready keys by namespace, and the number of workers of each namespace.

    No namespace has more than `limit` workers, and neither have all slow namespaces together. A
    namespace starts with a share of `first`, and gets one more per success while it uses at least
    half of its share. The share is reset when an attempt hangs, and then grows by `first` every ten
    seconds. It is also reset when the namespace has no workers left. A paused namespace gets no
    workers. `may_start` returns whether a key can start despite other keys of its namespace in
    flight. Times are seconds by the caller's clock, which must be monotonic.
    """

    def __init__(
        self,
        limit: int,
        *,
        first: int,
        may_start: Callable[[ObjectKey], bool] = lambda _: True,
    ) -> None:
        self._limit, self._first = limit, first
        self._may_start = may_start
        self._fast: Waiting = {}
        """Ready keys by namespace; the namespace served last is at the end."""
        self._slow: Waiting = {}
        """The same for slow namespaces."""
        self._paused: Waiting = {}
        """The same for paused namespaces."""
        self._is_paused: Callable[[str], bool] = lambda _: False
        self._slow_until: dict[str, float] = {}
        """When each slow namespace becomes fast again, the earliest first."""
        self._workers: dict[str, int] = {}
        """Number of workers of each namespace that has any."""
        self._shares: dict[str, int] = {}
        """Number of workers that a namespace may have, if more than `first`."""
        self._hung_at: dict[str, float] = {}
        """When the share of a namespace with hanging attempts was last reset or raised."""

    def __len__(self) -> int:
        return sum(len(keys) for queue in self._queues() for keys in queue.values())

    def __contains__(self, key: ObjectKey) -> bool:
        return any(key in queue.get(key[0], ()) for queue in self._queues())

    def is_slow(self, namespace: str, now: float) -> bool:
        """Return whether an attempt in the namespace was slow recently."""
        self._expire(now)
        return namespace in self._slow_until

    def put(self, key: ObjectKey, now: float, *, again: bool = False) -> None:
        """Add a key, `again` if it failed before. A key that is already queued keeps its place."""
        self._expire(now)
        self._queue_of(key[0]).setdefault(key[0], FIFO()).put(key, again=again)

    def pause(self, is_paused: Callable[[str], bool]) -> list[ObjectKey]:
        """Set which namespaces are paused, and return the keys that are newly paused."""
        before, self._is_paused = self._paused, is_paused
        entries = [entry for queue in self._queues() for entry in queue.items()]
        self._slow, self._fast, self._paused = {}, {}, {}
        for namespace, keys in entries:
            self._queue_of(namespace)[namespace] = keys
        return [key for name, keys in self._paused.items() if name not in before for key in keys]

    def discard(self, key: ObjectKey) -> None:
        """Remove a key if it is queued."""
        for queue in self._queues():
            keys = queue.get(key[0])
            if keys is not None and keys.discard(key) and not keys:
                del queue[key[0]]

    def take(self, now: float) -> ObjectKey | None:
        """Return the next key for a worker, or None.

        The caller must call `done` or `give_back`.
        """
        self._expire(now)
        for queue in (self._slow, self._fast):  # slow namespaces can never have all workers
            if queue and (namespace := self._next(queue)) is not None:
                self._workers[namespace] = self._workers.get(namespace, 0) + 1
                return self._pop(queue, namespace)
        return None

    def has_room(self, namespace: str) -> bool:
        """Return whether a namespace has a ready key and may have one more worker."""
        is_ready = namespace in self._slow or namespace in self._fast
        return is_ready and self._workers.get(namespace, 0) < self._share_of(namespace)

    def done(self, key: ObjectKey, seconds: float, now: float, *, succeeded: bool) -> bool:
        """Free a worker that took `seconds`, and return whether the namespace became slow."""
        namespace, was_slow = key[0], self.is_slow(key[0], now)
        if succeeded:
            self._grow(namespace, 1)
        elif seconds >= SLOW_SECONDS:
            self._hang(namespace, now)
        self.give_back(key)
        if seconds < SLOW_SECONDS:
            return False
        self._mark_slow(namespace, now)
        if (keys := self._fast.pop(namespace, None)) is not None:
            self._slow[namespace] = keys
        return not was_slow

    def give_back(self, key: ObjectKey) -> None:
        """Free a worker that has not started on its key."""
        count = self._workers.pop(key[0]) - 1
        if count:
            self._workers[key[0]] = count
        else:
            self._shares.pop(key[0], None)

    def count_slow(self) -> int:
        """Return the number of workers in slow namespaces."""
        return sum(count for name, count in self._workers.items() if name in self._slow_until)

    def _queues(self) -> tuple[Waiting, Waiting, Waiting]:
        return self._slow, self._fast, self._paused

    def _queue_of(self, namespace: str) -> Waiting:
        if self._is_paused(namespace):
            return self._paused
        return self._slow if namespace in self._slow_until else self._fast

    def _grow(self, namespace: str, increase: int) -> None:
        """Raise a namespace's share if it uses at least half of it."""
        share = self._share_of(namespace)
        if share < self._limit and 2 * self._workers[namespace] >= share:
            self._shares[namespace] = min(share + increase, self._limit)

    def _hang(self, namespace: str, now: float) -> None:
        """Reset a namespace's share at the first hang; then raise it every MORE_SECONDS."""
        if namespace not in self._hung_at:
            self._shares.pop(namespace, None)
        elif now >= self._hung_at[namespace] + MORE_SECONDS:
            self._grow(namespace, self._first)
        else:
            return
        self._hung_at[namespace] = now

    def _share_of(self, namespace: str) -> int:
        return self._shares.get(namespace, self._first)

    def _next(self, queue: Waiting) -> str | None:
        """Return the first namespace with the fewest workers, or None if none may start a key."""
        if queue is self._slow and self.count_slow() >= self._limit:
            return None
        chosen, fewest = None, self._limit
        for namespace in queue:  # ends at the first namespace without workers
            count = self._workers.get(namespace, 0)
            has_room = count < min(fewest, self._share_of(namespace))
            if has_room and (not count or self._may_start(queue[namespace].peek())):
                chosen, fewest = namespace, count
            # None has fewer workers, and the queue is in turn order: skip the rest.
            if not count:
                break
        return chosen

    def _pop(self, queue: Waiting, namespace: str) -> ObjectKey:
        keys = queue.pop(namespace)
        key = keys.pop()
        if keys:
            queue[namespace] = keys  # at the end of the queue
        return key

    def _mark_slow(self, namespace: str, now: float) -> None:
        self._slow_until.pop(namespace, None)
        self._slow_until[namespace] = now + REMEMBERED_SECONDS

    def _expire(self, now: float) -> None:
        while self._slow_until:
            namespace = next(iter(self._slow_until))
            if self._slow_until[namespace] > now:
                return
            if namespace in self._slow:  # its ready keys have had no worker since
                self._mark_slow(namespace, now)
            else:
                del self._slow_until[namespace]
                self._hung_at.pop(namespace, None)


class FIFO:
    """The ready keys of a namespace, in order. New and retried keys alternate.

    Neither kind has to wait for all keys of the other.
    """

    __slots__ = ("_again", "_new", "_new_is_next")

    def __init__(self) -> None:
        self._new: OrderedDict[ObjectKey, None] = OrderedDict()
        self._again: OrderedDict[ObjectKey, None] = OrderedDict()
        self._new_is_next = True

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    def __contains__(self, key: object) -> bool:
        return key in self._new or key in self._again

    def __iter__(self) -> Iterator[ObjectKey]:
        yield from self._new
        yield from self._again

    def put(self, key: ObjectKey, *, again: bool) -> None:
        """Add a key. A key that is already queued keeps its place."""
        if key not in self:
            (self._again if again else self._new)[key] = None

    def pop(self) -> ObjectKey:
        """Remove and return the next key. Raises StopIteration if there is none."""
        key = self.peek()
        self._new_is_next = key not in self._new
        del (self._again if self._new_is_next else self._new)[key]
        return key

    def peek(self) -> ObjectKey:
        """Return the next key. Raises StopIteration if there is none."""
        is_new = bool(self._new) and (self._new_is_next or not self._again)
        return next(iter(self._new if is_new else self._again))

    def discard(self, key: ObjectKey) -> bool:
        """Remove a key, and return whether it was queued."""
        for keys in (self._new, self._again):
            if key in keys:
                del keys[key]
                return True
        return False
