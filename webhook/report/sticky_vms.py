"""The nodes recorded on VMs, for tables, scripts and the status page. Pure."""

from dataclasses import dataclass
from typing import Any

from holdfast.webhook.model import durations, kubevirt, messages, syntax
from holdfast.webhook.model.kubevirt import Instance, TemplatedMachine, VirtualMachine
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report import table
from holdfast.webhook.report.pod_status import NodeState

HEAD = ("NAME", "NODE", "STICKY", "RUNS ON", "AGE")
HEAD_WIDE = (*HEAD, "REMARK")


@dataclass(frozen=True, slots=True)
class StickyVm:
    """A VM: the node that it returns to, and the node where it runs now.

    `loose` is the reason why it is not sticky, and is empty if it is. `differs` means that it runs
    on another node than the recorded one, and that only Holdfast has written the record.
    """

    namespace: str
    name: str
    node: str
    loose: str
    runs_on: str
    remark: str = ""
    differs: bool = False
    created_ms: int | None = None
    is_starting: bool = False

    @property
    def is_sticky(self) -> bool:
        """Whether the VM returns to its node."""
        return not self.loose


def described(vm: VirtualMachine, vmi: Instance | None, args: StickyArgs | None) -> StickyVm:
    """Return the summary of a VM and its VMI, if it runs.

    `args` is None if the sticky plugin does not run for its pods.
    """
    node = messages.shorten(sticky_policy.recorded_node(vm, args)) if args else ""
    runs_on = vmi.status.node_name if vmi is not None and runs(vm, vmi) else ""
    is_node = syntax.is_object_name(runs_on)
    if runs_on and not is_node:
        runs_on = messages.quote(runs_on)
    not_sticky = loose(vm, args)
    created = vm.metadata.creation_timestamp
    by_others = args is not None and sticky_policy.is_set_by_others(vm, args)
    return StickyVm(
        namespace=vm.metadata.namespace,
        name=vm.metadata.name,
        node=node,
        loose=not_sticky,
        runs_on=runs_on,
        remark=_remark(vm, args) if args else "",
        # a message puts the node into a command that users copy, so it must be a valid name
        differs=is_node and not (not_sticky or by_others) and node not in {"", runs_on},
        created_ms=None if created is None else int(created.timestamp()) * 1_000,
        is_starting=bool(waiting_start(vm, vmi)),
    )


def runs(vm: VirtualMachine, vmi: Instance) -> bool:
    """Return whether a VMI belongs to this VM."""
    owner = kubevirt.vm_of(vmi)
    return owner is not None and owner.uid == vm.metadata.uid


def waiting_start(vm: VirtualMachine, vmi: Instance | None) -> str:
    """Return why a changed record does not apply to a pending start; empty if none is pending."""
    if vmi is None or not runs(vm, vmi) or vmi.status.node_name:
        return ""
    namespace, name = vm.key
    return (
        f"VM {namespace}/{name} is starting: its pod keeps the node that was recorded before. To "
        f"start it again: kubectl delete vmi {name} --namespace {namespace}"
    )


def next_pod(vm: TemplatedMachine, vmi: Instance | None) -> Pod:
    """Return the pod of a VM's next run, with the fields that select its profile."""
    return kubevirt.pod_of(vmi) if vmi is not None and runs(vm, vmi) else vm.next_pod


def loose(vm: VirtualMachine, args: StickyArgs | None) -> str:
    """Return why a VM is not sticky; empty if it is."""
    if args is None:
        return "the sticky plugin does not run for its pods in this configuration"
    if sticky_policy.is_sticky(vm, args):
        return ""
    if args.namespaces and vm.metadata.namespace not in args.namespaces:
        return f"namespace {vm.metadata.namespace} is not configured"
    return (
        f"it has no annotation {kubevirt.STICKY}: true"
        if args.select == "annotated"
        else f"it has annotation {kubevirt.STICKY}: false"
    )


def _remark(vm: VirtualMachine, args: StickyArgs) -> str:
    uid = vm.annotations.get(kubevirt.STICKY_NODE_UID, "")
    node = messages.shorten(vm.annotations.get(args.node_annotation, ""))
    if node and uid not in {"", vm.metadata.uid}:
        return (
            f"the record of {node} was copied from another VM with its annotations, and is ignored"
        )
    if node and not uid:
        return "the node was set by hand"
    return ""


def row(vm: StickyVm, now_ms: int, *, wide: bool = False) -> list[str]:
    """Format a VM as a table row, without its namespace."""
    runs_on = f"{vm.runs_on} (differs)" if vm.differs else vm.runs_on or "-"
    age = "-" if vm.created_ms is None else table.duration(now_ms - vm.created_ms)
    cells = [vm.name, vm.node or "-", "yes" if vm.is_sticky else "no", runs_on, age]
    return [*cells, vm.remark or "-"] if wide else cells


def document(vm: StickyVm) -> dict[str, Any]:
    """Convert a VM for JSON and YAML output."""
    created = None if vm.created_ms is None else durations.canonical_instant(vm.created_ms)
    return {
        "metadata": {
            "namespace": vm.namespace,
            "name": vm.name,
            "creationTimestamp": created,
        },
        "node": vm.node or None,
        "sticky": vm.is_sticky,
        "runsOn": vm.runs_on or None,
        "differs": vm.differs,
        "remark": vm.remark or None,
    }


def shown(vm: StickyVm, node: NodeState | None, *, required: bool) -> list[str]:
    """Return lines about a VM's current and recorded nodes; `required` excludes all others."""
    state = "is starting: its pod waits to be scheduled" if vm.is_starting else "is not running"
    lines = [f"runs on {vm.runs_on}" if vm.runs_on else state]
    if vm.loose:
        lines.append(f"not sticky: {vm.loose}")
    elif vm.node:
        verb = "returns" if required else "preferably returns"
        lines.append(f"{verb} to {vm.node}")
    else:
        lines.append("no node is recorded: the next start records one")
    if vm.differs:
        lines.append(
            f"these differ: to keep it on {vm.runs_on}, holdfast sticky set {vm.name} "
            f"{vm.runs_on} -n {vm.namespace}"
        )
    if vm.remark:
        lines.append(vm.remark)
    if vm.is_sticky and vm.node and node is not None:
        lines.append(f"{vm.node}: {node.problem or 'accepts pods'}")
        lines += node.remarks
    return lines


def record(vm: VirtualMachine, node: str | None, args: StickyArgs) -> dict[str, Any]:
    """Return the merge patch that records a node for exactly this VM, or clears the record.

    Clearing keeps the UID, so that the controller does not record the current node again.
    """
    annotations = {args.node_annotation: node, kubevirt.STICKY_NODE_UID: vm.metadata.uid}
    return {"metadata": {"uid": vm.metadata.uid, "annotations": annotations}}
