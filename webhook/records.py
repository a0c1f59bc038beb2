"""Settling the pods of one VMI: reads afresh what decides, writes the VM's record, frees the pods.

Each patch tests the object's uid and resourceVersion. Where one fails because the object changed,
everything is read and decided again, at once; where others refuse it, it is tried again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from webhook import discovery, landings, vms
from webhook.cluster import JSON_PATCH, PATIENT_TIMEOUT, Api, pod_path
from webhook.errors import ApiStatusError, ClusterError, UnreachableError
from webhook.landings import Change, Scene
from webhook.objects import Metadata, Names, OwnerReference, Pod
from webhook.patch import pointer
from webhook.review import Operation
from webhook.vms import Instance, LauncherPod, Migration, StickyArgs, VirtualMachine

TIMEOUT = 10.0
"""Seconds for one request: one that hangs is better asked for again. A write of what failed before
has as long as admission may take (`webhook.cluster.PATIENT_TIMEOUT`)."""
ATTEMPTS = 8
"""Patches tried at once while other writers keep changing an object; then it backs off."""
CURE = "bind the ClusterRole holdfast-controller-kubevirt of the manifests to the controller"
"""What to do where the controller may not read or write KubeVirt's objects."""

_FORBIDDEN, _NOT_FOUND = 403, 404
_REFUSALS = frozenset({400, 403, 409, 422})
"""What a failed test of ours and the refusals of other webhooks and policies are answered with."""

Settings = Callable[[Pod], StickyArgs | None]
"""Gives the arguments that hold for a pod, or None where sticky VMs are not enabled for it."""
T = TypeVar("T", LauncherPod, Instance, VirtualMachine, Migration)


class _Migrations(msgspec.Struct):
    items: list[Migration] | None = None


@dataclass(slots=True)
class Settled:
    """What came of an attempt.

    `change` and `node` tell of the VM's record; `freed` lost their finalizer, `waiting` keep it.
    `problem` says why to try again, `retry_after` in how many seconds at the earliest, where the
    server asked for that.
    """

    vm: VirtualMachine | None = None
    args: StickyArgs | None = None
    change: Change = Change.NONE
    node: str = ""
    freed: list[LauncherPod] = field(default_factory=list)
    waiting: Sequence[LauncherPod] = ()
    remark: str = ""
    problem: str = ""
    retry_after: float | None = None


class Records:
    """Settles one VMI at a time. Safe to call from several threads."""

    def __init__(self, api: Api, settings: Settings, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._settings = settings
        self._may_write = may_write

    def settle(self, key: Names, pods: Sequence[LauncherPod], *, patient: bool = False) -> Settled:
        """Settle a VMI and its held pods, as far as can be. Never raises for a cluster's sake.

        `patient` gives each write the time that its admission may take at most.
        """
        settled = Settled()
        try:
            self._settle(key, pods, settled, PATIENT_TIMEOUT if patient else TIMEOUT)
        except ClusterError as exc:
            cure = f" ({CURE})" if getattr(exc, "status", 0) == _FORBIDDEN else ""
            settled.problem = f"{exc}{cure}"
            settled.retry_after = getattr(exc, "retry_after", None)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as exc:
            settled.problem = f"an answer cannot be read: {exc}"
        return settled

    def read_pod(self, key: Names) -> LauncherPod | None:
        """Read a pod afresh; None where there is none. Raises ClusterError."""
        return self._read(LauncherPod, pod_path(*key))

    def _settle(
        self, key: Names, pods: Sequence[LauncherPod], settled: Settled, timeout: float
    ) -> None:
        for _ in range(ATTEMPTS):
            scene = self._scene(key, pods)
            decision = landings.decide(scene)
            settled.vm, settled.args = scene.vm, scene.args
            settled.waiting, settled.remark = decision.waiting, decision.remark
            if scene.vm is not None and decision.annotations:
                path, operations = vms.vm_path(*scene.vm.key), _annotate(scene.vm, decision)
                if not self._patch(path, scene.vm.metadata, operations, timeout):
                    continue
                settled.change = decision.change
            settled.node = decision.node
            changed = [pod for pod in decision.free if not self._free(pod, settled, timeout)]
            if not changed:
                return
            fresh = [self.read_pod(pod.key) for pod in changed]
            pods = [*decision.waiting, *(pod for pod in fresh if pod is not None and pod.is_held)]
        raise UnreachableError(f"{ATTEMPTS} patches in a row met a change of the VM or its pods")

    # --- reading -------------------------------------------------------------------------------

    def _scene(self, key: Names, pods: Sequence[LauncherPod]) -> Scene:
        """Read what decides about a VMI: its pods are known, then migrations, VMI, VM, in order.

        In that order nothing that is read can be older than what led to it.
        """
        launchers = [pod for pod in pods if landings.may_land(pod)]
        args = next(filter(None, map(self._settings, launchers)), None)
        if pods and (not launchers or args is None):
            off = bool(launchers)  # else the pods are none that a VM could land in
            return Scene(pods, None, None, {}, None if off else StickyArgs())
        jobs = self._jobs(launchers)
        instance = self._read(Instance, vms.vmi_path(*key))
        if instance is None:
            return Scene(pods, None, None, jobs, args or StickyArgs())
        args = args or self._settings(vms.pod_of(instance))
        owner = vms.controller_of(instance.metadata, vms.VM)
        vm = None if owner is None else self._vm(key[0], owner)
        return Scene(pods, instance, vm, jobs, args)

    def _vm(self, namespace: str, owner: OwnerReference) -> VirtualMachine | None:
        vm = self._read(VirtualMachine, vms.vm_path(namespace, owner.name))
        return vm if vm is not None and vm.metadata.uid == owner.uid else None

    def _jobs(self, pods: Sequence[LauncherPod]) -> Mapping[str, Migration]:
        """Read the migrations that made these pods, as far as they still exist."""
        found: dict[str, Migration] = {}
        for pod in pods:
            uid = pod.labels.get(vms.MIGRATION_JOB)
            if uid is None or uid in found:
                continue
            name = pod.annotations.get(vms.MIGRATION_NAME, "")
            namespace = pod.metadata.namespace
            one = self._read(Migration, vms.migration_path(namespace, name)) if name else None
            candidates = [one] if one is not None else self._migrations(namespace)
            found |= {each.metadata.uid: each for each in candidates if each.metadata.uid == uid}
        return found

    def _migrations(self, namespace: str) -> Sequence[Migration]:
        """List them: the annotation that names one can be missing, or be wrong."""
        path = vms.migration_path(namespace, "")
        try:
            answer = self._api.request("GET", path, timeout=TIMEOUT)
        except ApiStatusError as exc:
            if self._is_gone(path, exc):
                return ()
            raise
        return msgspec.json.decode(answer, type=_Migrations).items or ()

    def _read(self, kind: type[T], path: str) -> T | None:
        try:
            return msgspec.json.decode(self._api.request("GET", path, timeout=TIMEOUT), type=kind)
        except ApiStatusError as exc:
            if self._is_gone(path, exc):
                return None
            raise

    def _is_gone(self, path: str, exc: ApiStatusError) -> bool:
        """Tell whether there is no such object: by Kubernetes' own word, or for want of KubeVirt.

        A 404 of anybody in between says neither: by it a landing would be lost. Raises
        ClusterError where the API server cannot be asked whether there is KubeVirt.
        """
        if exc.is_not_found:
            return True
        if exc.status != _NOT_FOUND or not path.startswith(vms.API_PATH):
            return False
        _, resource, *_ = path.removeprefix(f"{vms.API_PATH}/namespaces/").split("/")
        return not discovery.serves(self._api, resource, timeout=TIMEOUT)

    # --- writing -------------------------------------------------------------------------------

    def _free(self, pod: LauncherPod, settled: Settled, timeout: float) -> bool:
        """Take our finalizer off a pod; False where the pod has changed."""
        index = list(pod.finalizers).index(vms.STICKY)
        path = f"/metadata/finalizers/{index}"
        operations: list[Operation] = [
            {"op": "test", "path": path, "value": vms.STICKY},
            {"op": "remove", "path": path},
        ]
        done = self._patch(pod_path(*pod.key), pod.metadata, operations, timeout)
        if done:
            settled.freed.append(pod)
        return done

    def _patch(
        self, path: str, known: Metadata, operations: Sequence[Operation], timeout: float
    ) -> bool:
        """Write, if the object is as it was read; False where it is not, or is gone.

        Raises ApiStatusError where it is as it was, and others refuse what we write.
        """
        if not self._may_write():
            raise UnreachableError("this controller leads no more")
        tests: list[Operation] = [
            {"op": "test", "path": "/metadata/uid", "value": known.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": known.resource_version},
        ]
        body = msgspec.json.encode([*tests, *operations])
        try:
            self._api.request("PATCH", path, body=body, content_type=JSON_PATCH, timeout=timeout)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return False
            if exc.status not in _REFUSALS:
                raise
            now = self._read(VirtualMachine, path)  # of a pod, its metadata is all that is read
            if now is not None and now.metadata.resource_version == known.resource_version:
                raise
            return False
        return True


def _annotate(vm: VirtualMachine, decision: landings.Decision) -> Sequence[Operation]:
    operations: list[Operation] = []
    if vm.metadata.annotations is None:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for key, value in decision.annotations.items():
        path = f"/metadata/annotations/{pointer(key)}"
        operations.append({"op": "add", "path": path, "value": value})
    return operations
