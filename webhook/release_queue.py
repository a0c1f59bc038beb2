"""The pods that wait, in the order in which they are due. Pure: no I/O, no clock, no locks.

One small tuple a pod, in a heap that is cleaned lazily: a pod that changes gets a new heap entry,
and an entry that no longer agrees with the table is dropped when it comes up.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from webhook import holds
from webhook.objects import Names


class Held(NamedTuple):
    """What has to be known of a held pod to release it without reading it again.

    `known_ms` is since when it has been known to be due then; 0 for a pod that was there already
    when the controller began: what fell due while nobody watched is late.
    """

    due_ms: int
    uid: str
    resource_version: str
    gates: tuple[str, ...]
    problem: str = ""
    recheck: bool = False
    known_ms: int = 0


MOVED = "its due time was moved back though the pod had not changed; the first one counts"
"""What is told of a pod whose plugin answers later and later: followed, it would never go."""


def steady(known: Held | None, fresh: Held) -> Held:
    """Take what was found of a pod, and keep it from being put off while it has not changed."""
    if known is None or (known.uid, known.resource_version) != (fresh.uid, fresh.resource_version):
        return fresh
    if fresh.due_ms <= known.due_ms:
        return fresh
    return fresh._replace(due_ms=known.due_ms, problem=MOVED)


class ReleaseQueue:
    """Held pods by key, and the next one that is due."""

    def __init__(self) -> None:
        self._held: dict[Names, Held] = {}
        self._heap: list[tuple[int, Names]] = []

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Names]:
        return iter(self._held)

    def get(self, key: Names) -> Held | None:
        """Return what is known of a pod, or None when it is not held."""
        return self._held.get(key)

    def put(self, key: Names, held: Held) -> None:
        """Add a pod, or follow its change."""
        known = self._held.get(key)
        self._held[key] = held
        if known is None or known.due_ms != held.due_ms:
            heapq.heappush(self._heap, (held.due_ms, key))
            self._compact()

    def discard(self, key: Names) -> None:
        """Forget a pod."""
        self._held.pop(key, None)

    def retry(self, key: Names) -> None:
        """Bring up a pod again that `pop_due` handed out and that is held still."""
        held = self._held.get(key)
        if held is not None:
            heapq.heappush(self._heap, (held.due_ms, key))

    def next_due_ms(self) -> int | None:
        """Tell when the next pod is due, or None when nothing waits."""
        while self._heap:
            due_ms, key = self._heap[0]
            held = self._held.get(key)
            if held is not None and held.due_ms == due_ms:
                return due_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> Names | None:
        """Hand out the next pod that is due, or None. It stays held until it is discarded."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        first = heapq.heappop(self._heap)
        while self._heap and self._heap[0] == first:
            heapq.heappop(self._heap)  # a change to and fro left it here twice
        return first[1]

    def overdue(self, now_ms: int) -> int:
        """Count the pods whose time has come."""
        return sum(held.due_ms <= now_ms for held in self._held.values())

    def holds(self, now_ms: int) -> Counter[tuple[str, str]]:
        """Count the holds, by plugin and by what they wait for: a pod may have several.

        That is `time`, `plugin` where no time is known, or `release` where the time has come.
        """
        alike: Counter[tuple[tuple[str, ...], bool, bool]] = Counter(
            (held.gates, held.due_ms <= now_ms, held.due_ms >= holds.NEVER_MS)
            for held in self._held.values()
        )
        found: Counter[tuple[str, str]] = Counter()
        for (gates, is_due, is_open), count in alike.items():
            reason = "release" if is_due else "plugin" if is_open else "time"
            for gate in gates:
                if gate.startswith(holds.OWN_PREFIX):
                    found[gate.removeprefix(holds.OWN_PREFIX), reason] += count
        return found

    def _compact(self) -> None:
        # annotations that change over and over must not grow the heap without end
        if len(self._heap) > 2 * len(self._held) + 1_000:
            self._heap = [(held.due_ms, key) for key, held in self._held.items()]
            heapq.heapify(self._heap)
