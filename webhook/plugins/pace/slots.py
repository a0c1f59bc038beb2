"""The slots of all paces: which pods have one, in step with what the API server reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.model.annotations import NEVER_MS, released_ms
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import KEY
from holdfast.webhook.plugins.pace.group import LATE_MS, Call, PaceGroup
from holdfast.webhook.plugins.pace.groups import PacedPod, PaceGroups, PaceMember, rank_of

GATE = KEY
TIMEOUT = "PaceTimeout"
"""The reason of the Event on a pod that is not ready in time."""


class _Found(NamedTuple):
    """The pods whose turn it is, and those that have been starting for too long."""

    calls: list[Call]
    late: list[Pod]


class PaceSlots:
    """Gives slots to pods that wait; the handler of the watch of all paced pods. Thread-safe.

    All profiles of a process share it, so that a pace has its slots once.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._lock = threading.Lock()
        self._groups = PaceGroups(lambda: handle.bounds_ms()[0])
        self.add = self._groups.add
        self._members: dict[str, PaceMember] = {}
        self._held: set[str] = set()
        """Pods that have the gate, as the watch last reported."""
        self._ended: set[str] = set()
        """Pods that have been ready, or have ended: they will not be starting again. Those that
        were deleted stay until the next list."""
        self.watch: _Watch | None = None
        self._synced = False

    # --- held pods -----------------------------------------------------------------------------

    def wait(self, pod: Pod, due_ms: int) -> int:
        """Have a pod wait in the line; return when it is its turn, NEVER_MS until an event."""
        self._follow()
        uid, now_ms = pod.metadata.uid, self.handle.bounds_ms()[0]
        found = _Found([], [])
        with self._lock:
            if self._is_released(uid):
                return NEVER_MS
            group = self._line_up(pod, due_ms, now_ms, found).group
            turn_ms = group.turn_at(uid) if self._synced else NEVER_MS
        # The answer is its own call: another one would cut the back-off of its release short.
        self._call(found._replace(calls=[one for one in found.calls if one[0] != pod.key]))
        return turn_ms

    def take(self, pod: Pod, now_ms: int) -> int:
        """Give a pod a slot if it is its turn; otherwise return when it is, as `wait` does."""
        self._follow()
        uid, found = pod.metadata.uid, _Found([], [])
        with self._lock:
            if self._is_released(uid):
                return NEVER_MS
            member = self._line_up(pod, now_ms, now_ms, found)
            group = member.group
            taken = self._synced and group.take(uid, now_ms, now_ms + member.timeout_ms)
            self._settle(group, now_ms, found)
            turn_ms = group.turn_at(uid) if self._synced else NEVER_MS
        self._call(found)
        return turn_ms if taken or turn_ms > now_ms else NEVER_MS  # it has just been called

    def _is_released(self, uid: str) -> bool:
        """Return whether the watch of the paced pods has reported that a pod was released.

        Until that watch reports that the pod is held again, after a restore of etcd, a report of
        the watch of held pods is from before the release.
        """
        member = self._members.get(uid)
        is_confirmed = member is not None and member.group.is_confirmed(uid)
        return uid not in self._held and (uid in self._ended or is_confirmed)

    def _line_up(self, pod: Pod, due_ms: int, now_ms: int, found: _Found) -> PaceMember:
        """Have a pod wait in the line, unless it has a slot whose time is not over."""
        known = self._members.get(pod.metadata.uid)
        if known is not None:
            self._settle(known.group, now_ms, found)
            known.group.hold_again(pod.metadata.uid)
            self._groups.retire(known.group_key, known.group)
        member = self._member(pod, now_ms, found)
        place = rank_of(pod, due_ms), pod.key, member.limits
        member.group.wait(pod.metadata.uid, place)
        self._settle(member.group, now_ms, found)
        return member

    def give_back(self, uid: str) -> None:
        """Take the slot of a pod that is not released after all; it leaves the line as well."""
        self._change(uid, self._give_back)

    def _give_back(self, group: PaceGroup, uid: str) -> None:
        if not self._is_released(uid):
            group.give_back(uid, self.handle.bounds_ms()[0])

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        self._change(uid, self._leave)

    def _leave(self, group: PaceGroup, uid: str) -> None:
        """Let a pod leave the line; another process may have released it.

        That is so if the watch of the paced pods still says that it is held; it will report more.
        """
        if uid in self._held and uid not in group.starting:
            earliest_ms, latest_ms = self.handle.bounds_ms()
            group.start(uid, earliest_ms + self._members[uid].timeout_ms)
            group.confirm(uid, latest_ms, earliest_ms)
        else:
            group.leave(uid)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Count the pods that start and that wait, by the name of the pace, or `inline`."""
        with self._lock:
            return self._groups.counts()

    # --- released pods: holdfast.webhook.kube.reflector.ResourceEventHandler -------------------

    def _follow(self) -> None:
        """Watch the paced pods from now on; only if there are any.

        The watch of a process that begins to lead may not have reported yet what the leader before
        has released: then all are listed again, and no pod gets a slot until that is done.
        """
        term = self.handle.term()
        with self._lock:
            before = self.watch
            if before is not None and before.term == term:
                return
            watch = self.watch = _Watch(self, term)
            self._synced = False
            self._groups.recall()
        if before is not None:
            before.stop()
        path = api_path("v1", "pods")
        watch.stop = self.handle.follow(path, PacedPod, watch, label_selector=KEY)

    def on_sync(self, pods: Iterable[PacedPod], watch: _Watch) -> None:
        """Take these pods, and no others, as all there are."""
        seen = set()
        for pod in pods:
            if watch is not self.watch:
                return
            seen.add(pod.metadata.uid)
            self.on_update(pod)
        with self._lock:
            if watch is not self.watch:
                return
            self._synced = True
            deleted = self._held - seen
            self._held &= seen
            self._ended = self._ended & seen | deleted
            members = self._members.items()
            gone = [uid for uid, one in members if uid in deleted or one.group.is_gone(uid, seen)]
            for uid in gone:
                self._members[uid].group.end(uid)
            recalled = [(one.pod, 0) for uid, one in members if uid in one.group.recalled]
            each_group = {one.group_key: uid for uid, one in members}
        self._call(_Found(recalled, []))
        for uid in (*gone, *each_group.values()):
            self._change(uid, _keep)

    def on_update(self, pod: PacedPod) -> None:
        """Take a pod that is new or has changed."""
        uid = pod.metadata.uid
        if GATE in pod.gates:
            (self.on_delete if pod.is_over else self._hold)(pod)
            return
        try:
            named, _ = pace_args.read(pod, self._groups.paces)
        except InvalidValueError:
            self.on_delete(pod)  # it counts for no pace
            return
        earliest_ms, latest_ms = self.handle.bounds_ms()
        recorded_ms = released_ms(pod.annotations, created_ms=pod.created_ms) or pod.created_ms
        recorded_ms = min(recorded_ms, latest_ms)  # users may write it
        found = _Found([], [])
        with self._lock:
            if uid in self._ended:
                return
            member = self._member(pod, earliest_ms, found)
            group, until_ms = member.group, recorded_ms + member.timeout_ms
            if group.is_confirmed(uid):
                until_ms = group.starting[uid]
            if not self._is_released(uid):
                group.confirm(uid, min(latest_ms, recorded_ms + LATE_MS), earliest_ms)
            self._held.discard(uid)
            is_over = not pod.is_starting(named.until) or until_ms <= earliest_ms
            if is_over:
                self._ended.add(uid)
            else:
                group.start(uid, until_ms)
        self._call(found)
        self._change(uid, PaceGroup.end if is_over else PaceGroup.leave)

    def _hold(self, pod: PacedPod) -> None:
        """Take a pod that has the gate.

        If the watch had reported its release, a backup of etcd was restored: it waits again.
        """
        uid = pod.metadata.uid
        with self._lock:
            was_released = self._is_released(uid)
            self._held.add(uid)
            self._ended.discard(uid)
        if was_released:
            self._change(uid, PaceGroup.hold_again)
            self._call(_Found([(pod.key, 0)], []))

    def on_delete(self, pod: PacedPod) -> None:
        """Take a pod that is gone."""
        uid = pod.metadata.uid
        with self._lock:
            self._held.discard(uid)
            self._ended.add(uid)
            member = self._members.get(uid)
            if member is not None and GATE in pod.gates:
                member.group.retract(uid)
        self._change(uid, PaceGroup.end)

    # --- the groups ----------------------------------------------------------------------------

    def _member(self, pod: Pod, now_ms: int, found: _Found) -> PaceMember:
        """Return a pod's entry; if its pace was changed, it leaves its group.

        Raises InvalidValueError.
        """
        uid = pod.metadata.uid
        known, member = self._members.get(uid), self._groups.find(pod)
        if known is not None and known.group is not member.group:
            known.group.end(uid)
            self._settle(known.group, now_ms, found)
            self._groups.retire(known.group_key, known.group)
        self._members[uid] = member
        return member

    def _change(self, uid: str, change: Callable[[PaceGroup, str], None]) -> None:
        """Change what is known of a pod, and call those whose turn it is now."""
        found = _Found([], [])
        with self._lock:
            member = self._members.get(uid)
            if member is None:
                return
            now_ms, _ = self.handle.bounds_ms()
            change(member.group, uid)
            if not member.group.knows(uid):
                del self._members[uid]
            self._settle(member.group, now_ms, found)
            self._groups.retire(member.group_key, member.group)
        self._call(found)

    def _settle(self, group: PaceGroup, now_ms: int, found: _Found) -> None:
        """Free the slots of pods that take too long, and call those whose turn it is."""
        if not self._synced:
            return
        for uid in group.overdue(now_ms):
            # Otherwise, the pod has only reserved its slot: its release had no answer.
            was_released = self._is_released(uid)
            group.end(uid)
            member = self._members.pop(uid)
            if was_released:
                self._ended.add(uid)
                found.late.append(Pod(member.named(uid)))
        found.calls.extend(group.calls(now_ms))

    def _call(self, found: _Found) -> None:
        """Report what `_settle` has found, without the lock."""
        for key, at_ms in found.calls:
            self.handle.waiting.recheck(key, at_ms)
        for pod in found.late:
            note = "not ready in time after its release: it no longer counts for its pace"
            self.handle.record_event(pod, TIMEOUT, note, warning=True)


def _keep(_group: PaceGroup, _uid: str) -> None:
    """Change nothing: `_change` still calls the pods whose turn it is."""


class _Watch:
    """The handler of one watch, until another one replaces it."""

    def __init__(self, slots: PaceSlots, term: int) -> None:
        self._slots, self.term = slots, term
        self.stop: Callable[[], None] = lambda: None

    def on_sync(self, pods: Iterable[PacedPod]) -> None:
        self._slots.on_sync(pods, self)

    def on_update(self, pod: PacedPod) -> None:
        if self._slots.watch is self:
            self._slots.on_update(pod)

    def on_delete(self, pod: PacedPod) -> None:
        if self._slots.watch is self:
            self._slots.on_delete(pod)
