"""Reconciles the pods of one VMI: reads its state, writes the VM's record, frees the pods.

Each write is guarded by the object's uid and resourceVersion. If a write fails because the object
has changed, the reconciler reads and decides everything again at once. If the write is rejected for
another reason, it is retried later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.webhook.errors import ApiStatusError, ClusterError, UnreachableError
from holdfast.webhook.framework.json_patch import pointer
from holdfast.webhook.kube import discovery, listing, patching
from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT, Api, pod_path
from holdfast.webhook.kube.patching import FIELD_MANAGER
from holdfast.webhook.model import kubevirt, syntax
from holdfast.webhook.model.edits import Operation
from holdfast.webhook.model.kubevirt import Instance, LauncherPod, Migration, VirtualMachine
from holdfast.webhook.model.objects import ApiObject, Metadata, ObjectKey, OwnerReference, Pod
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky.decision import (
    Decision,
    ObservedState,
    RecordChange,
    decide,
    may_run_vm,
)

TIMEOUT = 10.0
"""Timeout of one request, in seconds. A request that hangs is better sent again. A write after a
failure in a slow namespace may take as long as admission may."""
ATTEMPTS = 8
"""Patches sent in a row while other writers keep changing an object, before the VMI backs off."""
CURE = "bind the ClusterRole holdfast-controller-kubevirt of the manifests to the controller"
"""The fix if the controller is not allowed to read or write KubeVirt's objects."""

ArgsForPod = Callable[[Pod], StickyArgs | None]
"""Returns the arguments that apply to a pod, or None if sticky VMs are not enabled for it."""
T = TypeVar("T")


@dataclass(slots=True)
class ReconcileResult:
    """The result of an attempt.

    `change` and `node` describe the VM's record. `freed` pods have lost their finalizer, `waiting`
    pods keep it. `differs` is the node where the VM runs instead. `starting` is the UID of a VMI
    that has not run yet. `problem` is why to retry, and `retry_after` the minimum wait in seconds,
    if the server asked for one.
    """

    vm: VirtualMachine | None = None
    args: StickyArgs | None = None
    change: RecordChange = RecordChange.NONE
    node: str = ""
    freed: list[LauncherPod] = field(default_factory=list)
    waiting: Sequence[LauncherPod] = ()
    remark: str = ""
    differs: str = ""
    starting: str = ""
    problem: str = ""
    retry_after: float | None = None


class VmReconciler:
    """Reconciles one VMI at a time. Thread-safe."""

    def __init__(self, api: Api, args_for: ArgsForPod, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._args_for = args_for
        self._may_write = may_write
        self._listing = threading.Lock()
        """Held while migrations are listed: the pages of all workers at once could be too large."""

    def reconcile(
        self, key: ObjectKey, pods: Sequence[LauncherPod], *, needs_long_timeout: bool = False
    ) -> ReconcileResult:
        """Reconcile a VMI and its held pods. Cluster failures are returned, never raised."""
        result = ReconcileResult()
        try:
            timeout = SLOW_ADMISSION_TIMEOUT if needs_long_timeout else TIMEOUT
            self._reconcile(key, pods, result, timeout)
        except ClusterError as exc:
            cure = f" ({CURE})" if getattr(exc, "status", 0) == 403 else ""
            result.problem = f"{exc}{cure}"
            result.retry_after = getattr(exc, "retry_after", None)
        return result

    def read_pod(self, key: ObjectKey) -> LauncherPod | None:
        """Read a pod, or return None if it does not exist. Raises ClusterError."""
        return self._read(LauncherPod, pod_path(*key))

    def _reconcile(
        self, key: ObjectKey, pods: Sequence[LauncherPod], result: ReconcileResult, timeout: float
    ) -> None:
        for _ in range(ATTEMPTS):
            state = self._observe(key, pods)
            decision = decide(state)
            result.vm, result.args = state.vm, state.args
            result.waiting, result.remark = decision.waiting, decision.remark
            instance = state.instance
            is_starting = instance is not None and not (instance.has_run or instance.is_over)
            result.starting = instance.metadata.uid if instance is not None and is_starting else ""
            if state.vm is not None and decision.annotations:
                path, operations = kubevirt.vm_path(*state.vm.key), _annotate(state.vm, decision)
                if not self._patch(path, state.vm.metadata, operations, timeout):
                    continue
                result.change = decision.change
            result.node, result.differs = decision.node, decision.differs
            # After the record: without its finalizer a pod may go, and its node with it.
            changed = [pod for pod in decision.free if not self._free(pod, result, timeout)]
            if not changed:
                return
            fresh = [self.read_pod(pod.key) for pod in changed]
            pods = [
                *decision.waiting,
                *(pod for pod in fresh if pod is not None and pod.has_finalizer),
            ]
        raise UnreachableError(f"the VM or its pods changed during {ATTEMPTS} patches in a row")

    # --- reading -------------------------------------------------------------------------------

    def _observe(self, key: ObjectKey, pods: Sequence[LauncherPod]) -> ObservedState:
        """Read the state of a VMI: migrations, VMI and VM. Its pods are already known.

        In this order, no object is older than the objects that it explains.
        """
        launchers = [pod for pod in pods if may_run_vm(pod)]
        args = next(filter(None, map(self._args_for, launchers)), None)
        if pods and (not launchers or args is None):
            # without launchers, no VM can run in these pods, so their plugin does not matter
            return ObservedState(pods, None, None, {}, None if launchers else StickyArgs())
        migrations = self._migrations_of(launchers)
        instance = self._read(Instance, kubevirt.vmi_path(*key))
        if instance is None:
            return ObservedState(pods, None, None, migrations, args or StickyArgs())
        args = args or self._args_for(kubevirt.pod_of(instance))
        owner = kubevirt.vm_of(instance)
        vm = None if owner is None else self._vm(key[0], owner)
        return ObservedState(pods, instance, vm, migrations, args)

    def _vm(self, namespace: str, owner: OwnerReference) -> VirtualMachine | None:
        vm = self._read(VirtualMachine, kubevirt.vm_path(namespace, owner.name))
        # A VM that was recreated under this name is a different VM.
        return vm if vm is not None and vm.metadata.uid == owner.uid else None

    def _migrations_of(self, pods: Sequence[LauncherPod]) -> Mapping[str, Migration]:
        """Return the migrations, by UID, that created these pods and still exist."""
        migrations: dict[str, Migration] = {}
        for pod in pods:
            uid = pod.labels.get(kubevirt.MIGRATION_JOB)
            if uid is None or uid in migrations:
                continue
            name = pod.annotations.get(kubevirt.MIGRATION_NAME, "")
            namespace = pod.metadata.namespace
            path = kubevirt.migration_path(namespace, name)
            # an invalid name gets a 400, which proves nothing
            migration = self._read(Migration, path) if syntax.is_object_name(name) else None
            migration = migration or self._find_migration(namespace, uid)
            if migration is not None and migration.metadata.uid == uid:
                migrations[uid] = migration
        return migrations

    def _find_migration(self, namespace: str, uid: str) -> Migration | None:
        """Return a migration by UID: the annotation with its name may be missing or wrong."""
        path = kubevirt.migration_path(namespace, "")

        def find() -> Migration | None:
            with self._listing:
                migrations = listing.objects(self._api, path, Migration, timeout=TIMEOUT)
                return next(
                    (migration for migration in migrations if migration.metadata.uid == uid), None
                )

        return self._unless_gone(path, find)

    def _read(self, kind: type[T], path: str) -> T | None:
        return self._unless_gone(path, lambda: listing.read(self._api, path, kind, timeout=TIMEOUT))

    def _unless_gone(self, path: str, read: Callable[[], T | None]) -> T | None:
        try:
            return read()
        except ApiStatusError as exc:
            if self._is_gone(path, exc):
                return None
            raise

    def _is_gone(self, path: str, exc: ApiStatusError) -> bool:
        """Return whether an object does not exist, or KubeVirt is not installed.

        A 404 from a proxy proves neither, and trusting it would lose a record. Raises ClusterError
        if discovery fails.
        """
        if exc.is_not_found:
            return True
        if exc.status != 404 or not path.startswith(kubevirt.API_PATH):
            return False
        _, resource, *_ = path.removeprefix(f"{kubevirt.API_PATH}/namespaces/").split("/")
        return not discovery.serves(self._api, resource, timeout=TIMEOUT)

    # --- writing -------------------------------------------------------------------------------

    def _free(self, pod: LauncherPod, result: ReconcileResult, timeout: float) -> bool:
        """Remove our finalizer from a pod. Return False if the pod has changed or must be read."""
        if not pod.metadata.resource_version:
            return False  # a large pod, which is not kept in full
        index = list(pod.finalizers).index(kubevirt.STICKY)
        path = f"/metadata/finalizers/{index}"
        operations: list[Operation] = [
            {"op": "test", "path": path, "value": kubevirt.STICKY},
            {"op": "remove", "path": path},
        ]
        done = self._patch(pod_path(*pod.key), pod.metadata, operations, timeout)
        if done:
            result.freed.append(pod)
        return done

    def _patch(
        self, path: str, metadata: Metadata, operations: Sequence[Operation], timeout: float
    ) -> bool:
        """Patch an object. Return False if it has changed since it was read, or is gone.

        Raises ApiStatusError if the object has not changed, and the write was rejected.
        """
        # Checked before each write: the lead may be lost while a request is in flight.
        if not self._may_write():
            raise UnreachableError("this controller no longer leads")
        patch = patching.guarded(metadata.uid, metadata.resource_version, operations)
        refusal = patching.write(self._api, path, patch, timeout=timeout, manager=FIELD_MANAGER)
        if refusal is None:
            return True
        if not refusal.is_not_found:
            current = self._read(ApiObject, path)
            if (
                current is not None
                and current.metadata.resource_version == metadata.resource_version
            ):
                raise refusal
        return False


def _annotate(vm: VirtualMachine, decision: Decision) -> Sequence[Operation]:
    operations: list[Operation] = []
    if vm.metadata.annotations is None:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for key, value in decision.annotations.items():
        path = f"/metadata/annotations/{pointer(key)}"
        if value is None:
            operations.append({"op": "remove", "path": path})
        else:
            operations.append({"op": "add", "path": path, "value": value})
    return operations
