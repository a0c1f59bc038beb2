"""The pods of one pace: which of them start, and which wait for a slot. Pure.

Each pod is measured by its own limits: those of an owner's pods may be changed one after another.

All times are milliseconds since 1970. A release counts from the latest time at which it may have
happened, so that no two are closer together than the pace allows.
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
"""How long after the time that the pod records a release may have been carried out: the time that
its request may take, and a second."""
Rank = tuple[int, int, int]
"""The order in the line: due time, negative priority, creation."""
Place = tuple[Rank, ObjectKey, Limits]
"""A pod in the line, and what it asks for."""
Call = tuple[ObjectKey, int]
"""A pod whose turn it is, and the time of it; 0 for now."""


class PaceGroup:
    """The pods of one pace. Not thread-safe.

    A pod waits in the line, is called when it is its turn, and starts when it is released. Called
    pods have slots, too: they are about to be released, unless another plugin holds them.
    """

    def __init__(self, releases: array[int] | None = None) -> None:
        self.period_ms = 0
        """The longest period of its pods: so long, a release counts."""
        self._line: list[tuple[Rank, str]] = []
        self._waiting: dict[str, Place] = {}
        self._called: dict[str, Place] = {}
        self.starting: dict[str, int] = {}
        """Pods that are starting, with the time at which they no longer count."""
        self._ends: list[tuple[int, str]] = []
        """The same, in the order of these times."""
        self._unconfirmed: set[str] = set()
        """Those of them whose release has not been seen yet."""
        self.releases = array("q") if releases is None else releases
        """When pods were released, in order."""
        self._counted: dict[str, int] = {}
        """The releases of pods that are starting."""
        self._in_doubt: dict[str, int] = {}
        """Those of which a release had no answer, and until when it may be carried out."""
        self._answered: set[str] = set()
        """Those of them whose last release had an answer."""
        self.recalled: set[str] = set()
        """Unconfirmed pods that have their slots from an earlier term."""
        self._alarm: tuple[str, int] | None = None

    @property
    def waiting(self) -> int:
        """How many pods wait for a slot."""
        return len(self._line)

    @property
    def is_quiet(self) -> bool:
        """Whether no pod waits or is starting."""
        return not (self._waiting or self._called or self.starting)

    # --- held pods -----------------------------------------------------------------------------

    def wait(self, uid: str, place: Place) -> None:
        """Add a pod to the line; one that is known keeps its place, with these limits."""
        if uid in self.recalled:
            self.end(uid)
        for known in (self._called, self._waiting):
            if uid in known:
                rank, key, _ = known[uid]
                known[uid] = rank, key, place[2]
                return
        if uid not in self.starting:
            self._waiting[uid] = place
            insort(self._line, (place[0], uid))

    def take(self, uid: str, now_ms: int, until_ms: int) -> bool:
        """Give a pod that waits or was called a slot, if it is its turn, until it has to be ready.

        Otherwise it waits. One whose release had no answer keeps its slot.
        """
        if uid in self.starting:
            if uid not in self._answered:
                self._in_doubt[uid] = now_ms + LATE_MS
            self._answered.discard(uid)
            return True
        was_called = self._called.pop(uid, None)
        if was_called is not None:
            self.wait(uid, was_called)
        elif not self._line or self._line[0][1] != uid:
            return False
        if self._free_at(self._waiting[uid][2]) > now_ms:
            return False
        self._leave_line(uid)
        self._set_end(uid, until_ms)
        self._unconfirmed.add(uid)
        return True

    def recall(self) -> None:
        """Put the pods that were called back into the line.

        Those with a slot whose release has not been seen get there when they are asked about.
        """
        called, self._called = self._called, {}
        self._alarm = None  # the pod may have been asked about before all pods were known
        for uid, place in called.items():
            self.wait(uid, place)
        self.recalled = set(self._unconfirmed)

    def give_back(self, uid: str, now_ms: int) -> None:
        """Take the slot of a pod that was not released after all; it leaves the line as well.

        It keeps the slot while an earlier release, which had no answer, may still be carried out.
        """
        if self._in_doubt.get(uid, now_ms) <= now_ms:
            self.end(uid)
        else:
            self._answered.add(uid)

    def leave(self, uid: str) -> None:
        """Drop a pod that is no longer held; one that is starting keeps its slot."""
        self._called.pop(uid, None)
        self._leave_line(uid)

    def turn_at(self, uid: str) -> int:
        """Return when it is a pod's turn: 0 for now, NEVER_MS until an event."""
        if uid in self._called or uid in self.starting:
            return 0
        if self._line and self._line[0][1] == uid:
            return self._free_at(self._waiting[uid][2])
        return NEVER_MS

    def calls(self, now_ms: int) -> Iterator[Call]:
        """Call the pods whose turn it is; the next one may get a time instead."""
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
        """Record that a pod is starting; another process may have released it.

        The end of a known one does not change: users may write the time of its release.
        """
        self.leave(uid)
        if not self.is_confirmed(uid):
            self._set_end(uid, until_ms)

    def confirm(self, uid: str, released_ms: int, now_ms: int) -> None:
        """Record when a pod was released, once, if that is not too long ago to matter."""
        self._unconfirmed.discard(uid)
        self.recalled.discard(uid)
        matters = self.period_ms > 0 and released_ms > now_ms - self.period_ms
        if matters and uid not in self._counted:
            self._counted[uid] = released_ms
            insort(self.releases, released_ms)

    def is_confirmed(self, uid: str) -> bool:
        """Return whether a pod is starting, and its release has been seen."""
        return uid in self.starting and uid not in self._unconfirmed

    def hold_again(self, uid: str) -> None:
        """End a pod that counts as starting although it is held.

        Another pod of its name was released, or a backup of etcd was restored.
        """
        if self.is_confirmed(uid):
            self.retract(uid)
            self.end(uid)

    def retract(self, uid: str) -> None:
        """Drop the record of a release that was none: the pod was deleted while it was held."""
        released_ms = self._counted.pop(uid, None)
        if released_ms is not None and released_ms in self.releases:
            self.releases.remove(released_ms)

    def knows(self, uid: str) -> bool:
        """Return whether a pod waits or is starting."""
        return uid in self._waiting or uid in self._called or uid in self.starting

    def is_gone(self, uid: str, seen: Collection[str]) -> bool:
        """Return whether a pod that was starting is not among all that there are.

        One that has got its slot since the list began may be missing in it.
        """
        is_older = uid in self.recalled or self.is_confirmed(uid)
        return is_older and uid not in seen

    def end(self, uid: str) -> None:
        """Free the slot of a pod that is ready, or gone."""
        self._drop_end(uid)
        self._unconfirmed.discard(uid)
        self.recalled.discard(uid)
        self._counted.pop(uid, None)
        self.leave(uid)

    def overdue(self, now_ms: int) -> list[str]:
        """Return the pods that have been starting for too long, and are to be ended."""
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
        """Return when the next pod may be released: 0 for now, NEVER_MS until an event."""
        at_ms = 0
        coming = len(self._called)
        if limits.starting is not None:
            over = len(self.starting) + coming - limits.starting + 1
            if over > len(self.starting):
                return NEVER_MS
            if over > 0:
                at_ms, _ = self._ends[over - 1]
        if limits.releases is not None:
            free = limits.releases - coming - len(self._unconfirmed)
            if free <= 0:
                # A release that no watch ever reports ends with its time.
                return min((self.starting[uid] for uid in self._unconfirmed), default=NEVER_MS)
            if len(self.releases) >= free:
                at_ms = max(at_ms, self.releases[-free] + limits.period_ms)
        return at_ms

    def _leave_line(self, uid: str) -> None:
        known = self._waiting.pop(uid, None)
        if known is not None:
            self._alarm = None
            del self._line[bisect_left(self._line, (known[0], uid))]

    def _prune(self, now_ms: int) -> None:
        """Drop releases that are more than a period ago.

        Those in the future were recorded before the clock was set back: they are now.
        """
        if self.releases and self.releases[-1] > now_ms + self.period_ms:
            self.releases = array("q", (min(at_ms, now_ms) for at_ms in self.releases))
            self._counted = {uid: min(at_ms, now_ms) for uid, at_ms in self._counted.items()}
        del self.releases[: bisect_left(self.releases, now_ms - self.period_ms + 1)]
