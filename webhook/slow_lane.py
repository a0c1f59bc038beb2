"""Namespaces in which work takes long: what is due there shares a part of the workers, in turn.

Somebody's webhook that hangs for the pods of one namespace keeps a worker for as long as a request
waits. However much is due there, all others have a way. Pure: no I/O, no clock, no locks.
"""

from __future__ import annotations

from collections import deque

from webhook.objects import Names

SLOW_SECONDS = 2.0
"""What takes a worker this long tells that its namespace is slow: others take some milliseconds."""
REMEMBERED_SECONDS = 90.0
"""How long a namespace counts as slow after that: longer than two tries can be apart."""


class SlowLane:
    """What is due in slow namespaces, and how many workers have some of it: `size` at most.

    Times are seconds by whatever clock the caller has, which does not go back. The first that is
    found to be slow is not held back: a namespace is known by what it did before.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._until: dict[str, float] = {}
        """Until when each namespace counts as slow; what ends first comes first."""
        self._waiting: dict[str, dict[Names, None]] = {}
        """What is due in them, each in its order; whose turn it is comes first."""
        self._open: deque[Names] = deque()
        """What waited in namespaces that count as slow no more."""
        self._under_way: set[Names] = set()

    def __len__(self) -> int:
        return len(self._open) + sum(map(len, self._waiting.values()))

    def took(self, key: Names, seconds: float, now: float) -> bool:
        """Note for how long something kept a worker that is free now.

        Tells whether its namespace counts as slow by that, and did not before.
        """
        self._under_way.discard(key)
        if seconds < SLOW_SECONDS:
            return False
        known = self._until.pop(key[0], now)
        self._until[key[0]] = now + REMEMBERED_SECONDS
        return known <= now

    def is_slow(self, namespace: str, now: float) -> bool:
        """Tell whether something took long there a short time ago."""
        return self._until.get(namespace, now) > now

    def put(self, key: Names) -> None:
        """Have something wait that is due in a slow namespace."""
        self._waiting.setdefault(key[0], {})[key] = None

    def take(self, now: float) -> Names | None:
        """Hand out what is next, or None; `took` or `drop` has to be called for it."""
        self._forget(now)
        if self._open:
            return self._open.popleft()
        if not self._waiting or len(self._under_way) >= self._size:
            return None
        namespace = next(iter(self._waiting))
        keys = self._waiting.pop(namespace)
        key = next(iter(keys))
        del keys[key]
        if keys:
            self._waiting[namespace] = keys
        self._under_way.add(key)
        return key

    def drop(self, key: Names) -> None:
        """Take back what was handed out, and not begun."""
        self._under_way.discard(key)

    def _forget(self, now: float) -> None:
        while self._until and not self.is_slow(namespace := next(iter(self._until)), now):
            del self._until[namespace]
            self._open.extend(self._waiting.pop(namespace, ()))
