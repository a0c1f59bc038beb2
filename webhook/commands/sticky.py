"""`holdfast sticky`: the nodes that VMs come back to."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click
import msgspec

from webhook import config, reading, sticky_vms, vms
from webhook.cluster import Api
from webhook.commands import options, terminal
from webhook.errors import ApiStatusError, CommandError
from webhook.inspection import NodeState
from webhook.vms import Instance, StickyArgs, VirtualMachine

MERGE_PATCH = "application/merge-patch+json"

EXAMPLES = """\b
Examples:
  holdfast sticky list -A
  holdfast sticky show db
  holdfast sticky set db node-2      after its disks were moved there
  holdfast sticky clear db           it goes anywhere, and that is recorded"""


@click.group(epilog=EXAMPLES)
def sticky() -> None:
    """Show and change the nodes that VMs come back to."""


@sticky.command("list", epilog="Example: holdfast sticky list -A -o wide")
@options.scope
@options.output
@options.config
@options.target
def list_vms(
    *, scope: options.Scope, output: str, config_path: Path | None, target: options.Target
) -> None:
    """List VMs with the nodes that they come back to."""
    args = _args(config_path)
    cluster = target.connect()
    namespace = scope.within(cluster)
    query = {"labelSelector": scope.selector}
    machines = [*_all(cluster, namespace, "virtualmachines", VirtualMachine, query)]
    running = _all(cluster, namespace, "virtualmachineinstances", Instance, {})
    instances = {(one.metadata.namespace, one.metadata.name): one for one in running}
    found = [
        sticky_vms.described(vm, instances.get((vm.metadata.namespace, vm.metadata.name)), args)
        for vm in machines
    ]
    if output in {"json", "yaml"}:
        terminal.write_document(sticky_vms.documents(found), output)
        return
    if not found:
        where = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(f"There is no VM in {where}.", err=True)
        return
    wide = output == "wide"
    head = sticky_vms.HEAD_WIDE if wide else sticky_vms.HEAD
    rows = [sticky_vms.row(one, wide=wide, namespace=not namespace) for one in found]
    terminal.write(terminal.table(head if namespace else ("NAMESPACE", *head), rows))


@sticky.command(epilog="Example: holdfast sticky show db -n shop")
@click.argument("vm")
@options.namespace
@options.config
@options.target
def show(
    *, vm: str, namespace: str | None, config_path: Path | None, target: options.Target
) -> None:
    """Say where a VM runs, and where it comes back to."""
    args = _args(config_path)
    cluster = target.connect()
    machine = _machine(cluster, namespace or cluster.namespace, vm)
    path = vms.vmi_path(machine.metadata.namespace, vm)
    one = sticky_vms.described(machine, reading.one(cluster, path, Instance), args)
    node = reading.node_state(cluster, one.node) if one.node else None
    title = f"VM {machine.metadata.namespace}/{vm}"
    lines = [(f"  {line}", "") for line in sticky_vms.shown(one, node, args)]
    terminal.write([(title, "bold"), *lines])


@sticky.command("set", epilog="Example: holdfast sticky set db node-2")
@click.argument("vm")
@click.argument("node")
@options.namespace
@options.config
@options.target
def set_node(
    *, vm: str, node: str, namespace: str | None, config_path: Path | None, target: options.Target
) -> None:
    """Have a VM come back to another node, from its next start on."""
    args = _args(config_path)
    cluster = target.connect()
    machine = _machine(cluster, namespace or cluster.namespace, vm)
    state = _existing(cluster, node)
    _write(cluster, machine, node, args)
    name = f"{machine.metadata.namespace}/{vm}"
    terminal.write([(f"VM {name} comes back to {node} at its next start", "green")])
    if state.problem:
        terminal.write([(f"warning: {node}: {state.problem}", "yellow")])


@sticky.command(epilog="Example: holdfast sticky clear db")
@click.argument("vm")
@options.namespace
@options.config
@options.target
def clear(
    *, vm: str, namespace: str | None, config_path: Path | None, target: options.Target
) -> None:
    """Forget a VM's node: it goes anywhere at its next start, and that is recorded."""
    args = _args(config_path)
    cluster = target.connect()
    machine = _machine(cluster, namespace or cluster.namespace, vm)
    _write(cluster, machine, None, args)
    terminal.write([(f"VM {machine.metadata.namespace}/{vm} has no node recorded now", "green")])


def _args(config_path: Path | None) -> StickyArgs:
    """Read the sticky plugin's arguments: those of the first profile that has any."""
    for profile in config.load(config_path).profiles:
        for plugin in profile.plugin_config:
            if plugin.name == "sticky":
                return msgspec.convert(plugin.args, StickyArgs)
    return StickyArgs()


def _machine(api: Api, namespace: str, name: str) -> VirtualMachine:
    found = reading.one(api, vms.vm_path(namespace, name), VirtualMachine)
    if found is None:
        raise CommandError(f"there is no VM {namespace}/{name}; holdfast sticky list names them")
    return found


def _existing(api: Api, name: str) -> NodeState:
    state = reading.node_state(api, name)
    if state.missing:
        raise CommandError(f"there is no node {name}; see kubectl get nodes")
    return state


def _all(
    api: Api, namespace: str, resource: str, kind: type[reading.T], query: dict[str, str]
) -> list[reading.T]:
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    try:
        return [*reading.objects(api, f"/apis/kubevirt.io/v1{within}/{resource}", kind, query)]
    except ApiStatusError as exc:
        if exc.status == 404:
            raise CommandError(
                "this cluster has no KubeVirt, so there are no VMs; name another --context"
            ) from None
        raise


def _write(api: Api, vm: VirtualMachine, node: str | None, args: StickyArgs) -> None:
    """Change the record; a VM that was made anew meanwhile is refused by its UID."""
    path = vms.vm_path(vm.metadata.namespace, vm.metadata.name)
    body = msgspec.json.encode(sticky_vms.record(vm, node, args))
    api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
