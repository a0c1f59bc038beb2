"""`holdfast sticky`: the nodes that VMs come back to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from webhook import conditions, reading, registration, sticky_vms, vms, wiring
from webhook.cluster import Api
from webhook.commands import options, terminal
from webhook.commands.examination import LABEL
from webhook.errors import ApiStatusError, CommandError
from webhook.inspection import NodeState
from webhook.vms import Instance, StickyArgs, TemplatedMachine, VirtualMachine

MERGE_PATCH = "application/merge-patch+json"
_CURE = "give the configuration that the cluster's Holdfast runs by, with --config"
_FORBIDDEN, _NOT_FOUND = 403, 404

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
    settings = Settings(config_path)
    cluster = target.connect()
    namespace = scope.within(cluster)
    query = {"labelSelector": scope.selector}
    machines = [*_all(cluster, namespace, "virtualmachines", TemplatedMachine, query)]
    running = _all(cluster, namespace, "virtualmachineinstances", Instance, {})
    by_key = {one.key: one for one in running}
    instances = [by_key.get(vm.key) for vm in machines]
    followed = [settings.of(vm, vmi) for vm, vmi in zip(machines, instances, strict=True)]
    found = list(map(sticky_vms.described, machines, instances, followed))
    _warn(cluster, followed)
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
    settings = Settings(config_path)
    cluster = target.connect()
    machine, vmi = _machine(cluster, namespace or cluster.namespace, vm)
    args = settings.of(machine, vmi)
    one = sticky_vms.described(machine, vmi, args)
    node = reading.node_state(cluster, one.node) if one.node else None
    title = f"VM {machine.metadata.namespace}/{vm}"
    required = args is not None and args.affinity == "required"
    lines = [(f"  {line}", "") for line in sticky_vms.shown(one, node, required=required)]
    terminal.write([(title, "bold"), *lines])
    _warn(cluster, [args])


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
    settings = Settings(config_path)
    cluster = target.connect()
    record = _Record(cluster, namespace or cluster.namespace, vm, settings)
    state = _existing(cluster, node)
    record.write(node)
    loose = sticky_vms.loose(record.vm, record.args)
    if loose:
        told = f"{node} is recorded for VM {record.name}, which does not stick: {loose}"
        terminal.write([(told, "yellow")])
    else:
        terminal.write([(f"VM {record.name} comes back to {node} at its next start", "green")])
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
    settings = Settings(config_path)
    cluster = target.connect()
    record = _Record(cluster, namespace or cluster.namespace, vm, settings)
    record.write(None)
    terminal.write([(f"VM {record.name} has no node recorded now", "green")])


class Settings:
    """The sticky plugin's arguments, by the configuration; each VM's profile has its own."""

    def __init__(self, config_path: Path | None) -> None:
        """Read a configuration, or the defaults. Raises ConfigurationError."""
        self._pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved)

    def of(self, vm: TemplatedMachine, vmi: Instance | None) -> StickyArgs | None:
        """Give the arguments for a VM's pods; None where the plugin does not run for them."""
        return wiring.sticky_args(self._pipeline, sticky_vms.next_pod(vm, vmi))


class _Record:
    """The record of one VM, which a person changes. Raises CommandError or ClusterError."""

    def __init__(self, api: Api, namespace: str, name: str, settings: Settings) -> None:
        self._api = api
        self.vm, vmi = _machine(api, namespace, name)
        self.name = f"{self.vm.metadata.namespace}/{name}"
        self.args = _required(self.vm, settings.of(self.vm, vmi))
        unheard = _unheard(api, self.args)
        if unheard:
            raise CommandError(unheard)

    def write(self, node: str | None) -> None:
        """Change it; a VM that was made anew meanwhile is refused by its UID."""
        path = vms.vm_path(*self.vm.key)
        body = msgspec.json.encode(sticky_vms.record(self.vm, node, self.args))
        self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def _required(vm: VirtualMachine, args: StickyArgs | None) -> StickyArgs:
    if args is None:
        name = f"{vm.metadata.namespace}/{vm.metadata.name}"
        raise CommandError(f"VM {name}: {sticky_vms.loose(vm, args)}; {_CURE}")
    return args


def _unheard(api: Api, args: StickyArgs) -> str:
    """Say so where the registered webhooks do not look at the annotation: the cluster has another.

    Nothing is said where none is registered, or where they may not be read.
    """
    path = registration.path("validating", "").rstrip("/")
    try:
        found = [*reading.objects(api, path, dict[str, Any], {"labelSelector": LABEL})]
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
    if not expressions or any(conditions.string(key) in one for one in expressions):
        return ""
    return f"Holdfast does not look at annotation {key} of VMs in this cluster; {_CURE}"


def _warn(api: Api, followed: Iterable[StickyArgs | None]) -> None:
    """Warn where what is told is by another configuration than the cluster's."""
    by_key = {args.node_annotation: args for args in followed if args}
    told = [text for text in (_unheard(api, args) for args in by_key.values()) if text]
    lines = [(f"warning: {text}", "yellow") for text in told]
    terminal.write(lines, terminal.console(stderr=True))


def _machine(api: Api, namespace: str, name: str) -> tuple[TemplatedMachine, Instance | None]:
    """Read a VM, and the VMI of its name."""
    with _told_without_kubevirt():
        found = reading.one(api, vms.vm_path(namespace, name), TemplatedMachine)
        if found is not None:
            return found, reading.one(api, vms.vmi_path(namespace, name), Instance)
    raise CommandError(f"there is no VM {namespace}/{name}; holdfast sticky list names them")


def _existing(api: Api, name: str) -> NodeState:
    state = reading.node_state(api, name)
    if state.missing:
        raise CommandError(f"there is no node {name}; see kubectl get nodes")
    return state


def _all(
    api: Api, namespace: str, resource: str, kind: type[reading.T], query: dict[str, str]
) -> list[reading.T]:
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    with _told_without_kubevirt():
        return [*reading.objects(api, f"/apis/kubevirt.io/v1{within}/{resource}", kind, query)]


@contextmanager
def _told_without_kubevirt() -> Iterator[None]:
    """Say so where a cluster does not have VMs at all. Raises CommandError then."""
    try:
        yield
    except ApiStatusError as exc:
        if exc.status == _NOT_FOUND:
            raise CommandError(
                "this cluster has no KubeVirt, so there are no VMs; name another --context"
            ) from None
        raise
