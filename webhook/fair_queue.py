"""What is due, dealt out to workers so that no namespace keeps another one's from them.

Somebody's webhook that hangs, or refuses at once, for the pods of one namespace has workers try
them again and again. However many are due there, what is due elsewhere has its turn: it goes to the
namespace that has the fewest workers, none has more than its part of them, and those in which work
takes long have no more all together. Nor does a namespace have its part at once: it begins with a
few workers, as a TCP connection begins with a few segments, and has one more for each that
succeeds. What hangs from the first on has more by and by only, and leaves the API server places
too, of which it may have some 25 for all ServiceAccounts after a time of little to do (API Priority
and Fairness lends them elsewhere, and takes them back every ten seconds).

Within a namespace what is tried again and what is new have turns: what succeeds at once does not
wait behind all that has failed, nor the other way round. Pure: no I/O, no clock, no locks.
"""

from __future__ import annotations

from webhook.line import Line
from webhook.objects import Names

Waiting = dict[str, Line]

SLOW_SECONDS = 2.0
"""What takes a worker this long tells that its namespace is slow: others take some milliseconds."""
REMEMBERED_SECONDS = 90.0
"""How long a namespace counts as slow after that, and while something of it waits for its turn:
longer than two tries can be apart."""
MORE_SECONDS = 10.0
"""How often a namespace in which work hangs may have some workers more: as often as the API server
gives places to those who want more of them."""


class FairQueue:
    """What is due, by namespace, and which namespaces have workers.

    No namespace has more than `most` workers, nor all slow ones together. Each begins with `first`,
    and may have one more for each that succeeds while it uses half of what it may have; it begins
    again when work hangs, with so many more every ten seconds, and when it has had none. Times are
    seconds by whatever clock the caller has, which does not go back.
    """

    def __init__(self, most: int, *, first: int) -> None:
        self._most, self._first = most, first
        self._usual: Waiting = {}
        """What is due, by namespace; whose turn it is comes first."""
        self._slow: Waiting = {}
        """Likewise, of slow namespaces."""
        self._until: dict[str, float] = {}
        """Until when each slow namespace counts as such; what ends first comes first."""
        self._workers: dict[str, int] = {}
        """How many workers each namespace has that has any."""
        self._allowed: dict[str, int] = {}
        """How many workers those namespaces may have that may have more than the first ones."""
        self._hung: dict[str, float] = {}
        """When those slow namespaces began again, or had some more, in which work hangs."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def is_slow(self, namespace: str, now: float) -> bool:
        """Tell whether work took long there a short time ago."""
        self._forget(now)
        return namespace in self._until

    def put(self, key: Names, now: float, *, again: bool = False) -> None:
        """Add what is due, maybe once more after it failed; what is there keeps its place."""
        self._forget(now)
        queue = self._slow if key[0] in self._until else self._usual
        self._length += queue.setdefault(key[0], Line()).put(key, again=again)

    def discard(self, key: Names) -> None:
        """Take out what waits for its turn, if it does."""
        for queue in (self._slow, self._usual):
            line = queue.get(key[0])
            if line is not None and line.discard(key):
                self._length -= 1
                if not line:
                    del queue[key[0]]

    def take(self, now: float) -> Names | None:
        """Hand out what is next, or None; `took` or `drop` has to be called for it."""
        self._forget(now)
        for queue in (self._slow, self._usual):  # the former can never have all workers
            if queue and (namespace := self._next(queue)) is not None:
                self._workers[namespace] = self._workers.get(namespace, 0) + 1
                return self._head(queue, namespace)
        return None

    def has_room(self, namespace: str) -> bool:
        """Tell whether something of a namespace waits, and it may have one more worker."""
        waits = namespace in self._slow or namespace in self._usual
        return waits and self._workers.get(namespace, 0) < self._most_of(namespace)

    def took(self, key: Names, seconds: float, now: float, *, worked: bool) -> bool:
        """Note for how long something has kept a worker, which is free now, and whether in vain.

        Tells whether its namespace counts as slow by that, and did not before.
        """
        namespace, known = key[0], self.is_slow(key[0], now)
        if worked:
            self._grow(namespace, 1)
        elif seconds >= SLOW_SECONDS:
            self._hang(namespace, now)
        self.drop(key)
        if seconds < SLOW_SECONDS:
            return False
        self._mark(namespace, now)
        if (line := self._usual.pop(namespace, None)) is not None:
            self._slow[namespace] = line
        return not known

    def drop(self, key: Names) -> None:
        """Take a worker back that has begun nothing."""
        left = self._workers.pop(key[0]) - 1
        if left:
            self._workers[key[0]] = left
        else:
            self._allowed.pop(key[0], None)

    def count_slow(self) -> int:
        """Count the workers that slow namespaces have."""
        return sum(count for one, count in self._workers.items() if one in self._until)

    def _grow(self, namespace: str, more: int) -> None:
        """Let a namespace have more workers, if it uses half of those it may have."""
        allowed = self._most_of(namespace)
        if allowed < self._most and 2 * self._workers[namespace] >= allowed:
            self._allowed[namespace] = min(allowed + more, self._most)

    def _hang(self, namespace: str, now: float) -> None:
        """Begin again where nothing hung before; else let it have some more now and then."""
        if namespace not in self._hung:
            self._allowed.pop(namespace, None)
        elif now >= self._hung[namespace] + MORE_SECONDS:
            self._grow(namespace, self._first)
        else:
            return
        self._hung[namespace] = now

    def _most_of(self, namespace: str) -> int:
        return self._allowed.get(namespace, self._first)

    def _next(self, queue: Waiting) -> str | None:
        """Find the first namespace of those that have the fewest workers; None where none may."""
        if queue is self._slow and self.count_slow() >= self._most:
            return None
        found, fewest = None, self._most
        for namespace in queue:  # no more of them have workers than there are workers
            count = self._workers.get(namespace, 0)
            if count < min(fewest, self._most_of(namespace)):
                found, fewest = namespace, count
            if not count:
                break
        return found

    def _head(self, queue: Waiting, namespace: str) -> Names:
        line = queue.pop(namespace)
        key = line.take()
        self._length -= 1
        if line:
            queue[namespace] = line  # behind all others
        return key

    def _mark(self, namespace: str, now: float) -> None:
        self._until.pop(namespace, None)
        self._until[namespace] = now + REMEMBERED_SECONDS

    def _forget(self, now: float) -> None:
        while self._until:
            namespace = next(iter(self._until))
            if self._until[namespace] > now:
                return
            if namespace in self._slow:  # it has not had its turn since
                self._mark(namespace, now)
            else:
                del self._until[namespace]
                self._hung.pop(namespace, None)
