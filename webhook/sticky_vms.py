"""What is kept on VMs, as people want to see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webhook import vms
from webhook.inspection import NodeState
from webhook.objects import Pod
from webhook.vms import Instance, StickyArgs, TemplatedMachine, VirtualMachine

HEAD = ("NAME", "NODE", "STICKS", "RUNS ON")
HEAD_WIDE = (*HEAD, "REMARK")


@dataclass(frozen=True, slots=True)
class StickyVm:
    """One VM: whether it comes back, to which node, and where it runs now.

    `loose` says why it does not stick, where it does not.
    """

    namespace: str
    name: str
    node: str
    loose: str
    runs_on: str
    remark: str = ""

    @property
    def sticks(self) -> bool:
        """Whether it comes back at all."""
        return not self.loose


def described(vm: VirtualMachine, vmi: Instance | None, args: StickyArgs | None) -> StickyVm:
    """Describe a VM, with its VMI where one runs; no `args`: the plugin does not run for it."""
    return StickyVm(
        namespace=vm.metadata.namespace,
        name=vm.metadata.name,
        node=vms.recorded_node(vm, args) if args else "",
        loose=loose(vm, args),
        runs_on=vmi.status.node_name if vmi is not None and runs(vm, vmi) else "",
        remark=_remark(vm, args) if args else "",
    )


def runs(vm: VirtualMachine, vmi: Instance) -> bool:
    """Tell whether a VMI is a run of this very VM."""
    owner = vms.controller_of(vmi.metadata, vms.VM)
    return owner is not None and owner.uid == vm.metadata.uid


def next_pod(vm: TemplatedMachine, vmi: Instance | None) -> Pod:
    """Give the pod of a VM's next run, as far as a profile is chosen by it: that of this run."""
    return vms.pod_of(vmi if vmi is not None and runs(vm, vmi) else vm.next_instance)


def loose(vm: VirtualMachine, args: StickyArgs | None) -> str:
    """Say why a VM does not stick; empty where it does."""
    if args is None:
        return "by this configuration the plugin sticky does not run for its pods"
    if vms.sticks(vm, args):
        return ""
    if args.namespaces and vm.metadata.namespace not in args.namespaces:
        return f"namespace {vm.metadata.namespace} is not among those configured"
    return (
        f"it does not say {vms.STICKY}: true"
        if args.select == "annotated"
        else f"it says {vms.STICKY}: false"
    )


def _remark(vm: VirtualMachine, args: StickyArgs) -> str:
    uid = vm.annotations.get(vms.STICKY_NODE_UID, "")
    node = vm.annotations.get(args.node_annotation, "")
    if node and uid not in {"", vm.metadata.uid}:
        return (
            f"the record of {node} is another VM's, copied with its annotations: it does not count"
        )
    if node and not uid:
        return "the node was set by a person"
    return ""


def row(one: StickyVm, *, wide: bool = False, namespace: bool = False) -> list[str]:
    """Write a VM as a row of the table."""
    cells = [one.namespace] if namespace else []
    cells += [one.name, one.node or "-", "yes" if one.sticks else "no", one.runs_on or "-"]
    return [*cells, one.remark or "-"] if wide else cells


def document(one: StickyVm) -> dict[str, Any]:
    """Write a VM for a program."""
    return {
        "namespace": one.namespace,
        "name": one.name,
        "node": one.node or None,
        "sticks": one.sticks,
        "runsOn": one.runs_on or None,
        "remark": one.remark or None,
    }


def documents(found: Sequence[StickyVm]) -> dict[str, Any]:
    """Write a list of VMs for a program."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "StickyVMList",
        "items": [document(one) for one in found],
    }


def shown(one: StickyVm, node: NodeState | None, *, required: bool) -> list[str]:
    """Say in words where a VM runs and where it will; `required`: there and nowhere else."""
    lines = [f"runs on {one.runs_on}" if one.runs_on else "does not run"]
    if one.loose:
        lines.append(f"does not stick: {one.loose}")
    elif one.node:
        must = "comes" if required else "comes, if that can be,"
        lines.append(f"{must} back to {one.node}")
    else:
        lines.append("no node is recorded: it goes anywhere, and that is recorded")
    if one.remark:
        lines.append(one.remark)
    if one.sticks and one.node and node is not None:
        lines.append(f"{one.node}: {node.problem or 'takes pods'}")
    return lines


def record(vm: VirtualMachine, node: str | None, args: StickyArgs) -> dict[str, Any]:
    """Make the merge patch that records a node for exactly this VM, or clears the record.

    A record that is cleared leaves the UID: so the controller knows that a person did that, and
    does not record the VM again where it runs.
    """
    annotations = {args.node_annotation: node, vms.STICKY_NODE_UID: vm.metadata.uid}
    return {"metadata": {"uid": vm.metadata.uid, "annotations": annotations}}
