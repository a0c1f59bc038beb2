"""The objects that held pods wait for, watched by the controller while any pod needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from holdfast.webhook.framework.handle import Follow, WaitingPods
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.after import conditions as after_conditions
from holdfast.webhook.plugins.after.conditions import WaitedObject, service_of
from holdfast.webhook.plugins.after.targets import SERVICE, WaitedKind, WaitedTarget

IDLE_SECONDS = 300.0
"""Minimum time that a kind is still watched after the last pod stopped waiting for it."""
SETTLED_SECONDS = 60.0
"""Time after which the controller also knows a waiting pod."""

MAX_INDEXED = 4
"""Maximum number of objects for which a pod is indexed; the next ones follow when these are met.
Each takes up to 1.3 KB, and a user may create pods that wait for 32."""

_Pods = dict[str, ObjectKey]
"""Pods that wait for one object, by UID."""


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The objects that a pod still waits for, and the problems with them."""

    unmet: Sequence[WaitedTarget]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class _WaitingPod:
    key: ObjectKey
    targets: tuple[WaitedTarget, ...]
    since: float


class ObjectIndex:
    """An index of pods by the objects that they wait for. `now` is in seconds. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._kinds: dict[WaitedKind, _FollowedKind] = {}
        self._pods: dict[str, _WaitingPod] = {}

    def obstacles(
        self, pod: Pod, targets: tuple[WaitedTarget, ...], waiting: WaitingPods, follow: Follow
    ) -> Obstacles:
        """Return what a pod still waits for, and have the pod rechecked when that changes."""
        uid, key = pod.metadata.uid, pod.key
        namespace = key[0]
        new_kinds: list[_FollowedKind] = []
        with self._lock:
            self._drop(uid)
            for target in targets:
                if target.kind not in self._kinds:
                    new_kind = _FollowedKind(target.kind, self, waiting, idle_since=self.now())
                    self._kinds[target.kind] = new_kind
                    new_kinds.append(new_kind)
            kinds = [self._kinds[target.kind] for target in targets]
            pairs = [(kind, target) for kind, target in zip(kinds, targets, strict=True)]
            unmet = [target for kind, target in pairs if not kind.is_met(namespace, target)]
            if unmet:
                indexed = tuple(dict.fromkeys([*unmet, *targets]))[:MAX_INDEXED]
                self._pods[uid] = _WaitingPod(key, indexed, self.now())
                for target in indexed:
                    self._kinds[target.kind].add(namespace, target, uid, key)
            problems = [kind.problem_of(namespace, target) for kind, target in pairs]
        for kind in new_kinds:
            path = kind.kind.path()
            kind.stop = follow(path, WaitedObject, kind, on_unreadable=kind.on_unreadable)
        return Obstacles(unmet, [*dict.fromkeys(filter(None, problems))])

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        with self._lock:
            self._drop(uid)

    def change(self, kind: _FollowedKind, act: Callable[[], Iterable[_Pods]]) -> None:
        """Apply a change to the state of a kind, and recheck the affected pods."""
        with self._lock:
            affected = dict(chain.from_iterable(pods.items() for pods in act()))
            if kind.is_idle() and self._kinds.get(kind.kind) is kind:
                del self._kinds[kind.kind]
                kind.stop()
        for key in affected.values():
            kind.waiting.recheck(key)

    def prune(self, waiting: WaitingPods) -> None:
        """Drop pods that were added when they were no longer held."""
        cutoff = self.now() - SETTLED_SECONDS
        with self._lock:
            settled = [(uid, pod.key) for uid, pod in self._pods.items() if pod.since < cutoff]
        for uid, key in settled:
            if waiting.get(key) is None:
                self.forget(uid)

    def _drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            for target in pod.targets:
                self._kinds[target.kind].discard(pod.key[0], target, uid)


@dataclass(eq=False)
class _FollowedKind:
    """The state of all objects of a kind, as a ResourceEventHandler.

    Guarded by the index's lock.
    """

    kind: WaitedKind
    index: ObjectIndex
    waiting: WaitingPods
    stop: Callable[[], None] = lambda: None
    states: dict[ObjectKey, frozenset[str]] = field(default_factory=dict)
    services: dict[ObjectKey, ObjectKey] = field(default_factory=dict)
    """The Service of each slice."""
    problem: str = ""
    pods: dict[ObjectKey, dict[WaitedTarget, _Pods]] = field(default_factory=dict)
    idle_since: float | None = None

    # --- pods ----------------------------------------------------------------------------------

    def is_met(self, namespace: str, target: WaitedTarget) -> bool:
        return after_conditions.is_met(target, self.states.get((namespace, target.name)))

    def problem_of(self, namespace: str, target: WaitedTarget) -> str:
        state = self.states.get((namespace, target.name))
        if after_conditions.has_failed(target, state):
            return f"{target.kind.name}/{target.name} has failed"
        return self.problem

    def add(self, namespace: str, target: WaitedTarget, uid: str, pod: ObjectKey) -> None:
        pods_by_target = self.pods.setdefault((namespace, target.name), {})
        pods_by_target.setdefault(target, {})[uid] = pod
        self.idle_since = None

    def discard(self, namespace: str, target: WaitedTarget, uid: str) -> None:
        key = namespace, target.name
        pods_by_target = self.pods[key]
        del pods_by_target[target][uid]
        if not pods_by_target[target]:
            del pods_by_target[target]
        if not pods_by_target:
            del self.pods[key]
        if not self.pods:
            self.idle_since = self.index.now()

    def is_idle(self) -> bool:
        """Return whether no pod has waited for the kind for `IDLE_SECONDS`."""
        since = self.idle_since
        return since is not None and self.index.now() - since >= IDLE_SECONDS

    # --- objects -------------------------------------------------------------------------------

    def on_sync(self, objects: Iterable[WaitedObject]) -> None:
        """Replace all known objects with these."""
        states: dict[ObjectKey, frozenset[str]] = {}
        services: dict[ObjectKey, ObjectKey] = {}
        for obj in objects:
            after_conditions.update(states, self.kind, obj)
            if self.kind is SERVICE:
                services[obj.metadata.namespace, obj.metadata.name] = service_of(obj)

        def act() -> Iterable[_Pods]:
            old_states, self.states = self.states, states
            self.services = services
            is_namespaced = all(namespace for namespace, _ in states)
            yield from self._set_problem("" if is_namespaced else self._not_namespaced())
            for key in self.pods:
                yield from self._affected(key, old_states.get(key))

        self.index.change(self, act)
        self.index.prune(self.waiting)

    def on_update(self, one: WaitedObject) -> None:
        """Handle a new or changed object."""
        self._update(one, deleted=False)

    def on_delete(self, one: WaitedObject) -> None:
        """Handle a deleted object."""
        self._update(one, deleted=True)

    def on_unreadable(self, reason: str) -> None:
        """Handle a kind whose objects cannot be listed, or that is not served."""

        def act() -> Iterable[_Pods]:
            self.states = {}
            return self._set_problem(reason)

        self.index.change(self, act)

    def _update(self, obj: WaitedObject, *, deleted: bool) -> None:
        def act() -> Iterable[_Pods]:
            if self.kind is SERVICE:
                yield from self._move(obj, deleted=deleted)
            key, old_state = after_conditions.update(self.states, self.kind, obj, deleted=deleted)
            yield from self._affected(key, old_state)
            if not key[0]:
                yield from self._set_problem(self._not_namespaced())

        self.index.change(self, act)

    def _move(self, obj: WaitedObject, *, deleted: bool) -> Iterable[_Pods]:
        """Drop a slice from its former Service when its label changes."""
        key, service = (obj.metadata.namespace, obj.metadata.name), service_of(obj)
        old_service = self.services.pop(key, service)
        if not deleted:
            self.services[key] = service
        if old_service != service:
            old_state = after_conditions.drop_slice(self.states, old_service, obj)
            yield from self._affected(old_service, old_state)

    def _not_namespaced(self) -> str:
        return f"{self.kind.path()} is not namespaced"

    def _set_problem(self, problem: str) -> Iterable[_Pods]:
        """Set the problem; return all pods if it has changed."""
        has_changed, self.problem = self.problem != problem, problem
        return [
            pods for by_target in self.pods.values() for pods in by_target.values() if has_changed
        ]

    def _affected(self, key: ObjectKey, old_state: frozenset[str] | None) -> Iterable[_Pods]:
        """Yield the pods that a change of an object affects."""
        state = self.states.get(key)
        for target, pods in self.pods.get(key, {}).items():
            if any(
                test(target, old_state) != test(target, state)
                for test in (after_conditions.is_met, after_conditions.has_failed)
            ):
                yield pods
