"""The starting and waiting pods of one pace. Pure.

Limits apply per pod, because those of an owner's pods may be changed one pod at a time.

All times are in milliseconds since 1970. Because a release counts from the latest time at which it
may have happened, no two releases are closer together than the pace allows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator

from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.model.pace import Limits

LATE_MS = int(SLOW_ADMISSION_TIMEOUT + 1) * 1_000
"""How long after the time recorded on the pod its release may have happened: the timeout of the
request, plus a second."""
Rank = tuple[int, int, int]
"""The order in the queue: due time, negative priority, creation."""
Place = tuple[Rank, ObjectKey, Limits]
"""A pod in the queue: its rank, key and limits."""
Call = tuple[ObjectKey, int]
"""A pod, and the time of its turn; 0 for now."""


class PaceGroup:
    """The pods of one pace. Not thread-safe.

    A pod waits in the queue, is called when it is its turn, and is starting once it is released.
    Called pods also have slots: they are about to be released, unless another plugin holds them.
    """

    def __init__(self, releases: array[int] | None = None) -> None:
        self.period_ms = 0
        """The longest period of its pods, for which a release counts."""
        self._line: list[tuple[Rank, str]] = []
        self._waiting: dict[str, Place] = {}
        self._called: dict[str, Place] = {}
        self.starting: dict[str, int] = {}
        """Starting pods, with the time at which they stop counting."""
        self._ends: list[tuple[int, str]] = []
        """The same pods, sorted by that time."""
        self._unconfirmed: set[str] = set()
        """Starting pods whose release the watch has not reported yet."""
        self.releases = array("q") if releases is None else releases
        """Release times, sorted."""
        self._counted: dict[str, int] = {}
        """Release times of starting pods."""
        self._in_doubt: dict[str, int] = {}
        """Starting pods with a release that got no response, and until when it may still happen."""
        self._answered: set[str] = set()
        """Pods of `_in_doubt` whose last release got a response."""
        self.recalled: set[str] = set()
        """Unconfirmed pods that got their slots in an earlier term."""
        self._alarm: tuple[str, int] | None = None

    @property
    def waiting(self) -> int:
        """The number of pods that wait for a slot."""
        return len(self._line)

    @property
    def is_quiet(self) -> bool:
        """Whether no pod waits or is starting."""
        return not (self._waiting or self._called or self.starting)

    # --- held pods -----------------------------------------------------------------------------

    def wait(self, uid: str, place: Place) -> None:
        """Add a pod to the queue; a known pod keeps its place, with these limits."""
        if uid in self.recalled:
            self.end(uid)
        for places in (self._called, self._waiting):
            if uid in places:
                rank, key, _ = places[uid]
                places[uid] = rank, key, place[2]
                return
        if uid not in self.starting:
            self._waiting[uid] = place
            insort(self._line, (place[0], uid))

    def take(self, uid: str, now_ms: int, until_ms: int) -> bool:
        """Assign a slot to a waiting or called pod if it is its turn; return whether it has one.

        The slot ends at `until_ms`. Otherwise, the pod waits. A pod whose release got no response
        keeps its slot.
        """
        if uid in self.starting:
            if uid not in self._answered:
                self._in_doubt[uid] = now_ms + LATE_MS
            self._answered.discard(uid)
            return True
        called_place = self._called.pop(uid, None)
        if called_place is not None:
            self.wait(uid, called_place)
        elif not self._line or self._line[0][1] != uid:
            return False
        if self._free_at(self._waiting[uid][2]) > now_ms:
            return False
        self._leave_line(uid)
        self._set_end(uid, until_ms)
        self._unconfirmed.add(uid)
        return True

    def recall(self) -> None:
        """Return called pods to the queue.

        Pods with a slot but without a confirmed release return to it with the next `wait`.
        """
        called, self._called = self._called, {}
        self._alarm = None  # its recheck may have come before all pods were known
        for uid, place in called.items():
            self.wait(uid, place)
        self.recalled = set(self._unconfirmed)

    def give_back(self, uid: str, now_ms: int) -> None:
        """Free the slot of a pod that was not released after all, and remove it from the queue.

        The pod keeps its slot while an earlier release, which got no response, may still happen.
        """
        if self._in_doubt.get(uid, now_ms) <= now_ms:
            self.end(uid)
        else:
            self._answered.add(uid)

    def leave(self, uid: str) -> None:
        """Remove a pod that is no longer held from the queue; a starting pod keeps its slot."""
        self._called.pop(uid, None)
        self._leave_line(uid)

    def turn_at(self, uid: str) -> int:
        """Return the time of a pod's turn: 0 for now, NEVER_MS if it depends on an event."""
        if uid in self._called or uid in self.starting:
            return 0
        if self._line and self._line[0][1] == uid:
            return self._free_at(self._waiting[uid][2])
        return NEVER_MS

    def calls(self, now_ms: int) -> Iterator[Call]:
        """Yield the pods whose turn it is, and the next pod if the time of its turn is known."""
        while self._line:
            uid = self._line[0][1]
            _, key, limits = place = self._waiting[uid]
            at_ms = self._free_at(limits)
            if at_ms <= now_ms:
                self._leave_line(uid)
                self._called[uid] = place
                yield key, 0
                continue
            if at_ms < NEVER_MS and self._alarm != (uid, at_ms):
                self._alarm = uid, at_ms
                yield key, at_ms
            return

    # --- released pods -------------------------------------------------------------------------

    def start(self, uid: str, until_ms: int) -> None:
        """Record that a pod is starting, even if another process released it.

        The end of a confirmed pod does not change, because users can write the release time.
        """
        self.leave(uid)
        if not self.is_confirmed(uid):
            self._set_end(uid, until_ms)

    def confirm(self, uid: str, released_ms: int, now_ms: int) -> None:
        """Record the time of a pod's release, once, unless it is more than a period ago."""
        self._unconfirmed.discard(uid)
        self.recalled.discard(uid)
        matters = self.period_ms > 0 and released_ms > now_ms - self.period_ms
        if matters and uid not in self._counted:
            self._counted[uid] = released_ms
            insort(self.releases, released_ms)

    def is_confirmed(self, uid: str) -> bool:
        """Return whether a pod is starting, and the watch has reported its release."""
        return uid in self.starting and uid not in self._unconfirmed

    def hold_again(self, uid: str) -> None:
        """Stop counting a held pod as starting.

        Another pod of the same name was released, or etcd was restored from a backup.
        """
        if self.is_confirmed(uid):
            self.retract(uid)
            self.end(uid)

    def retract(self, uid: str) -> None:
        """Drop the record of a release that did not happen, such as if a held pod was deleted."""
        released_ms = self._counted.pop(uid, None)
        if released_ms is not None and released_ms in self.releases:
            self.releases.remove(released_ms)

    def knows(self, uid: str) -> bool:
        """Return whether a pod waits or is starting."""
        return uid in self._waiting or uid in self._called or uid in self.starting

    def is_gone(self, uid: str, uids: Collection[str]) -> bool:
        """Return whether a starting pod is missing from a complete list.

        A pod that got its slot after the list began may be missing from it without being gone.
        """
        is_older = uid in self.recalled or self.is_confirmed(uid)
        return is_older and uid not in uids

    def end(self, uid: str) -> None:
        """Free the slot of a pod that is ready or gone."""
        self._drop_end(uid)
        self._unconfirmed.discard(uid)
        self.recalled.discard(uid)
        self._counted.pop(uid, None)
        self.leave(uid)

    def overdue(self, now_ms: int) -> list[str]:
        """Return the pods that have been starting for too long; the caller must end them."""
        self._prune(now_ms)
        return [uid for _, uid in self._ends[: bisect_left(self._ends, (now_ms + 1, ""))]]

    def _set_end(self, uid: str, until_ms: int) -> None:
        self._drop_end(uid)
        self.starting[uid] = until_ms
        insort(self._ends, (until_ms, uid))

    def _drop_end(self, uid: str) -> None:
        self._in_doubt.pop(uid, None)
        self._answered.discard(uid)
        until_ms = self.starting.pop(uid, None)
        if until_ms is not None:
            del self._ends[bisect_left(self._ends, (until_ms, uid))]

    def _free_at(self, limits: Limits) -> int:
        """Return when the next pod may be released: 0 for now, NEVER_MS if an event decides."""
        at_ms = 0
        called_count = len(self._called)
        if limits.starting is not None:
            excess = len(self.starting) + called_count - limits.starting + 1
            if excess > len(self.starting):
                return NEVER_MS
            if excess > 0:
                at_ms, _ = self._ends[excess - 1]
        if limits.releases is not None:
            free_releases = limits.releases - called_count - len(self._unconfirmed)
            if free_releases <= 0:
                # A release that the watch never reports ends with the pod's timeout.
                return min((self.starting[uid] for uid in self._unconfirmed), default=NEVER_MS)
            if len(self.releases) >= free_releases:
                at_ms = max(at_ms, self.releases[-free_releases] + limits.period_ms)
        return at_ms

    def _leave_line(self, uid: str) -> None:
        place = self._waiting.pop(uid, None)
        if place is not None:
            self._alarm = None
            del self._line[bisect_left(self._line, (place[0], uid))]

    def _prune(self, now_ms: int) -> None:
        """Drop releases that are more than a period ago.

        Releases in the future were recorded before the clock was set back; they count from now.
        """
        if self.releases and self.releases[-1] > now_ms + self.period_ms:
            self.releases = array("q", (min(at_ms, now_ms) for at_ms in self.releases))
            self._counted = {uid: min(at_ms, now_ms) for uid, at_ms in self._counted.items()}
        del self.releases[: bisect_left(self.releases, now_ms - self.period_ms + 1)]
