"""Where a VM has landed: what to write on it, and which of its pods need wait no longer. Pure.

A pod that is bound is a landing, and carries our finalizer until that is on the VM. So whoever
comes late, or comes back, finds all that has to be known, and decides as if nothing had happened.
What is on the VM changes by a first landing, by a migration, or by a person, and by nothing else:

- no record, or a clone's: the first landing is recorded;
- a record: it stays, but for a migration that took the VM away from the recorded node;
- the record taken away, the UID beside it left: a person had the VM go free at its next start, so
  what runs now is not recorded again; the next landing is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from webhook import vms
from webhook.vms import Instance, LauncherPod, Migration, StickyArgs, VirtualMachine


class Change(enum.StrEnum):
    """What is done to a VM's record; the values are labels of a metric."""

    NONE = "none"
    RECORDED = "recorded"
    FOLLOWED = "followed"
    MARKED = "marked"


NOT_ENABLED = (
    "the sticky plugin is not enabled for it any more: nothing is recorded, and the pod is let go"
)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that decides about the pods of one VMI.

    `pods` carry our finalizer and name a VMI of this name, in order of their creation. `instance`
    is None where there is none, `vm` where the VMI belongs to none. `jobs` are the migrations that
    exist, by UID. `args` is None where sticky VMs are not enabled.
    """

    pods: Sequence[LauncherPod]
    instance: Instance | None
    vm: VirtualMachine | None
    jobs: Mapping[str, Migration]
    args: StickyArgs | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in this order: write `annotations` on the VM, then let go of the pods in `free`.

    `node` is where the VM comes back to from then on; `waiting` are the pods that are still held.
    """

    change: Change = Change.NONE
    annotations: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    free: Sequence[LauncherPod] = ()
    waiting: Sequence[LauncherPod] = ()
    remark: str = ""


def may_land(pod: LauncherPod) -> bool:
    """Tell whether a VMI is to run in a pod: it belongs to one, and not for its volumes alone."""
    if vms.EPHEMERAL_PROVISIONING in pod.annotations:
        return False
    return vms.controller_of(pod.metadata, vms.VMI) is not None


def decide(scene: Scene) -> Decision:
    """Decide what becomes of a VM's record, and of the pods that wait for it."""
    instance, vm, args = scene.instance, scene.vm, scene.args
    if args is None:
        return Decision(free=scene.pods, remark=NOT_ENABLED)
    if instance is None or vm is None or vm.metadata.deletion_timestamp is not None:
        return Decision(free=scene.pods)
    if not vms.sticks(vm, args):
        return Decision(free=scene.pods)
    run = _Run(scene.pods, instance, scene.jobs)
    change, node = _record(run, vm, args)
    annotations = _annotations(change, node, vm, args)
    waiting = [pod for pod in run.pods if run.waits(pod)]
    free = [pod for pod in scene.pods if pod not in waiting]
    return Decision(change, annotations, node, free, waiting)


def _record(run: _Run, vm: VirtualMachine, args: StickyArgs) -> tuple[Change, str]:
    """Decide what to write, and name the node that counts then."""
    recorded = vms.recorded_node(vm, args)
    follows = args.on_migration == "follow"
    if not recorded:
        if was_cleared(vm, args) and not run.landed_on:
            return Change.NONE, ""
        node = (run.node or run.landed_on) if follows else (run.landed_on or run.node)
        return (Change.RECORDED, node) if node else (Change.NONE, "")
    if follows and run.moved_from(recorded):
        return Change.FOLLOWED, run.node
    runs = bool(run.node or run.landed_on)
    marked = vm.annotations.get(vms.STICKY_NODE_UID)
    return (Change.MARKED if runs and not marked else Change.NONE), recorded


def _annotations(
    change: Change, node: str, vm: VirtualMachine, args: StickyArgs
) -> Mapping[str, str]:
    uid = {vms.STICKY_NODE_UID: vm.metadata.uid}
    if change in {Change.RECORDED, Change.FOLLOWED}:
        return {args.node_annotation: node, **uid}
    return uid if change is Change.MARKED else {}


def was_cleared(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Tell whether a person took a VM's record away: the UID that was written with it is there."""
    uid = vm.annotations.get(vms.STICKY_NODE_UID)
    return uid == vm.metadata.uid and not vm.annotations.get(args.node_annotation)


class _Run:
    """One run of a VM: its VMI, and those of its pods that are held."""

    def __init__(
        self, pods: Iterable[LauncherPod], instance: Instance, jobs: Mapping[str, Migration]
    ) -> None:
        self._instance = instance
        self._jobs = jobs
        self.pods = [pod for pod in pods if _belongs(pod, instance)]
        self._targets = [pod for pod in self.pods if self._is_target(pod)]
        landings = [pod for pod in self.pods if pod not in self._targets]
        self._settled = all(self._is_settled(pod) for pod in self._targets if pod.spec.node_name)
        bound = [pod.spec.node_name for pod in landings if pod.spec.node_name]
        self.landed_on = bound[0] if bound else ""
        """The node of the first pod; empty where none is bound, or it is held no longer."""

    @property
    def node(self) -> str:
        """Where the VM is by KubeVirt's word; empty while it may be moving."""
        return self._instance.status.node_name if self._settled else ""

    def moved_from(self, recorded: str) -> bool:
        """Tell whether a migration took the VM from its recorded node to the one where it is.

        Where it is known from which nodes the VM came, and the record is none of them, then a
        person wrote that: it stays.
        """
        if self.node in {"", recorded}:
            return False
        if not any(pod.spec.node_name == self.node for pod in self._targets):
            return False
        moves = [pod for pod in self._targets if pod.spec.node_name and not self._has_failed(pod)]
        sources = [self._source(pod) for pod in moves]
        return "" in sources or recorded in {*sources, self.landed_on}

    def waits(self, pod: LauncherPod) -> bool:
        """Tell whether a pod has to be kept: it may land yet, or a migration is on its way."""
        if not pod.spec.node_name:
            return not pod.has_ended and not (pod in self._targets and self._is_settled(pod))
        return pod in self._targets and not self._settled

    def _is_target(self, pod: LauncherPod) -> bool:
        """Tell whether a migration made a pod; a label that a VM's template has makes none."""
        uid = pod.labels.get(vms.MIGRATION_JOB)
        return uid is not None and (uid in self._jobs or bool(self._instance.status.node_name))

    def _job(self, pod: LauncherPod) -> Migration | None:
        return self._jobs.get(pod.labels.get(vms.MIGRATION_JOB, ""))

    def _is_settled(self, pod: LauncherPod) -> bool:
        """Tell whether a migration has come to its end; one that is gone has."""
        job = self._job(pod)
        return job is None or job.is_over or self._instance.is_over

    def _has_failed(self, pod: LauncherPod) -> bool:
        """Tell whether the VM never came to a target; not by its end alone, which may be late."""
        job = self._job(pod)
        failed = job is not None and job.status.phase == "Failed"
        return failed and pod.spec.node_name != self.node

    def _source(self, pod: LauncherPod) -> str:
        """Name the node from which a migration took the VM; empty where that is not known."""
        job = self._job(pod) or Migration()
        for state in (self._instance.status.migration_state, job.status.migration_state):
            if state is not None and state.migration_uid == pod.labels.get(vms.MIGRATION_JOB):
                return state.source_node
        return ""


def _belongs(pod: LauncherPod, instance: Instance) -> bool:
    owner = vms.controller_of(pod.metadata, vms.VMI)
    return owner is not None and owner.uid == instance.metadata.uid and may_land(pod)
