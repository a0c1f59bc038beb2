"""`holdfast sticky`: the nodes that VMs return to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import click
import msgspec

from holdfast.webhook.cli import commands, nodes, options, targets, terminal
from holdfast.webhook.cli.printing import Printing, View, printing
from holdfast.webhook.cli.webhook_checks import LABEL
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.framework import cel
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import (
    Instance,
    TemplatedMachine,
    VirtualMachine,
)
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.registration import configurations
from holdfast.webhook.report import sticky_vms, table
from holdfast.webhook.report.pod_status import NodeState
from holdfast.webhook.report.sticky_vms import StickyVm
from holdfast.webhook.runtime import pipelines

MERGE_PATCH = "application/merge-patch+json"
_CURE = "give the cluster's configuration with --config"
_INSTANCES = "virtualmachineinstances"
_FORBIDDEN, _NOT_FOUND = 403, 404

EXAMPLES = """\b
Examples:
  holdfast sticky list -A
  holdfast sticky show db
  holdfast sticky set db node-2      after moving its disks there
  holdfast sticky clear db           the next start records a new node
  holdfast sticky move --from node-1 --to node-4 -A    after renaming a node"""


def _vm_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Accept vm/NAME as well as NAME."""
    kind, slash, _ = value.rpartition("/")
    found = targets.parse(value if slash else f"vm/{value}")
    if not found.is_vm:
        raise click.BadParameter(f"{kind} is not a VM: give the name of a VM, or vm/NAME")
    return found.name


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
    time = listing.Time()
    cluster = target.connect(time.observe)
    settings = StickySettings(installed.setup(cluster))
    namespace = scope.within(cluster)
    read = _machines(cluster, namespace, scope.selector, settings)
    found = [sticky_vms.described(*each) for each in read]
    _warn(cluster, [args for _, _, args in read])
    now_ms = time.now_ms()
    view: View[StickyVm] = View(
        "StickyVM",
        "virtualmachine.kubevirt.io",
        head=lambda wide: sticky_vms.HEAD_WIDE if wide else sticky_vms.HEAD,
        row=lambda one, wide: sticky_vms.row(one, now_ms, wide=wide),
        document=sticky_vms.document,
    )
    printing.write(found, view, namespace)


@sticky.command(epilog="Example: holdfast sticky show db -n shop")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@options.installed
@options.target
def show(*, vm: str, installed: options.Installed, target: options.Target) -> None:
    """Show where a VM runs, and the node that it returns to."""
    cluster = target.connect()
    settings = StickySettings(installed.setup(cluster))
    machine, vmi = _machine(cluster, cluster.namespace, vm)
    args = settings.of(machine, vmi)
    one = sticky_vms.described(machine, vmi, args)
    node = _state_for(cluster, one.node, machine) if one.node else None
    title = f"VM {machine.metadata.namespace}/{vm}"
    required = args is not None and args.affinity == "required"
    shown = sticky_vms.shown(one, node, required=required)
    if args is not None and one.runs_on != one.node:
        shown += filter(None, [nodes.recreated(cluster, machine, args)])
    lines = [(f"  {line}", "") for line in shown]
    terminal.write([(title, "bold"), *lines])
    _warn(cluster, [args])


@sticky.command("set", epilog="Example: holdfast sticky set db node-2")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@click.argument("node", shell_complete=commands.complete_nodes)
@options.installed
@options.dry_run
@options.target
def set_node(*, vm: str, node: str, installed: options.Installed, target: options.Target) -> None:
    """Set the node of a VM, from its next start."""
    cluster = target.connect()
    settings = StickySettings(installed.setup(cluster))
    record = _Record(cluster, cluster.namespace, vm, settings)
    suffix = target.suffix
    _existing(cluster, node)
    record.write(node)
    loose = sticky_vms.loose(record.vm, record.args)
    if loose:
        text = f"{node} is recorded for VM {record.name}, which is not sticky: {loose}{suffix}"
        terminal.write([(text, "yellow")])
    else:
        terminal.write([(f"VM {record.name} returns to {node} at its next start{suffix}", "green")])
    _warn_of(_state_for(cluster, node, record.vm))
    record.warn_if_waiting()


@sticky.command(epilog="Example: holdfast sticky clear db")
@click.argument("vm", callback=_vm_name, shell_complete=commands.complete_vms)
@options.installed
@options.dry_run
@options.target
def clear(*, vm: str, installed: options.Installed, target: options.Target) -> None:
    """Clear a VM's node, so that its next start records one.

    The scheduler picks the node.
    """
    cluster = target.connect()
    settings = StickySettings(installed.setup(cluster))
    record = _Record(cluster, cluster.namespace, vm, settings)
    suffix = target.suffix
    record.write(None)
    terminal.write([(f"VM {record.name} no longer has a recorded node{suffix}", "green")])
    record.warn_if_waiting()


@sticky.command(epilog="Example: holdfast sticky move --from node-1 --to node-4 -A")
@click.option("--from", "old", required=True, metavar="NODE", help="The node that is recorded.")
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
    """Set another node for all VMs of a node, from their next start.

    The old node need not exist any more, as after it was renamed.
    """
    cluster = target.connect()
    settings = StickySettings(installed.setup(cluster))
    state = _existing(cluster, new)
    read = _machines(cluster, scope.within(cluster), scope.selector, settings)
    found = [
        (vm, args, sticky_vms.waiting_start(vm, vmi))
        for vm, vmi, args in read
        if args is not None and sticky_policy.recorded_node(vm, args) == old
    ]
    for args in {args.node_annotation: args for _, args, _ in found}.values():
        _require_heard(cluster, args)
    if not found:
        click.echo(f"No VM returns to {old}; nothing was changed.", err=True)
        return
    if not yes and not target.suffix:
        names = ["/".join(vm.key) for vm, _, _ in found]
        question = f"Move {table.counted(len(found), 'VM')} from {old} to {new}?"
        terminal.confirm(question, names, can_ask=sys.stdin.isatty())
    failed = [
        vm for vm, args, _ in found if not _move(cluster, vm, new, args, suffix=target.suffix)
    ]
    warnings = [(f"warning: {waiting}", "yellow") for _, _, waiting in found if waiting]
    if warnings:
        terminal.write(warnings)
    _warn_of(state)
    if failed:
        count = f"{len(failed)} of {table.counted(len(found), 'VM')}"
        raise CommandError(f"{count} could not be moved; run this command again")


def _move(api: Api, vm: TemplatedMachine, node: str, args: StickyArgs, *, suffix: str) -> bool:
    """Change the record of a VM that has not changed since it was read, and print the outcome."""
    change = sticky_vms.record(vm, node, args)
    change["metadata"]["resourceVersion"] = vm.metadata.resource_version
    name = "/".join(vm.key)
    try:
        _write(api, vm, change)
    except ApiStatusError as exc:
        terminal.write([(f"VM {name} not moved: {exc}", "red")])
        return False
    terminal.write([(f"VM {name} returns to {node} at its next start{suffix}", "green")])
    return True


def _write(api: Api, vm: VirtualMachine, change: dict[str, Any]) -> None:
    body = msgspec.json.encode(change)
    api.request("PATCH", kubevirt.vm_path(*vm.key), body=body, content_type=MERGE_PATCH)


class StickySettings:
    """The sticky plugin's arguments, by the configuration; each VM's profile has its own."""

    def __init__(self, setup: pipelines.Setup) -> None:
        """Load the profiles of a configuration. Raises ConfigurationError."""
        self._profiles = pipelines.load_profiles(setup)

    def of(self, vm: TemplatedMachine, vmi: Instance | None) -> StickyArgs | None:
        """Give the arguments for a VM's pods; None where the plugin does not run for them."""
        return pipelines.sticky_args(self._profiles, sticky_vms.next_pod(vm, vmi))


class _Record:
    """The record of one VM, which a person changes. Raises CommandError or ClusterError."""

    def __init__(self, api: Api, namespace: str, name: str, settings: StickySettings) -> None:
        self._api = api
        self.vm, self._vmi = _machine(api, namespace, name)
        self.name = f"{self.vm.metadata.namespace}/{name}"
        self.args = _required(self.vm, settings.of(self.vm, self._vmi))
        _require_heard(api, self.args)

    def write(self, node: str | None) -> None:
        """Change the record; the UID makes the API server reject a VM that was recreated."""
        _write(self._api, self.vm, sticky_vms.record(self.vm, node, self.args))

    def warn_if_waiting(self) -> None:
        """Say that a VM that waits to start has a pod with the node recorded before."""
        waiting = sticky_vms.waiting_start(self.vm, self._vmi)
        if waiting:
            terminal.write([(f"warning: {waiting}", "yellow")])


def _required(vm: VirtualMachine, args: StickyArgs | None) -> StickyArgs:
    if args is None:
        name = f"{vm.metadata.namespace}/{vm.metadata.name}"
        raise CommandError(f"VM {name}: {sticky_vms.loose(vm, args)}; {_CURE}")
    return args


def _require_heard(api: Api, args: StickyArgs) -> None:
    """Refuse to write an annotation that the cluster does not read. Raises CommandError."""
    unheard = _mismatch(api, args)
    if unheard:
        raise CommandError(unheard)


def _mismatch(api: Api, args: StickyArgs) -> str:
    """Say so where the registered webhooks do not look at the annotation: the cluster has another.

    Nothing is said where none is registered, or where they may not be read.
    """
    path = configurations.path("validating", "").rstrip("/")
    try:
        found = [*listing.objects(api, path, dict[str, Any], {"labelSelector": LABEL})]
    except ApiStatusError as exc:
        if exc.status != _FORBIDDEN:
            raise
        return ""
    expressions = [
        condition.get("expression", "")
        for configuration in found
        for webhook in configuration.get("webhooks") or ()
        for condition in webhook.get("matchConditions") or ()
    ]
    key = args.node_annotation
    if not expressions or any(cel.string(key) in one for one in expressions):
        return ""
    return f"Holdfast in this cluster does not read annotation {key} of VMs; {_CURE}"


def _warn(api: Api, followed: Iterable[StickyArgs | None]) -> None:
    """Warn if this configuration differs from the cluster's."""
    by_key = {args.node_annotation: args for args in followed if args}
    mismatches = [text for text in (_mismatch(api, args) for args in by_key.values()) if text]
    lines = [(f"warning: {text}", "yellow") for text in mismatches]
    terminal.write(lines, err=True)


def _machine(api: Api, namespace: str, name: str) -> tuple[TemplatedMachine, Instance | None]:
    """Read a VM, and the VMI of its name."""
    with _kubevirt_required():
        found = listing.one(api, kubevirt.vm_path(namespace, name), TemplatedMachine)
        if found is not None:
            return found, listing.one(api, kubevirt.vmi_path(namespace, name), Instance)
    raise CommandError(f"VM {namespace}/{name} not found; see holdfast sticky list -n {namespace}")


def _machines(
    api: Api, namespace: str, selector: str, settings: StickySettings
) -> list[tuple[TemplatedMachine, Instance | None, StickyArgs | None]]:
    """Read VMs, with the VMI of their name and the arguments that apply to their pods."""
    query = {"labelSelector": selector}
    machines = _all(api, namespace, "virtualmachines", TemplatedMachine, query)
    running = {one.key: one for one in _all(api, namespace, _INSTANCES, Instance, {})}
    both = [(vm, running.get(vm.key)) for vm in machines]
    return [(vm, vmi, settings.of(vm, vmi)) for vm, vmi in both]


def _state_for(api: Api, node: str, vm: TemplatedMachine) -> NodeState:
    """Read a node, and whether it accepts the pod that a VM's template defines."""
    claims = [volume.claim for volume in vm.next_spec.volumes or () if volume.claim]
    return nodes.node_state(api, node, vm.next_pod, claims)


def _warn_of(state: NodeState) -> None:
    if state.problem:
        terminal.write([(f"warning: {state.name}: {state.problem}", "yellow")])


def _existing(api: Api, name: str) -> NodeState:
    state = nodes.node_state(api, name)
    if state.missing:
        raise CommandError(f"node {name} not found; see kubectl get nodes")
    return state


def _all(
    api: Api, namespace: str, resource: str, kind: type[listing.T], query: dict[str, str]
) -> list[listing.T]:
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    with _kubevirt_required():
        return [*listing.objects(api, f"/apis/kubevirt.io/v1{within}/{resource}", kind, query)]


@contextmanager
def _kubevirt_required() -> Iterator[None]:
    """Say so where a cluster does not have VMs at all. Raises CommandError then."""
    try:
        yield
    except ApiStatusError as exc:
        if exc.status == _NOT_FOUND:
            raise CommandError(
                "this cluster has no KubeVirt, so there are no VMs; choose another --context"
            ) from None
        raise
