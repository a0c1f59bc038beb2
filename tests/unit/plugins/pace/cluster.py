"""A cluster of paced pods whose clock and watches are controlled by a test."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import NEVER_MS, RELEASED_ANNOTATION, Due
from holdfast.webhook.model.objects import Condition, ObjectKey, Pod, PodStatus
from holdfast.webhook.plugins.pace.args import KEY, NamedPace, PaceArgs
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.plugins.pace.slots import GATE
from tests.support.builders import CREATED_MS, handle_with, make_pod, read_pod
from tests.support.scripted import decider_of
from tests.support.vm_builders import owner_of

OWNER = owner_of("ReplicaSet", "web", "rs-1", api_version="apps/v1")
JVM = NamedPace(name="jvm", max_starting=4)


def plugin_of(*paces: NamedPace, handle: Handle | None = None) -> Pace:
    return Pace(PaceArgs(paces=paces), handle)


class Cluster:
    """Held pods and a controller that releases them, on a simulated millisecond clock.

    Pods become ready some time after their release. The watch reports changes with a lag, and the
    controller's clock is up to `uncertain` ms behind.
    """

    def __init__(self, *paces: NamedPace, seed: int = 0, uncertain: int = 5) -> None:
        self.random = random.Random(seed)
        self.paces = paces
        self.uncertain = uncertain
        self.now = CREATED_MS
        self.term = 0
        self.attempts = self.reports = True
        """Whether the controller attempts releases, and whether its watch reports changes."""
        self.becomes_ready: Callable[[str], bool] = lambda _uid: True
        """Whether a released pod becomes ready."""
        self.pods: dict[str, Pod] = {}
        self.released: list[tuple[int, str]] = []
        self.ready: dict[str, int] = {}
        self.events: list[str] = []
        self.stopped: list[Any] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.start()

    def start(self) -> None:
        """Replace the controller with a new one, which knows only the stored pods."""
        self._epoch = getattr(self, "_epoch", 0) + 1
        handle = handle_with(
            term=lambda: self.term,
            waiting=self,
            follow=self.follow,
            bounds_ms=lambda: (self.now - self.uncertain, self.now + self.uncertain),
            record_event=self.record_event,
        )
        self.plugin = plugin_of(*self.paces, handle=handle)
        self.decider = decider_of(self.plugin)
        self._due: dict[str, int] = {}
        for uid in self.held:
            self.observe(uid)

    # --- holdfast.webhook.framework.handle ---

    def record_event(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        assert warning
        self.events.append(f"{pod.metadata.name}: {reason}: {note}")

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        """Schedule another attempt to release a pod."""
        at_ms = max(self.now, at_ms + self.uncertain) + self.random.randint(0, 3)
        self.at(at_ms, self._in_epoch(lambda: self.attempt(key[1])))

    def follow(
        self, path: str, kind: Any, handler: Any, *, label_selector: str = "", **_: Any
    ) -> Any:
        assert (path, kind, label_selector) == ("/api/v1/pods", PacedPod, KEY)
        self.at(self.now + 20, self._in_epoch(lambda: handler.on_sync(self.stored())))
        return lambda: self.stopped.append(handler)

    def _in_epoch(self, action: Callable[[], None]) -> Callable[[], None]:
        epoch = self._epoch
        return lambda: action() if epoch == self._epoch else None

    # --- pods ---

    @property
    def held(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.gates]

    def create(self, uid: str, text: str, priority: int = 0, owner: str = "rs-1") -> None:
        owners = [owned_by(owner)] if owner else []
        document = make_pod({KEY: text}, gates=[GATE], name=uid, uid=uid, owners=owners)
        document["spec"]["priority"] = priority
        self.pods[uid] = Pod.of(document)
        self.observe(uid)
        self.report(uid)

    def change(self, uid: str, text: str) -> None:
        """Change the pace of a held pod."""
        self.pods[uid] = pod_of(uid, text, gates=[GATE])
        self.observe(uid)

    def observe(self, uid: str) -> None:
        """Schedule a pod for its due time, as the watch of held pods does."""
        due = self.decider.due(self.pods[uid])
        if due.at_ms < NEVER_MS:
            self.recheck(("default", uid), due.at_ms)

    def attempt(self, uid: str) -> None:
        if not self.attempts:
            return
        pod = self.pods.get(uid)
        if pod is None or not pod.gates:
            return
        now = self.now - self.uncertain
        due: Due | None = self.decider.permit(pod, now)
        if due is not None and due.at_ms <= now:
            due = self.decider.reserve(pod, now)
        if due is not None:
            if due.at_ms < NEVER_MS:
                self.recheck(pod.key, due.at_ms)
            return
        self.released.append((self.now, uid))
        annotations = {**pod.annotations, RELEASED_ANNOTATION: durations.canonical_instant(now)}
        owners = [owned_by(owner.uid) for owner in pod.metadata.owner_references or ()]
        self.pods[uid] = read_pod(annotations, name=uid, uid=uid, owners=owners)
        self.decider.forget(uid)
        self.report(uid)
        at_ms = self.now + self.random.randint(1_000, 5_000)
        if self.becomes_ready(uid):
            self.at(at_ms, lambda: self.make_ready(uid))

    def make_ready(self, uid: str) -> None:
        if uid in self.pods:
            self.ready[uid] = self.now
            self.report(uid)

    def delete(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.decider.forget(uid)
        deleted = paced_pod(pod, ready=False)
        self.at(self.now + 5, self._in_epoch(lambda: self.plugin.slots.on_delete(deleted)))

    def report(self, uid: str) -> None:
        """Have the watch of paced pods report a pod after a lag, in its state at that time."""
        if not self.reports:
            return

        def deliver() -> None:
            if uid in self.pods:
                self.plugin.slots.on_update(paced_pod(self.pods[uid], ready=uid in self.ready))

        self.at(self.now + self.random.randint(1, 30), self._in_epoch(deliver))

    def stored(self) -> list[PacedPod]:
        return [paced_pod(pod, ready=uid in self.ready) for uid, pod in self.pods.items()]

    # --- time ---

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_ms, self._number, action))

    def run(self, milliseconds: int = 10_000_000) -> None:
        """Run scheduled actions until none is left or the time is up."""
        end = self.now + milliseconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if milliseconds < 10_000_000:
            self.now = end

    # --- measurements ---

    def most_starting(self) -> int:
        """Return the largest number of pods that were starting at the same time."""
        changes = [(at, 1) for at, _ in self.released]
        changes += [(self.ready[uid], -1) for _, uid in self.released if uid in self.ready]
        highest = count = 0
        for _, change in sorted(changes):
            count += change
            highest = max(highest, count)
        return highest

    def shortest_interval(self, releases: int) -> int:
        """Return the shortest time between a release and the one `releases` later."""
        times = [at for at, _ in self.released]
        return min(b - a for a, b in zip(times, times[releases:], strict=False))


def owned_by(uid: str) -> Any:
    return owner_of("ReplicaSet", "web", uid, api_version="apps/v1")


def paced_pod(pod: Pod, *, ready: bool) -> PacedPod:
    status = PodStatus(conditions=[Condition("Ready", "True" if ready else "False")])
    return PacedPod(pod.metadata, pod.spec, status)


def pod_of(uid: str, text: str = "1", *, released: str = "", **fields: Any) -> Pod:
    """Return a pod of ReplicaSet `rs-1` with a pace, by default one without a gate."""
    annotations = {KEY: text} | ({RELEASED_ANNOTATION: released} if released else {})
    return read_pod(annotations, name=uid, uid=uid, owners=[owned_by("rs-1")], **fields)


SLOW = NamedPace(name="slow", rate="1/1h", scope="owner")
JVM_OF_ONE = NamedPace(name="jvm", max_starting=1)


def cluster_of(*uids: str, pace: str = "1", attempts: bool = True) -> Cluster:
    """Return a cluster with held pods of a pace; without attempts, only the test releases them."""
    cluster = Cluster()
    cluster.attempts = attempts
    cluster.now += 10
    for uid in uids:
        cluster.create(uid, pace)
        cluster.run(100)
    return cluster
