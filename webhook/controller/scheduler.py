"""The state of every held pod: waiting, ready, in flight or backing off. Pure.

Due times are milliseconds since 1970 by the API server's clock, local times are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from holdfast.webhook.controller.pending import RANKS, PendingRelease, exceeds
from holdfast.webhook.controller.releaser import Attempt, Outcome
from holdfast.webhook.model.annotations import NEVER_MS, OWN_PREFIX
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.controller import TaskResult
from holdfast.webhook.workqueue.queue import WorkQueue

COPIES = 20_000
"""Maximum number of pods with a cached copy, about 20 MB in total. A burst of them is released with
half the requests. Other pods are read when they are due."""
COPY_BYTES = 4_096
"""Maximum size of a cached copy. A typical pod takes 1 KB, a hostile pod a megabyte."""


class ReleaseScheduler(WorkQueue[PendingRelease]):
    """The queue of held pods to release.

    `server_time` maps local time to the lower bound of the API server's time, in seconds since
    1970, or to None. `forget` is called with the uid of each pod that is no longer held,
    `on_paused` with each pod that is due in a frozen namespace.
    """

    def __init__(
        self,
        server_time: Callable[[float], float | None],
        limit: int,
        *,
        first: int,
        forget: Callable[[str], None],
        on_paused: Callable[[ObjectKey], None] = lambda _: None,
    ) -> None:
        self._server_time = server_time
        self._forget = forget
        self._expected: dict[ObjectKey, int] = {}
        self._alike: Counter[_Kind] = Counter()
        """Number of pods by their gates, and by whether their due time is unknown. A scrape must
        not iterate over all pods."""
        self._copies = 0
        super().__init__(
            attrgetter("due_ms"),
            limit,
            first=first,
            clock=self._now,
            per_second=1_000.0,
            rank_of=attrgetter("rank"),
            keeps_failures=True,  # a rejected pod may wait for a slot and be rejected again
            on_paused=on_paused,
        )

    def expect(self, key: ObjectKey) -> PendingRelease | None:
        """Return the entry of a pod, or None, before plugins are asked and the pod is upserted.

        Until then, an `expedite` counts even if the pod is unknown.
        """
        self._expected = {key: NEVER_MS}
        return self.get(key)

    def upsert(
        self,
        key: ObjectKey,
        pending: PendingRelease,
        before: PendingRelease | None,
        now_ms: int,
        *,
        watched: bool,
    ) -> PendingRelease | None:
        """Add or update a pod, and return its entry if there is something new to report.

        `before` is the entry from before the plugins were asked about `pending`. `watched` is false
        for a pod from a list, because the time of its last change is unknown.
        """
        entry = self.get(key)
        # A new pod of that name: the plugins' decisions about the old pod do not apply.
        if entry is not None and entry.uid != pending.uid:
            self.remove(key)
            entry = None
        if entry is not None and not entry.resource_version:
            # The plugins will be asked again, about the current pod; at once if it may start.
            due_ms = min(entry.due_ms, max(pending.due_ms, now_ms))
            self.put(key, entry._replace(due_ms=due_ms, copy=pending.copy))
            return None
        is_news = entry is None or entry.due_ms != pending.due_ms
        if entry is not None and not is_news:
            # The due time is unchanged, so lateness still counts from when it was first known.
            pending = pending._replace(known_ms=entry.known_ms)
        elif watched or entry is not None:
            pending = pending._replace(known_ms=now_ms)
        self.put(key, pending)
        if (asked_ms := self._expected.get(key, NEVER_MS)) < NEVER_MS:
            self.expedite(key, asked_ms, now_ms)
        elif entry is not before:
            self._ask_again(key, 0, now_ms)
        texts = entry and (entry.reason, entry.problem)
        return pending if is_news or texts != (pending.reason, pending.problem) else None

    def expedite(self, key: ObjectKey, at_ms: int, now_ms: int) -> None:
        """Make a pod due now, or at `at_ms`. Its release asks the plugins again.

        A plugin may request this before the pod is added, because it has just been asked about the
        pod. Any other unknown pod is gone.
        """
        entry = self.get(key)
        if entry is None:
            if key in self._expected:
                self._expected[key] = min(at_ms, self._expected[key])
            return
        due_ms = max(at_ms, now_ms)
        if not entry.resource_version:
            due_ms = min(due_ms, entry.due_ms)  # the earliest request counts
        self.put(
            key,
            entry._replace(due_ms=due_ms, known_ms=due_ms, resource_version="", recheck=True),
        )

    def may_start(self, key: ObjectKey) -> bool:
        """Return whether no higher-priority pod of the namespace with this due time is in flight.

        A node may have room for only one of them, and releases in flight may overtake each other. A
        pod that has failed before does not block others.
        """
        pending = self._items[key]
        first = pending.level * RANKS  # the lowest rank of its level
        return not any(
            item is not None
            and item.rank < first
            and item.due_ms == pending.due_ms
            and other_key[0] == key[0]
            and not self._backoff.has_failed(other_key)
            for other_key in self._in_flight
            for item in [self._items.get(other_key)]
        )

    def remove(self, key: ObjectKey) -> None:
        """Drop a pod that is no longer held."""
        entry = self.get(key)
        if entry is not None:
            self.discard(key)
            self._forget(entry.uid)

    def settle(
        self, key: ObjectKey, tried: PendingRelease, attempt: Attempt, now_ms: int
    ) -> TaskResult:
        """Record the end of an attempt, and return its result for the queue.

        The watch may have reported another pod of that name meanwhile.
        """
        entry = self.get(key)
        if entry is None or entry.uid != tried.uid:
            # Gone or recreated, but plugins were asked about the old pod meanwhile.
            self._forget(tried.uid)
            if entry is None and attempt.held is not None:
                self._forget(attempt.held.uid)
            return TaskResult()
        if attempt.outcome in {Outcome.RELEASED, Outcome.GONE}:
            self.remove(key)
            return TaskResult()
        if entry is not tried:
            changed = attempt.held if attempt.outcome is Outcome.CHANGED else None
            self._ask_again(key, changed.due_ms if changed else 0, now_ms)
        elif attempt.held is not None:
            is_due = attempt.outcome is Outcome.RETRY  # a new due time would cut the back-off short
            due_ms = tried.due_ms if is_due else attempt.held.due_ms
            self._replace(key, tried, attempt.held._replace(due_ms=due_ms), now_ms)
        # Not a failure: the pod has a new due time, and does not back off.
        if attempt.outcome is Outcome.CHANGED:
            self.schedule(key)
            return TaskResult()
        if attempt.held is None:
            # The pod may have been released. It must be read, or its slot would be given away.
            self.put(key, self._items[key]._replace(copy=b""))
        return TaskResult(attempt.reason, attempt.retry_after or 0.0)

    def _ask_again(self, key: ObjectKey, at_ms: int, now_ms: int) -> None:
        """Ask the plugins again about a pod that they were asked about twice concurrently.

        A plugin rechecks a pod only if its last answer was to wait, and it is unknown which answer
        was the last. If the plugins will be asked anyway, the pod may become due earlier, at
        `at_ms`.
        """
        pending = self.get(key)
        if pending is None:
            return
        if not pending.resource_version:
            self.expedite(key, at_ms, now_ms)
        elif pending.recheck or pending.due_ms >= NEVER_MS:
            self.expedite(key, 0, now_ms)

    def _replace(
        self, key: ObjectKey, tried: PendingRelease, pending: PendingRelease, now_ms: int
    ) -> None:
        """Store the pod as the attempt read it."""
        if pending.uid != tried.uid:
            self.remove(key)
        known_ms = tried.known_ms if pending.due_ms == tried.due_ms else now_ms
        self.put(key, pending._replace(known_ms=known_ms))

    # --- counts --------------------------------------------------------------------------------

    def put(self, key: ObjectKey, item: PendingRelease) -> None:
        """Add or replace a pod, and update the counts."""
        self._count(self.get(key), -1)
        if exceeds(item.gates):  # admission rejects such a pod; its release reads it
            item = item._replace(gates=(), recheck=True, copy=b"")
        if item.copy and (len(item.copy) > COPY_BYTES or self._copies >= COPIES):
            item = item._replace(copy=b"")
        self._count(item, 1)
        super().put(key, item)

    def discard(self, key: ObjectKey) -> None:
        """Drop a pod, and update the counts."""
        self._count(self.get(key), -1)
        super().discard(key)

    def overdue(self, now_ms: int) -> int:
        """Return the number of due pods, without those in frozen namespaces."""
        return sum(not self.is_paused(key[0]) for key, _ in self.due(now_ms))

    def holds(self, now_ms: int) -> Counter[tuple[str, str]]:
        """Return the number of holds by plugin and reason; a pod may have several.

        The reason is `time` before the due time, `plugin` if no due time is known, `release` once
        the pod is due, or `freeze` if it is due in a frozen namespace.
        """
        due, frozen = Counter[_Kind](), Counter[_Kind]()
        for key, pending in self.due(now_ms):
            (frozen if self.is_paused(key[0]) else due)[_kind(pending)] += 1
        holds: Counter[tuple[str, str]] = Counter()
        for kind, count in self._alike.items():
            gates, is_open = kind
            later = count - due[kind] - frozen[kind]
            counts = {"release": due[kind], "freeze": frozen[kind]}
            counts["plugin" if is_open else "time"] = later
            for gate in gates:
                if gate.startswith(OWN_PREFIX):
                    for reason in filter(counts.get, counts):
                        holds[gate.removeprefix(OWN_PREFIX), reason] += counts[reason]
        return holds

    def _count(self, pending: PendingRelease | None, change: int) -> None:
        if pending is not None:
            self._copies += change if pending.copy else 0
            kind = _kind(pending)
            self._alike[kind] += change
            if not self._alike[kind]:
                del self._alike[kind]

    def _now(self, local: float) -> float | None:
        seconds = self._server_time(local)
        return None if seconds is None else seconds * 1_000


_Kind = tuple[tuple[str, ...], bool]


def _kind(pending: PendingRelease) -> _Kind:
    return pending.gates, pending.due_ms >= NEVER_MS
