"""Where to look: follows the pods of VMs, VMIs, VMs and migrations, and names VMIs to settle.

Pods are followed by KubeVirt's own label, by which KubeVirt itself finds them. One that loses the
label while our finalizer is on it is not lost: it is read by its name until it is settled. What
lost the label while nobody looked is found by a sweep of the pods that do not run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from webhook import landings, sweep, vms
from webhook.cluster import Api
from webhook.errors import ClusterError
from webhook.landings import Change, Scene
from webhook.launchers import Launchers
from webhook.objects import Metadata, Names
from webhook.records import CURE, Settings
from webhook.reflector import Followed, Reflector
from webhook.vms import Instance, LauncherPod, Migration, VirtualMachine

PODS = "/api/v1/pods"
INSTANCES = "/apis/kubevirt.io/v1/virtualmachineinstances"
MACHINES = "/apis/kubevirt.io/v1/virtualmachines"
MIGRATIONS = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations"
NO_KUBEVIRT = "this cluster has no KubeVirt; sticky VMs are idle until it is installed"
SWEEP_SECONDS = 3_600.0
"""How often pods are searched for that lost their label while nobody looked."""
SWEEP_AGAIN_SECONDS = 60.0
"""How soon again where that failed."""

Work = Callable[[threading.Event], None]
T = TypeVar("T")
Kind = TypeVar("Kind", bound=Followed)
_log = logging.getLogger("holdfast.recorder")


@dataclass(frozen=True, slots=True)
class _Follower(Generic[T]):
    """Who a reflector tells, put together from functions."""

    replace: Callable[[Iterable[T]], None]
    update: Callable[[T], None]
    remove: Callable[[T], None]


class VmWatch:
    """Knows the pods that wait, and calls `look` with the key of each VMI that is to be settled.

    It calls `over` with that of one that is gone, and of which no pod waits: there is nothing left.
    Of VMIs it keeps where they run; of VMs and migrations it keeps nothing. Without sticky VMs in
    any profile (`enabled` false) it follows pods alone. The sweep is in no hurry: at the start it
    waits for `may_sweep`.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        look: Callable[[Names], None],
        *,
        over: Callable[[Names], None],
        enabled: bool,
        on_restart: Callable[[str], None],
        may_sweep: Callable[[], bool],
    ) -> None:
        self._api = api
        self._settings = settings
        self._look = look
        self._over = over
        self._enabled = enabled
        self._on_restart = on_restart
        self._may_sweep = may_sweep
        self._lock = threading.Lock()
        self._launchers = Launchers()
        self._instances: dict[Names, Instance] = {}
        self._pods_known = threading.Event()
        self._instances_known = threading.Event()

    @property
    def synced(self) -> bool:
        """True once all pods that wait are known."""
        return self._pods_known.is_set()

    def feeders(self) -> list[tuple[str, Work]]:
        """Give the threads' bodies, each with a name."""
        pods = _Follower(self._replace_pods, self._update_pod, self._remove_pod)
        found = [
            ("vm-pods", self._follow(LauncherPod, pods, PODS, {"labelSelector": vms.LAUNCHERS})),
            ("vm-pods-sweep", self._sweep),
        ]
        if not self._enabled:
            return found
        instances = _Follower(self._replace_instances, self._update_instance, self._remove_instance)
        machines = _Follower(self._replace_vms, self._update_vm, lambda _: None)
        migrations = _Follower(self._replace_jobs, self._update_job, self._remove_job)
        follow_vms = self._follow(VirtualMachine, machines, MACHINES)

        def after_instances(stop: threading.Event) -> None:
            while not self._instances_known.wait(0.1) and not stop.is_set():
                pass
            follow_vms(stop)

        return [
            *found,
            ("vmis", self._follow(Instance, instances, INSTANCES)),
            ("vms", after_instances),
            ("migrations", self._follow(Migration, migrations, MIGRATIONS)),
        ]

    def _follow(
        self,
        kind: type[Kind],
        follower: _Follower[Kind],
        path: str,
        selection: dict[str, str] | None = None,
    ) -> Work:
        of_kubevirt = path != PODS
        return Reflector(
            self._api,
            follower,
            kind,
            path=path,
            selection=selection or {},
            on_restart=self._on_restart,
            absent=NO_KUBEVIRT if of_kubevirt else "",
            cure=CURE if of_kubevirt else "",
        ).run

    # --- what the recorder asks ----------------------------------------------------------------

    def pods_of(self, instance: Names) -> list[LauncherPod]:
        """Give a VMI's pods that wait, the oldest first."""
        with self._lock:
            return list(self._launchers.of(instance))

    def strays_of(self, instance: Names) -> list[Names]:
        """Name those of them that have to be read: no watch tells of them."""
        with self._lock:
            return list(self._launchers.strays(instance))

    def found(self, key: Names, pod: LauncherPod | None) -> None:
        """Take a stray as it was read, or that it is gone."""
        with self._lock:
            if pod is None or not pod.is_held:
                self._launchers.forget(key)
            else:
                self._launchers.keep(pod, stray=True)

    def freed(self, pod: LauncherPod) -> None:
        """Take it that our finalizer is off a pod."""
        with self._lock:
            self._launchers.forget(pod.key, pod.metadata.uid)

    def count(self) -> int:
        """Count the pods that wait."""
        with self._lock:
            return len(self._launchers)

    def count_ended(self) -> int:
        """Count those of them that have ended: they keep their VM from its next start."""
        with self._lock:
            return self._launchers.ended()

    # --- pods ----------------------------------------------------------------------------------

    def _replace_pods(self, pods: Iterable[LauncherPod]) -> None:
        held = {pod.key: pod for pod in pods if pod.is_held}
        with self._lock:
            for key in self._launchers:
                if key not in held:
                    self._launchers.lose(key)
            for pod in held.values():
                self._launchers.keep(pod)
            instances = self._launchers.instances()
        if not self.synced:
            _log.info("following VMs: %d pods wait for a record", len(held))
            self._pods_known.set()
        self._look_at(instances)

    def _update_pod(self, pod: LauncherPod) -> None:
        with self._lock:
            held = pod.is_held
            instance = self._launchers.keep(pod) if held else self._launchers.forget(pod.key)
        self._look_unless_over([] if instance is None else [instance])

    def _remove_pod(self, pod: LauncherPod) -> None:
        """Have a pod read that was kept: it may only have lost its label."""
        with self._lock:
            instance = self._launchers.lose(pod.key)
        self._look_at([instance])

    def _sweep(self, stop: threading.Event) -> None:
        """Look now and then for kept pods of which no watch tells."""
        while not stop.wait(0.1) and not (self.synced and self._may_sweep()):
            pass
        while not stop.is_set():
            wait = SWEEP_SECONDS
            try:
                self._sweep_once()
            except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
                wait = SWEEP_AGAIN_SECONDS
                text = "pods without KubeVirt's label cannot be searched: %s; next try in %.0f s"
                _log.warning(text, exc, wait)
            stop.wait(wait)

    def _sweep_once(self) -> None:
        for pod in sweep.kept_pods(self._api):
            with self._lock:
                known = pod.key in self._launchers
                instance = None if known else self._launchers.keep(pod, stray=True)
            self._look_at([instance])

    # --- VMIs ----------------------------------------------------------------------------------

    def _replace_instances(self, instances: Iterable[Instance]) -> None:
        found = {one.key: _slim(one) for one in instances}
        with self._lock:
            before, self._instances = self._instances, found
            # the first time, the list of VMs that follows tells which of them have no record
            known = self._instances_known.is_set()
            changed = [key for key, one in found.items() if known and before.get(key) != one]
            gone = [key for key in before if key not in found]
        self._instances_known.set()
        self._look_at(changed)
        self._look_unless_over(gone)

    def _update_instance(self, one: Instance) -> None:
        with self._lock:
            before, after = self._instances.get(one.key), _slim(one)
            self._instances[one.key] = after
            waits = bool(self._launchers.of(one.key))
        moved = bool(after.status.node_name) and (
            before is None or before.status.node_name != after.status.node_name
        )
        if moved or (waits and before != after):
            self._look_at([one.key])

    def _remove_instance(self, one: Instance) -> None:
        with self._lock:
            self._instances.pop(one.key, None)
        self._look_unless_over([one.key])

    # --- VMs and migrations --------------------------------------------------------------------

    def _replace_vms(self, machines: Iterable[VirtualMachine]) -> None:
        for vm in machines:
            self._update_vm(vm)

    def _update_vm(self, vm: VirtualMachine) -> None:
        """Look at a VM that runs and has no record: it was there before us, or it opts in now."""
        with self._lock:
            instance = self._instances.get(vm.key)
        if instance is None:
            return
        owner = vms.controller_of(instance.metadata, vms.VM)
        if owner is None or owner.uid != vm.metadata.uid:
            return
        scene = Scene((), instance, vm, {}, self._settings(vms.pod_of(instance)))
        if landings.decide(scene).change is not Change.NONE:
            self._look_at([vm.key])

    def _replace_jobs(self, jobs: Iterable[Migration]) -> None:
        for job in jobs:
            self._update_job(job)

    def _update_job(self, job: Migration) -> None:
        if job.is_over:
            self._remove_job(job)

    def _remove_job(self, job: Migration) -> None:
        """Look at the VMI of a migration that has come to its end, where pods wait for that."""
        key = job.metadata.namespace, job.spec.vmi_name
        with self._lock:
            waits = bool(self._launchers.of(key))
        self._look_at([key] if waits else [])

    def _look_unless_over(self, instances: Iterable[Names]) -> None:
        """Look at VMIs that are there, or of which pods wait; drop what was to be done for others.

        So a process that stands by for long keeps no list of all that ever was.
        """
        for key in instances:
            if self._is_over(key):
                self._over(key)
                if self._is_over(key):
                    continue  # else a pod has come between the two
            self._look(key)

    def _is_over(self, key: Names) -> bool:
        with self._lock:
            return key not in self._instances and not self._launchers.of(key)

    def _look_at(self, instances: Iterable[Names | None]) -> None:
        for key in instances:
            if key is not None:
                self._look(key)


def _slim(one: Instance) -> Instance:
    """Keep what is needed of a VMI; its labels and annotations are most of it."""
    metadata = one.metadata
    return Instance(
        Metadata(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            owner_references=metadata.owner_references,
        ),
        one.spec,
        one.status,
    )
