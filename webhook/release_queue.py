"""The pods that wait, in the order in which they are due. Pure: no I/O, no clock, no locks.

One small tuple a pod, in a heap that is cleaned lazily: a pod that changes gets a new heap entry,
and an entry that no longer agrees with the table is dropped when it comes up. What is counted looks
at the pods that are due, never at all of them: a metrics page must not hold up a release.
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
        self._out: set[Names] = set()
        """Pods that `pop_due` handed out: held still, and without an entry in the heap."""
        self._alike: Counter[tuple[tuple[str, ...], bool]] = Counter()
        """How many pods have these gates, and whether no time is known for them."""

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
        if known is not None:
            self._uncount(known)
        self._alike[_kind(held)] += 1
        if known is None or known.due_ms != held.due_ms:
            self._push(key, held)
            self._compact()

    def discard(self, key: Names) -> None:
        """Forget a pod."""
        held = self._held.pop(key, None)
        if held is not None:
            self._uncount(held)
            self._out.discard(key)

    def retry(self, key: Names) -> None:
        """Bring up a pod again that `pop_due` handed out and that is held still."""
        held = self._held.get(key)
        if held is not None:
            self._push(key, held)

    def handed_out(self, key: Names) -> Held | None:
        """Return what is known of a pod that `pop_due` handed out; None where it waits, or went."""
        return self._held.get(key) if key in self._out else None

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
        self._out.add(first[1])
        return first[1]

    def overdue(self, now_ms: int) -> int:
        """Count the pods whose time has come."""
        return sum(1 for _ in self._due(now_ms))

    def holds(self, now_ms: int) -> Counter[tuple[str, str]]:
        """Count the holds, by plugin and by what they wait for: a pod may have several.

        That is `time`, `plugin` where no time is known, or `release` where the time has come.
        """
        due = Counter(_kind(held) for held in self._due(now_ms))
        found: Counter[tuple[str, str]] = Counter()
        for kind, count in self._alike.items():
            gates, is_open = kind
            waiting = {"release": due[kind], "plugin" if is_open else "time": count - due[kind]}
            for gate in gates:
                if gate.startswith(holds.OWN_PREFIX):
                    for reason in filter(waiting.get, waiting):
                        found[gate.removeprefix(holds.OWN_PREFIX), reason] += waiting[reason]
        return found

    def _due(self, now_ms: int) -> Iterator[Held]:
        """Go through the pods whose time has come: those handed out, and the top of the heap."""
        keys, below = set(self._out), [0]
        while below:
            index = below.pop()
            if index < len(self._heap) and self._heap[index][0] <= now_ms:
                keys.add(self._heap[index][1])
                below += (2 * index + 1, 2 * index + 2)
        for key in keys:
            held = self._held.get(key)
            if held is not None and held.due_ms <= now_ms:
                yield held

    def _push(self, key: Names, held: Held) -> None:
        heapq.heappush(self._heap, (held.due_ms, key))
        self._out.discard(key)

    def _uncount(self, held: Held) -> None:
        kind = _kind(held)
        self._alike[kind] -= 1
        if not self._alike[kind]:
            del self._alike[kind]

    def _compact(self) -> None:
        # annotations that change over and over must not grow the heap without end
        if len(self._heap) > 2 * len(self._held) + 1_000:
            self._heap = [
                (held.due_ms, key) for key, held in self._held.items() if key not in self._out
            ]
            heapq.heapify(self._heap)


def _kind(held: Held) -> tuple[tuple[str, ...], bool]:
    return held.gates, held.due_ms >= holds.NEVER_MS
