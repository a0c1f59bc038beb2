"""The slots of all paces, kept in sync with the pods that the API server reports."""

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
"""Event reason for a pod that is not ready in time."""


class _Found(NamedTuple):
    """Pods whose turn it is, and pods that have been starting for too long."""

    calls: list[Call]
    late: list[Pod]


class PaceSlots:
    """Assigns slots to waiting pods, and handles the watch of all paced pods. Thread-safe.

    All profiles of a process share one instance, because they share the slots of a pace.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._lock = threading.Lock()
        self._groups = PaceGroups(lambda: handle.bounds_ms()[0])
        self.add = self._groups.add
        self._members: dict[str, PaceMember] = {}
        self._held: set[str] = set()
        """Pods that have the gate, according to the watch."""
        self._ended: set[str] = set()
        """Pods that were ready or have ended, and will not be starting again. Deleted pods stay in
        this set until the next list."""
        self.watch: _Watch | None = None
        self._synced = False

    # --- held pods -----------------------------------------------------------------------------

    def wait(self, pod: Pod, due_ms: int) -> int:
        """Queue a pod, and return the time of its turn; NEVER_MS if that depends on an event."""
        self._follow()
        uid, now_ms = pod.metadata.uid, self.handle.bounds_ms()[0]
        notices = _Found([], [])
        with self._lock:
            if self._is_released(uid):
                return NEVER_MS
            group = self._line_up(pod, due_ms, now_ms, notices).group
            turn_ms = group.turn_at(uid) if self._synced else NEVER_MS
        # The return value calls this pod: a recheck would cut the back-off of its release short.
        self._call(notices._replace(calls=[call for call in notices.calls if call[0] != pod.key]))
        return turn_ms

    def take(self, pod: Pod, now_ms: int) -> int:
        """Assign a slot to a pod if it is its turn, and return the time of its turn like `wait`."""
        self._follow()
        uid, notices = pod.metadata.uid, _Found([], [])
        with self._lock:
            if self._is_released(uid):
                return NEVER_MS
            member = self._line_up(pod, now_ms, now_ms, notices)
            group = member.group
            has_slot = self._synced and group.take(uid, now_ms, now_ms + member.timeout_ms)
            self._settle(group, now_ms, notices)
            turn_ms = group.turn_at(uid) if self._synced else NEVER_MS
        self._call(notices)
        # If it did not get a slot although its turn has come, it was called just now.
        return turn_ms if has_slot or turn_ms > now_ms else NEVER_MS

    def _is_released(self, uid: str) -> bool:
        """Return whether the watch of paced pods has reported the release of a pod.

        If so, reports by the watch of held pods predate the release, unless the watch of paced pods
        then reports that the pod is held again, after a restore of etcd.
        """
        member = self._members.get(uid)
        is_confirmed = member is not None and member.group.is_confirmed(uid)
        return uid not in self._held and (uid in self._ended or is_confirmed)

    def _line_up(self, pod: Pod, due_ms: int, now_ms: int, notices: _Found) -> PaceMember:
        """Queue a pod, unless it has a slot that has not expired; return its entry."""
        old_member = self._members.get(pod.metadata.uid)
        if old_member is not None:
            self._settle(old_member.group, now_ms, notices)
            old_member.group.hold_again(pod.metadata.uid)
            self._groups.retire(old_member.group_key, old_member.group)
        member = self._member(pod, now_ms, notices)
        place = rank_of(pod, due_ms), pod.key, member.limits
        member.group.wait(pod.metadata.uid, place)
        self._settle(member.group, now_ms, notices)
        return member

    def give_back(self, uid: str) -> None:
        """Free the slot of a pod that is not released after all, and remove it from the queue."""
        self._change(uid, self._give_back)

    def _give_back(self, group: PaceGroup, uid: str) -> None:
        if not self._is_released(uid):
            group.give_back(uid, self.handle.bounds_ms()[0])

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        self._change(uid, self._leave)

    def _leave(self, group: PaceGroup, uid: str) -> None:
        """Remove a pod that is no longer held from the queue.

        If the watch of paced pods still reports the pod as held, another process may have released
        it. The pod then counts as starting until the watch reports more.
        """
        if uid in self._held and uid not in group.starting:
            earliest_ms, latest_ms = self.handle.bounds_ms()
            group.start(uid, earliest_ms + self._members[uid].timeout_ms)
            group.confirm(uid, latest_ms, earliest_ms)
        else:
            group.leave(uid)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of starting and waiting pods, by pace name or `inline`."""
        with self._lock:
            return self._groups.counts()

    # --- released pods: holdfast.webhook.kube.reflector.ResourceEventHandler -------------------

    def _follow(self) -> None:
        """Start to watch paced pods, with the first paced pod and in each new term as leader.

        The watch of a new leader may not have reported yet which pods the previous leader released.
        All pods are listed again, and no pod gets a slot until the list is complete.
        """
        term = self.handle.term()
        with self._lock:
            old_watch = self.watch
            if old_watch is not None and old_watch.term == term:
                return
            watch = self.watch = _Watch(self, term)
            self._synced = False
            self._groups.recall()
        if old_watch is not None:
            old_watch.stop()
        path = api_path("v1", "pods")
        watch.stop = self.handle.follow(path, PacedPod, watch, label_selector=KEY)

    def on_sync(self, pods: Iterable[PacedPod], watch: _Watch) -> None:
        """Replace all known pods with these, unless the watch was replaced."""
        uids = set()
        for pod in pods:
            if watch is not self.watch:
                return
            uids.add(pod.metadata.uid)
            self.on_update(pod)
        with self._lock:
            if watch is not self.watch:
                return
            self._synced = True
            deleted = self._held - uids
            self._held &= uids
            self._ended = self._ended & uids | deleted
            members = self._members.items()
            gone = [
                uid for uid, member in members if uid in deleted or member.group.is_gone(uid, uids)
            ]
            for uid in gone:
                self._members[uid].group.end(uid)
            recalled = [(member.pod, 0) for uid, member in members if uid in member.group.recalled]
            uid_by_group = {member.group_key: uid for uid, member in members}
        self._call(_Found(recalled, []))
        for uid in (*gone, *uid_by_group.values()):
            self._change(uid, _keep)

    def on_update(self, pod: PacedPod) -> None:
        """Handle a new or changed pod."""
        uid = pod.metadata.uid
        if GATE in pod.gates:
            (self.on_delete if pod.is_over else self._hold)(pod)
            return
        try:
            pace, _ = pace_args.read(pod, self._groups.paces)
        except InvalidValueError:
            self.on_delete(pod)  # it does not count for any pace
            return
        earliest_ms, latest_ms = self.handle.bounds_ms()
        recorded_ms = released_ms(pod.annotations, created_ms=pod.created_ms) or pod.created_ms
        recorded_ms = min(recorded_ms, latest_ms)  # users can write it
        notices = _Found([], [])
        with self._lock:
            if uid in self._ended:
                return
            member = self._member(pod, earliest_ms, notices)
            group, until_ms = member.group, recorded_ms + member.timeout_ms
            if group.is_confirmed(uid):
                until_ms = group.starting[uid]
            if not self._is_released(uid):
                group.confirm(uid, min(latest_ms, recorded_ms + LATE_MS), earliest_ms)
            self._held.discard(uid)
            is_over = not pod.is_starting(pace.until) or until_ms <= earliest_ms
            if is_over:
                self._ended.add(uid)
            else:
                group.start(uid, until_ms)
        self._call(notices)
        self._change(uid, PaceGroup.end if is_over else PaceGroup.leave)

    def _hold(self, pod: PacedPod) -> None:
        """Handle a pod that has the gate.

        If the watch had reported its release, etcd was restored from a backup: the pod waits again.
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
        """Handle a pod that was deleted, or no longer counts."""
        uid = pod.metadata.uid
        with self._lock:
            self._held.discard(uid)
            self._ended.add(uid)
            member = self._members.get(uid)
            if member is not None and GATE in pod.gates:
                member.group.retract(uid)
        self._change(uid, PaceGroup.end)

    # --- the groups ----------------------------------------------------------------------------

    def _member(self, pod: Pod, now_ms: int, notices: _Found) -> PaceMember:
        """Return a pod's entry; remove the pod from its old group if its pace was changed.

        Raises InvalidValueError.
        """
        uid = pod.metadata.uid
        old_member, member = self._members.get(uid), self._groups.find(pod)
        if old_member is not None and old_member.group is not member.group:
            old_member.group.end(uid)
            self._settle(old_member.group, now_ms, notices)
            self._groups.retire(old_member.group_key, old_member.group)
        self._members[uid] = member
        return member

    def _change(self, uid: str, change: Callable[[PaceGroup, str], None]) -> None:
        """Apply a change to a pod's group, and call the pods whose turn it is now."""
        notices = _Found([], [])
        with self._lock:
            member = self._members.get(uid)
            if member is None:
                return
            now_ms, _ = self.handle.bounds_ms()
            change(member.group, uid)
            if not member.group.knows(uid):
                del self._members[uid]
            self._settle(member.group, now_ms, notices)
            self._groups.retire(member.group_key, member.group)
        self._call(notices)

    def _settle(self, group: PaceGroup, now_ms: int, notices: _Found) -> None:
        """Free the slots of overdue pods; add late pods and pods whose turn it is to `notices`."""
        if not self._synced:
            return
        for uid in group.overdue(now_ms):
            # If not, the pod has only reserved its slot: its release got no response.
            was_released = self._is_released(uid)
            group.end(uid)
            member = self._members.pop(uid)
            if was_released:
                self._ended.add(uid)
                notices.late.append(Pod(member.named(uid)))
        notices.calls.extend(group.calls(now_ms))

    def _call(self, notices: _Found) -> None:
        """Recheck called pods, and record Events on late ones. Do not hold the lock."""
        for key, at_ms in notices.calls:
            self.handle.waiting.recheck(key, at_ms)
        for pod in notices.late:
            note = "not ready in time after its release: it no longer counts for its pace"
            self.handle.record_event(pod, TIMEOUT, note, warning=True)


def _keep(_group: PaceGroup, _uid: str) -> None:
    """Change nothing: `_change` still calls the pods whose turn it is."""


class _Watch:
    """The event handler of one watch, until another watch replaces it."""

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
