"""`holdfast sticky`: the nodes that VMs return to."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from holdfast.webhook.cli import commands, nodes, options, targets, terminal, vm_records
from holdfast.webhook.cli.printing import Printing, View, printing
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.kubevirt import (
    TemplatedMachine,
)
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report import sticky_vms, table
from holdfast.webhook.report.pod_status import NodeState
from holdfast.webhook.report.sticky_vms import StickyVm

EXAMPLES = """\b
Examples:
  holdfast sticky list -A
  holdfast sticky show db
  holdfast sticky set db node-2      after moving its disks there
  holdfast sticky clear db           the next start records a new node
  holdfast sticky move --from node-1 --to node-4 -A    after renaming a node"""


def _vm_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Return the name in NAME or vm/NAME. Raises BadParameter for other types."""
    kind, slash, _ = value.rpartition("/")
    named_target = targets.parse(value if slash else f"vm/{value}")
    if not named_target.is_vm:
        raise click.BadParameter(f"{kind} is not a VM: give the name of a VM, or vm/NAME")
    return named_target.name


@commands.group(epilog=EXAMPLES)
def sticky() -> None:
    """Show and change the nodes that VMs return to."""


@sticky.command("list", epilog="Example: holdfast sticky list -A -o wide")
@options.scope
@printing
@options.installed
@options.target
def list_vms(
    *,
    scope: options.Scope,
    printing: Printing,
    installed: options.Installed,
    target: options.Target,
) -> None:
    """List VMs and the nodes that they return to."""
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    namespace = scope.within(cluster)
    entries = vm_records.machines(cluster, installed, scope)
    vms = [sticky_vms.described(*entry) for entry in entries]
    _warn_of_mismatch(cluster, [args for _, _, args in entries])
    now_ms = time.now_ms()
    view: View[StickyVm] = View(
        "StickyVM",
        "virtualmachine.kubevirt.io",
        head=lambda wide: sticky_vms.HEAD_WIDE if wide else sticky_vms.HEAD,
        row=lambda vm, wide: sticky_vms.row(vm, now_ms, wide=wide),
        document=sticky_vms.document,
    )
    printing.write(vms, view, namespace)


@sticky.command(epilog="Example: holdfast sticky show db -n shop")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@options.installed
@options.target
def show(*, vm: str, installed: options.Installed, target: options.Target) -> None:
    """Show where a VM runs, and the node that it returns to."""
    cluster = target.connect()
    find_args = vm_records.args_for(cluster, installed)
    machine, vmi = vm_records.machine(cluster, cluster.namespace, vm)
    args = find_args(sticky_vms.next_pod(machine, vmi))
    sticky_vm = sticky_vms.described(machine, vmi, args)
    node = _state_for(cluster, sticky_vm.node, machine) if sticky_vm.node else None
    title = f"VM {machine.metadata.namespace}/{vm}"
    required = args is not None and args.affinity == "required"
    texts = sticky_vms.shown(sticky_vm, node, required=required)
    if args is not None and sticky_vm.runs_on != sticky_vm.node:
        texts += filter(None, [nodes.recreated(cluster, machine, args)])
    lines = [(f"  {line}", "") for line in texts]
    terminal.write([(title, "bold"), *lines])
    _warn_of_mismatch(cluster, [args])


@sticky.command("set", epilog="Example: holdfast sticky set db node-2")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@click.argument("node", shell_complete=commands.complete_nodes)
@options.installed
@options.dry_run
@options.target
def set_node(*, vm: str, node: str, installed: options.Installed, target: options.Target) -> None:
    """Record the node on which a VM starts next."""
    cluster, suffix = target.connect(), target.suffix
    record = vm_records.VmRecord(cluster, installed, vm)
    _existing(cluster, node)
    record.write(node)
    reason = sticky_vms.loose(record.vm, record.args)
    if reason:
        text = f"{node} is recorded for VM {record.name}, which is not sticky: {reason}{suffix}"
        terminal.write([(text, "yellow")])
    else:
        terminal.write([(f"VM {record.name} returns to {node} at its next start{suffix}", "green")])
    _warn_of(_state_for(cluster, node, record.vm))
    _warn(record.waiting)


@sticky.command(epilog="Example: holdfast sticky clear db")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@options.installed
@options.dry_run
@options.target
def clear(*, vm: str, installed: options.Installed, target: options.Target) -> None:
    """Clear the recorded node of a VM, so that it can start anywhere."""
    record = vm_records.VmRecord(target.connect(), installed, vm)
    record.write(None)
    terminal.write([(f"VM {record.name} no longer has a recorded node{target.suffix}", "green")])
    _warn(record.waiting)


@sticky.command(epilog="Example: holdfast sticky move --from node-1 --to node-4 -A")
@click.option("--from", "old", required=True, metavar="NODE", help="The recorded node.")
@click.option("--to", "new", required=True, metavar="NODE", help="The node to record instead.")
@click.option("-y", "--yes", is_flag=True, help="Change the VMs without asking.")
@options.scope
@options.installed
@options.dry_run
@options.target
def move(
    *,
    old: str,
    new: str,
    yes: bool,
    scope: options.Scope,
    installed: options.Installed,
    target: options.Target,
) -> None:
    """Change the recorded node of all VMs of a node.

    It takes effect at the next start of each VM. The old node need not exist, for example after
    it was renamed.
    """
    cluster = target.connect()
    state = _existing(cluster, new)
    entries = vm_records.machines(cluster, installed, scope)
    moves = [
        (vm, args, sticky_vms.waiting_start(vm, vmi))
        for vm, vmi, args in entries
        if args is not None and sticky_policy.recorded_node(vm, args) == old
    ]
    for args in {args.node_annotation: args for _, args, _ in moves}.values():
        vm_records.require_heard(cluster, args)
    if not moves:
        click.echo(f"No VM returns to {old}; nothing was changed.", err=True)
        return
    if not yes and not target.suffix:
        names = ["/".join(vm.key) for vm, _, _ in moves]
        question = f"Move {table.counted(len(moves), 'VM')} from {old} to {new}?"
        terminal.confirm(question, names, can_ask=sys.stdin.isatty())
    failed_vms = [
        vm for vm, args, _ in moves if not _move(cluster, vm, new, args, suffix=target.suffix)
    ]
    _warn(*(warning for _, _, warning in moves))
    _warn_of(state)
    if failed_vms:
        count = f"{len(failed_vms)} of {table.counted(len(moves), 'VM')}"
        raise CommandError(f"{count} could not be moved; run this command again")


def _move(api: Api, vm: TemplatedMachine, node: str, args: StickyArgs, *, suffix: str) -> bool:
    """Change a VM's record and print the outcome; return False if it failed or the VM changed."""
    change = sticky_vms.record(vm, node, args)
    change["metadata"]["resourceVersion"] = vm.metadata.resource_version
    name = "/".join(vm.key)
    try:
        vm_records.write(api, vm, change)
    except ApiStatusError as exc:
        terminal.write([(f"VM {name} not moved: {exc}", "red")])
        return False
    terminal.write([(f"VM {name} returns to {node} at its next start{suffix}", "green")])
    return True


def _warn_of_mismatch(api: Api, arguments: Iterable[StickyArgs | None]) -> None:
    """Warn if this configuration differs from the cluster's."""
    by_key = {args.node_annotation: args for args in arguments if args}
    _warn(*(vm_records.mismatch(api, args) for args in by_key.values()), err=True)


def _state_for(api: Api, node: str, vm: TemplatedMachine) -> NodeState:
    """Return the state of a node, and whether it accepts the pod of a VM's template."""
    claims = [volume.claim for volume in vm.next_spec.volumes or () if volume.claim]
    return nodes.node_state(api, node, vm.next_pod, claims)


def _warn_of(state: NodeState) -> None:
    _warn(state.problem and f"{state.name}: {state.problem}")


def _warn(*texts: str, err: bool = False) -> None:
    terminal.write([(f"warning: {text}", "yellow") for text in texts if text], err=err)


def _existing(api: Api, name: str) -> NodeState:
    state = nodes.node_state(api, name)
    if state.missing:
        raise CommandError(f"node {name} not found; see kubectl get nodes")
    return state
