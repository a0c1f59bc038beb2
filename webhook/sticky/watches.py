"""Watches pods of VMs, VMIs, VMs and migrations, and enqueues the VMIs to reconcile.

Pods are watched by KubeVirt's own label, which KubeVirt also uses to find them. A pod that loses
the label while it has our finalizer is an orphan: it is read by name until it is released. A pod
that lost it while no controller ran is found by a sweep of the pods that are not running. Pods that
only provision volumes have no finalizer: those that find no node are kept, to report why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.reflector import Handlers, Reflector
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import (
    Instance,
    LauncherPod,
    Migration,
    MigrationState,
    VirtualMachine,
)
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.sticky import decision, kept
from holdfast.webhook.sticky.decision import ObservedState, RecordChange
from holdfast.webhook.sticky.launchers import LauncherIndex, cannot_provision
from holdfast.webhook.sticky.reconciler import CURE, ArgsForPod
from holdfast.webhook.sticky.sweep import OrphanSweep
from holdfast.webhook.threads import Work

NO_KUBEVIRT = "KubeVirt is not installed; sticky VMs are idle until it is"

Kind = TypeVar("Kind")
_log = logging.getLogger("holdfast.sticky")


class VmWatch:
    """Tracks the waiting pods, and calls `enqueue` with the key of each VMI to reconcile.

    It calls `drop` with the key of a VMI that is gone and has no waiting pods. It caches where VMIs
    run, but no VMs or migrations. Without sticky VMs in any profile (`enabled` is false), it
    watches only pods. The first sweep waits for `may_sweep`.
    """

    def __init__(
        self,
        api: Api,
        args_for: ArgsForPod,
        enqueue: Callable[[ObjectKey], None],
        *,
        drop: Callable[[ObjectKey], None],
        enabled: bool,
        on_restart: Callable[[str], None],
        may_sweep: Callable[[], bool],
    ) -> None:
        self._api = api
        self._args_for = args_for
        self._enqueue = enqueue
        self._drop = drop
        self._enabled = enabled
        self._on_restart = on_restart
        self._sweep = OrphanSweep(
            api, may_start=lambda: self.synced and may_sweep(), on_orphan=self._add_orphan
        )
        self._lock = threading.Lock()
        self._launchers = LauncherIndex()
        self._provisioners = LauncherIndex()
        self._instances: dict[ObjectKey, Instance] = {}
        self._pods_known = threading.Event()
        self._instances_known = threading.Event()

    @property
    def synced(self) -> bool:
        """Whether all waiting pods are known."""
        return self._pods_known.is_set()

    def feeders(self) -> dict[str, Work]:
        """Return the functions to run in threads, by thread name."""
        pods = Handlers(self._sync_pods, self._update_pod, self._delete_pod)
        selection = {"labelSelector": kubevirt.LAUNCHERS}
        follow_pods = self._follow(LauncherPod, pods, listing.pods_path(""), selection)
        feeders: dict[str, Work] = {"vm-pods": follow_pods, "vm-pods-sweep": self._sweep.run}
        if not self._enabled:
            return feeders
        instances = Handlers(self._sync_instances, self._update_instance, self._delete_instance)
        machines = Handlers(self._sync_vms, self._update_vm, lambda _: None)
        migrations = Handlers(self._sync_migrations, self._update_migration, self._end_migration)
        follow_vms = self._follow(VirtualMachine, machines, kubevirt.vm_path("", ""))

        def after_instances(stop: threading.Event) -> None:
            # The decision about a VM needs its VMI, so the VMIs must be known first.
            while not self._instances_known.wait(0.5) and not stop.is_set():
                pass
            follow_vms(stop)

        return feeders | {
            "vmis": self._follow(Instance, instances, kubevirt.vmi_path("", "")),
            "vms": after_instances,
            "migrations": self._follow(Migration, migrations, kubevirt.migration_path("", "")),
        }

    def _follow(
        self,
        kind: type[Kind],
        handlers: Handlers[Kind],
        path: str,
        selection: dict[str, str] | None = None,
    ) -> Work:
        of_kubevirt = kind is not LauncherPod
        return Reflector(
            self._api,
            handlers,
            kind,
            path=path,
            selection=selection or {},
            on_restart=self._on_restart,
            absent=NO_KUBEVIRT if of_kubevirt else "",
            cure=CURE if of_kubevirt else "",
        ).run

    # --- for the reconciler --------------------------------------------------------------------

    def pods_of(self, instance: ObjectKey) -> list[LauncherPod]:
        """Return the waiting pods of a VMI, oldest first."""
        with self._lock:
            return list(self._launchers.of(instance))

    def provisioners_of(self, instance: ObjectKey, uid: str) -> list[LauncherPod]:
        """Return the unschedulable pods that provision volumes of the VMI with this UID."""
        with self._lock:
            pods = self._provisioners.of(instance)
        pairs = ((pod, kubevirt.vmi_of(pod)) for pod in pods)
        return [pod for pod, owner in pairs if owner is not None and owner.uid == uid]

    def orphans_of(self, instance: ObjectKey) -> list[ObjectKey]:
        """Return the keys of a VMI's orphans, which must be read by name."""
        with self._lock:
            return list(self._launchers.orphans(instance))

    def refresh(self, key: ObjectKey, pod: LauncherPod | None) -> None:
        """Store the state of an orphan that was read, or drop it if it is gone or released."""
        with self._lock:
            if pod is None or not pod.has_finalizer:
                self._launchers.forget(key)
            else:
                self._launchers.keep(pod, orphan=True)

    def forget(self, pod: LauncherPod) -> None:
        """Drop a pod that lost our finalizer."""
        with self._lock:
            self._launchers.forget(pod.key, pod.metadata.uid)

    def count(self) -> int:
        """Return the number of waiting pods."""
        with self._lock:
            return len(self._launchers)

    def count_ended(self) -> int:
        """Return the number of waiting pods that have ended. They block their VM's next start."""
        with self._lock:
            return self._launchers.ended()

    # --- pods ----------------------------------------------------------------------------------

    def _sync_pods(self, pods: Iterable[LauncherPod]) -> None:
        held, provisioners = dict[ObjectKey, LauncherPod](), LauncherIndex()
        for pod in pods:
            if pod.has_finalizer:
                held[pod.key] = pod
            elif self._is_provisioner(pod):
                provisioners.keep(pod)
        with self._lock:
            gone = set(self._provisioners.instances()).difference(provisioners.instances())
            self._provisioners = provisioners
            for key in self._launchers:
                # The pod may be gone, or may only have lost its label: it is read by name.
                if key not in held:
                    self._launchers.mark_unwatched(key)
            for pod in held.values():
                self._launchers.keep(pod)
            instances = [*self._launchers.instances(), *provisioners.instances()]
        if not self.synced:
            subject = "VMs" if self._enabled else "pods of VMs, to remove finalizers"
            _log.info("watching %s: %d pods wait for a record", subject, len(held))
            self._pods_known.set()
        self._enqueue_all(instances)
        self._enqueue_or_drop(gone)

    def _update_pod(self, pod: LauncherPod) -> None:
        with self._lock:
            changed = {
                self._launchers.update(pod, belongs=pod.has_finalizer),
                self._provisioners.update(pod, belongs=self._is_provisioner(pod)),
            }
        self._enqueue_or_drop(changed)

    def _is_provisioner(self, pod: LauncherPod) -> bool:
        return self._enabled and cannot_provision(pod)

    def _delete_pod(self, pod: LauncherPod) -> None:
        """Handle a deleted pod. A held pod is read again, as it may only have lost its label."""
        with self._lock:
            instance = self._launchers.mark_unwatched(pod.key)
            provisioned = self._provisioners.forget(pod.key)
        self._enqueue_all([instance])
        self._enqueue_or_drop([provisioned])

    def _add_orphan(self, pod: LauncherPod) -> None:
        with self._lock:
            is_known = pod.key in self._launchers
            instance = None if is_known else self._launchers.keep(pod, orphan=True)
        self._enqueue_all([instance])

    # --- VMIs ----------------------------------------------------------------------------------

    def _sync_instances(self, instances: Iterable[Instance]) -> None:
        vmis = {vmi.key: kept.instance(vmi) for vmi in instances}
        with self._lock:
            before, self._instances = self._instances, vmis
            # at startup, the list of VMs that follows shows which have no record
            are_known = self._instances_known.is_set()
            changed = [key for key, vmi in vmis.items() if are_known and before.get(key) != vmi]
            gone = [key for key in before if key not in vmis]
        self._instances_known.set()
        self._enqueue_all(changed)
        self._enqueue_or_drop(gone)

    def _update_instance(self, instance: Instance) -> None:
        with self._lock:
            before, after = self._instances.get(instance.key), kept.instance(instance)
            self._instances[instance.key] = after
            waits = bool(self._launchers.of(instance.key))
        moved = before is None or _place(before) != _place(after)
        if (moved and after.has_run) or (waits and before != after):
            self._enqueue_all([instance.key])

    def _delete_instance(self, instance: Instance) -> None:
        with self._lock:
            self._instances.pop(instance.key, None)
        self._enqueue_or_drop([instance.key])

    # --- VMs and migrations --------------------------------------------------------------------

    def _sync_vms(self, machines: Iterable[VirtualMachine]) -> None:
        for vm in machines:
            self._update_vm(vm)

    def _update_vm(self, vm: VirtualMachine) -> None:
        """Enqueue a running VM whose record is missing or out of date."""
        with self._lock:
            instance = self._instances.get(vm.key)
        if instance is None:
            return
        owner = kubevirt.vm_of(instance)
        if owner is None or owner.uid != vm.metadata.uid:
            return
        state = ObservedState((), instance, vm, {}, self._args_for(kubevirt.pod_of(instance)))
        decided = decision.decide(state)
        if decided.change is not RecordChange.NONE or decided.differs:
            self._enqueue_all([vm.key])

    def _sync_migrations(self, migrations: Iterable[Migration]) -> None:
        for migration in migrations:
            self._update_migration(migration)

    def _update_migration(self, migration: Migration) -> None:
        if migration.is_over:
            self._end_migration(migration)

    def _end_migration(self, migration: Migration) -> None:
        """Enqueue the VMI of a migration that is over, if it has waiting pods."""
        key = migration.metadata.namespace, migration.spec.vmi_name
        with self._lock:
            waits = bool(self._launchers.of(key))
        self._enqueue_all([key] if waits else [])

    def _enqueue_or_drop(self, instances: Iterable[ObjectKey | None]) -> None:
        """Enqueue VMIs that exist or have waiting pods, and drop all others.

        Otherwise the queue of a process that never leads would grow with every VMI that ever
        existed.
        """
        for key in filter(None, instances):
            if self._is_over(key):
                self._drop(key)
                if self._is_over(key):
                    continue  # otherwise a pod was added in between
            self._enqueue(key)

    def _is_over(self, key: ObjectKey) -> bool:
        with self._lock:
            waiting = self._launchers.of(key) or self._provisioners.of(key)
            return key not in self._instances and not waiting

    def _enqueue_all(self, instances: Iterable[ObjectKey | None]) -> None:
        for key in instances:
            if key is not None:
                self._enqueue(key)


def _place(instance: Instance) -> tuple[str, bool, bool]:
    """Return the node of a VMI, whether it has run, and whether it has migrated to that node."""
    status, state = instance.status, instance.status.migration_state or MigrationState()
    return status.node_name, instance.has_run, state.has_reached(status.node_name)
