"""Decides what to record on a VM, and which of its pods to release. Pure.

A bound pod shows where its VM runs, and keeps our finalizer until that node is recorded. A
controller that starts late, or restarts, therefore sees everything that it needs, and reaches the
same decision. Only the first node, a migration or a person changes a record:

- No record, or a clone's: the first node where the VM has run is recorded.
- A record: it stays, unless a migration has moved the VM since it was written, sticky or not.
- A record that was removed while our UID annotation remains: a person freed the VM for its next
  start, so the current run is not recorded again, but the next one is. The UID of a VM that runs
  while it is not sticky is removed. Its starts are not observed, so its node is recorded at once
  when it becomes sticky.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.webhook.model import kubevirt, objects, syntax
from holdfast.webhook.model.kubevirt import Instance, LauncherPod, Migration, VirtualMachine
from holdfast.webhook.model.limits import MAX_ENTRIES, are_storable
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs


class RecordChange(enum.StrEnum):
    """The change to a VM's record. The values are label values of a metric."""

    NONE = "none"
    RECORDED = "recorded"
    FOLLOWED = "followed"
    MARKED = "marked"
    UNMARKED = "unmarked"


NEVER_RAN = "no node is recorded, because the VM ended before it ran; it was on"
TOO_MANY = (
    "the node is not written, because the VM has no room for another annotation (at most "
    f"{MAX_ENTRIES:,}, or 256 KiB): remove some"
)
NOT_ENABLED = (
    "the sticky plugin is no longer enabled for it: nothing is recorded, and the pod is released"
)


@dataclass(frozen=True, slots=True)
class ObservedState:
    """All inputs to the decision about the pods of one VMI.

    `pods` have our finalizer and refer to a VMI of this name, oldest first. `instance` is None if
    the VMI does not exist, `vm` if the VMI does not belong to a VM, `args` if sticky VMs are not
    enabled. `migrations` are the existing migrations, by UID.
    """

    pods: Sequence[LauncherPod]
    instance: Instance | None
    vm: VirtualMachine | None
    migrations: Mapping[str, Migration]
    args: StickyArgs | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions, in this order: write `annotations` to the VM, release the pods in `free`.

    An annotation without a value is removed. `node` is where the VM starts from then on; `waiting`
    are the pods that stay held. `differs` is the node where the VM runs, if it runs elsewhere and
    nothing explains that.
    """

    change: RecordChange = RecordChange.NONE
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    node: str = ""
    free: Sequence[LauncherPod] = ()
    waiting: Sequence[LauncherPod] = ()
    remark: str = ""
    differs: str = ""


def may_run_vm(pod: LauncherPod) -> bool:
    """Return whether a VMI may run in a pod. A pod that only provisions volumes never runs one."""
    if kubevirt.EPHEMERAL_PROVISIONING in pod.annotations:
        return False
    return kubevirt.vmi_of(pod) is not None


def decide(state: ObservedState) -> Decision:
    """Return the decision about a VM's record and the pods that wait for it."""
    instance, vm, args = state.instance, state.vm, state.args
    if args is None:
        return Decision(free=state.pods, remark=NOT_ENABLED)
    # There is no VM to record a node on, or the VM will not start again.
    if instance is None or vm is None or vm.metadata.deletion_timestamp is not None:
        return Decision(free=state.pods)
    run = _Run(state.pods, instance, state.migrations)
    change, node = _record(run, vm, args)
    annotations = _annotations(change, node, vm, args)
    too_many = bool(annotations) and not are_storable({**vm.annotations, **annotations})
    if too_many:
        change, node, annotations = RecordChange.NONE, sticky_policy.recorded_node(vm, args), {}
    if not sticky_policy.is_sticky(vm, args):
        # Otherwise the VM would return to its previous node once it is sticky again.
        if change is RecordChange.FOLLOWED:
            return Decision(change, annotations, node, state.pods)
        # The guard rejects changes to a VM with more annotations than it compares.
        can_unmark = run.has_run and are_storable(vm.annotations)
        if not (can_unmark and was_cleared(vm, args)):
            return Decision(free=state.pods)
        unmark = {kubevirt.STICKY_NODE_UID: None}
        return Decision(RecordChange.UNMARKED, unmark, free=state.pods)
    waiting = [pod for pod in run.pods if run.waits(pod, node)]
    free = [pod for pod in state.pods if pod not in waiting]
    lost = not (node or instance.has_run) and any(pod.spec.node_name for pod in free)
    remark = TOO_MANY if too_many else f"{NEVER_RAN} {run.first_node}" if lost else ""
    differs = run.node if _differs(run, vm, args, node) else ""
    return Decision(change, annotations, node, free, waiting, remark, differs)


def _record(run: _Run, vm: VirtualMachine, args: StickyArgs) -> tuple[RecordChange, str]:
    """Return the change to the record, and the node that it names afterwards."""
    recorded = sticky_policy.recorded_node(vm, args)
    follows = args.on_migration == "follow"
    if not recorded:
        # A VM that never ran, because its node has a problem, may start on another node.
        if not run.has_run or (was_cleared(vm, args) and not run.first_node):
            return RecordChange.NONE, ""
        # After a migration the two differ: `onMigration` decides which one counts.
        node = (run.node or run.first_node) if follows else (run.first_node or run.node)
        return (RecordChange.RECORDED, node) if node else (RecordChange.NONE, "")
    if follows and run.moved_from(recorded, vm, args):
        return RecordChange.FOLLOWED, run.node
    runs = bool(run.node or run.first_node)
    # A person need not write the UID, but without it a later removal would go unnoticed.
    uid = vm.annotations.get(kubevirt.STICKY_NODE_UID)
    return (RecordChange.MARKED if runs and not uid else RecordChange.NONE), recorded


def _differs(run: _Run, vm: VirtualMachine, args: StickyArgs, node: str) -> bool:
    """Return whether the VM would move at its next start, although nobody requested that.

    With any other `affinity` or `onMigration`, a VM may run elsewhere.
    """
    if args.affinity != "required" or args.on_migration != "follow" or run.is_moving:
        return False
    return node not in {"", run.node} and not sticky_policy.is_set_by_others(vm, args)


def _annotations(
    change: RecordChange, node: str, vm: VirtualMachine, args: StickyArgs
) -> Mapping[str, str]:
    uid = {kubevirt.STICKY_NODE_UID: vm.metadata.uid}
    if change in {RecordChange.RECORDED, RecordChange.FOLLOWED}:
        return {args.node_annotation: node, **uid}
    return uid if change is RecordChange.MARKED else {}


def was_cleared(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Return whether a person removed the record: the UID written with it remains."""
    uid = vm.annotations.get(kubevirt.STICKY_NODE_UID)
    return uid == vm.metadata.uid and not vm.annotations.get(args.node_annotation)


class _Run:
    """One run of a VM: its VMI and its held pods."""

    def __init__(
        self, pods: Iterable[LauncherPod], instance: Instance, migrations: Mapping[str, Migration]
    ) -> None:
        self._instance = instance
        self._migrations = migrations
        self.pods = [pod for pod in pods if _belongs(pod, instance)]
        self._targets = [pod for pod in self.pods if self._is_target(pod)]
        starts = [pod for pod in self.pods if pod not in self._targets]
        self._settled = all(self._is_settled(pod) for pod in self._targets if pod.spec.node_name)
        nodes = [pod.spec.node_name for pod in starts if pod.spec.node_name]
        self.first_node = nodes[0] if nodes else ""
        """The node of the first pod; empty if that pod is not bound, or no longer held."""
        self.has_run = instance.has_run

    @property
    def node(self) -> str:
        """The node of the VM according to KubeVirt; empty while the VM may be moving."""
        name = self._instance.status.node_name
        return name if self._settled and syntax.is_object_name(name) else ""

    @property
    def is_moving(self) -> bool:
        """Whether the VM is not running, or may be moving to another node."""
        state = self._instance.status.migration_state
        runs = self.node and self._instance.runs
        return not runs or (state is not None and not state.completed)

    def moved_from(self, recorded: str, vm: VirtualMachine, args: StickyArgs) -> bool:
        """Return whether a migration moved the VM from its recorded node to its current one."""
        if self.node in {"", recorded}:
            return False
        return self._was_reported(recorded, vm, args) or self._was_held(recorded)

    def _was_reported(self, recorded: str, vm: VirtualMachine, args: StickyArgs) -> bool:
        """Return whether the VMI reports a migration that the record has to follow.

        A record written by the controller follows every migration, even if the source is not the
        recorded node: it may be in another cluster, or the VM may have reached it unobserved.
        """
        state = self._instance.status.migration_state
        if state is None or not state.has_reached(self.node):
            return False
        if sticky_policy.is_own_record(vm, args):
            return True
        since = objects.instant(state.end_timestamp)
        return state.source_node == recorded and not sticky_policy.is_set_by_others(
            vm, args, since=since
        )

    def _was_held(self, recorded: str) -> bool:
        """Return whether held pods show the migration, even if the VMI reports a later one.

        If all source nodes are known and the record is not one of them, a person wrote the record,
        and it stays.
        """
        if not any(pod.spec.node_name == self.node for pod in self._targets):
            return False
        moves = [pod for pod in self._targets if pod.spec.node_name and not self._has_failed(pod)]
        sources = [self._source(pod) for pod in moves]
        return "" in sources or recorded in {*sources, self.first_node}

    def waits(self, pod: LauncherPod, record: str) -> bool:
        """Return whether to hold a pod: it may still be bound or run, or is being migrated."""
        if not pod.spec.node_name:
            return not pod.has_ended and not (pod in self._targets and self._is_settled(pod))
        if pod in self._targets and not self._settled:
            return True
        may_run = not (self.has_run or pod.has_ended or self._instance.is_over)
        return may_run and not record

    def _is_target(self, pod: LauncherPod) -> bool:
        """Return whether a migration created a pod. A VM's template may also have the label."""
        uid = pod.labels.get(kubevirt.MIGRATION_JOB)
        return uid is not None and (
            uid in self._migrations or bool(self._instance.status.node_name)
        )

    def _migration(self, pod: LauncherPod) -> Migration | None:
        return self._migrations.get(pod.labels.get(kubevirt.MIGRATION_JOB, ""))

    def _is_settled(self, pod: LauncherPod) -> bool:
        """Return whether a pod's migration is over or gone."""
        migration = self._migration(pod)
        return migration is None or migration.is_over or self._instance.is_over

    def _has_failed(self, pod: LauncherPod) -> bool:
        """Return whether the VM never reached a target. The migration's phase may be stale."""
        migration = self._migration(pod)
        failed = migration is not None and migration.status.phase == "Failed"
        return failed and pod.spec.node_name != self.node

    def _source(self, pod: LauncherPod) -> str:
        """Return the node that a migration moved the VM from; empty if unknown."""
        migration = self._migration(pod) or Migration()
        for state in (self._instance.status.migration_state, migration.status.migration_state):
            if state is not None and state.migration_uid == pod.labels.get(kubevirt.MIGRATION_JOB):
                return state.source_node
        return ""


def _belongs(pod: LauncherPod, instance: Instance) -> bool:
    owner = kubevirt.vmi_of(pod)
    return owner is not None and owner.uid == instance.metadata.uid and may_run_vm(pod)
