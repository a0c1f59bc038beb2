"""Read VMs for commands, and write the nodes that they return to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from holdfast.webhook.cli import options
from holdfast.webhook.cli.connection import CommandCluster
from holdfast.webhook.cli.webhook_checks import LABEL
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.framework import cel
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import MERGE_PATCH, Api
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import Instance, TemplatedMachine, VirtualMachine
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.registration import configurations
from holdfast.webhook.report import sticky_vms
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.sticky.reconciler import ArgsForPod

_CURE = "give the cluster's configuration with --config"


def args_for(cluster: CommandCluster, installed: options.Installed) -> ArgsForPod:
    """Return a lookup of the arguments that the configuration sets. Raises ConfigurationError."""
    return partial(pipelines.sticky_args, pipelines.load_profiles(installed.setup(cluster)))


class VmRecord:
    """The recorded node of one VM, to be changed. Raises CommandError or ClusterError."""

    def __init__(self, cluster: CommandCluster, installed: options.Installed, name: str) -> None:
        find_args = args_for(cluster, installed)
        self._api = cluster
        self.vm, self._vmi = machine(cluster, cluster.namespace, name)
        self.name = "/".join(self.vm.key)
        args = find_args(sticky_vms.next_pod(self.vm, self._vmi))
        if args is None:
            raise CommandError(f"VM {self.name}: {sticky_vms.loose(self.vm, args)}; {_CURE}")
        self.args = args
        require_heard(cluster, args)

    def write(self, node: str | None) -> None:
        """Record a node, or clear it. The UID makes the API server reject a recreated VM."""
        write(self._api, self.vm, sticky_vms.record(self.vm, node, self.args))

    @property
    def waiting(self) -> str:
        """A warning if the VM is already starting with the earlier node; empty if not."""
        return sticky_vms.waiting_start(self.vm, self._vmi)


def write(api: Api, vm: VirtualMachine, change: dict[str, Any]) -> None:
    """Send a merge patch for a VM. Raises ClusterError."""
    body = msgspec.json.encode(change)
    api.request("PATCH", kubevirt.vm_path(*vm.key), body=body, content_type=MERGE_PATCH)


def machine(api: Api, namespace: str, name: str) -> tuple[TemplatedMachine, Instance | None]:
    """Return a VM, and the VMI of its name or None. Raises CommandError or ClusterError."""
    with _kubevirt_required():
        vm = listing.one(api, kubevirt.vm_path(namespace, name), TemplatedMachine)
        if vm is not None:
            return vm, listing.one(api, kubevirt.vmi_path(namespace, name), Instance)
    raise CommandError(f"VM {namespace}/{name} not found; see holdfast sticky list -n {namespace}")


def machines(
    cluster: CommandCluster, installed: options.Installed, scope: options.Scope
) -> list[tuple[TemplatedMachine, Instance | None, StickyArgs | None]]:
    """Return VMs, each with the VMI of its name and the arguments that apply to its pods."""
    find_args, namespace = args_for(cluster, installed), scope.within(cluster)
    paths = kubevirt.vm_path(namespace, ""), kubevirt.vmi_path(namespace, "")
    query = {"labelSelector": scope.selector}
    with _kubevirt_required():
        vms = [*listing.objects(cluster, paths[0], TemplatedMachine, query)]
        instances = listing.objects(cluster, paths[1], Instance)
        vmis_by_key = {vmi.key: vmi for vmi in instances}
    pairs = [(vm, vmis_by_key.get(vm.key)) for vm in vms]
    return [(vm, vmi, find_args(sticky_vms.next_pod(vm, vmi))) for vm, vmi in pairs]


def require_heard(api: Api, args: StickyArgs) -> None:
    """Check that the cluster reads the node annotation. Raises CommandError if it does not."""
    if warning := mismatch(api, args):
        raise CommandError(warning)


def mismatch(api: Api, args: StickyArgs) -> str:
    """Return a warning if the registered webhooks do not read the node annotation.

    Empty if they do, if there are no webhooks, or if the user may not read them.
    """
    path = configurations.path("validating", "").rstrip("/")
    try:
        webhook_configurations = [
            *listing.objects(api, path, dict[str, Any], {"labelSelector": LABEL})
        ]
    except ApiStatusError as exc:
        if exc.status != 403:
            raise
        return ""
    expressions = [
        condition.get("expression", "")
        for configuration in webhook_configurations
        for webhook in configuration.get("webhooks") or ()
        for condition in webhook.get("matchConditions") or ()
    ]
    key = args.node_annotation
    if not expressions or any(cel.string(key) in expression for expression in expressions):
        return ""
    return f"Holdfast in this cluster does not read annotation {key} of VMs; {_CURE}"


@contextmanager
def _kubevirt_required() -> Iterator[None]:
    """Raise CommandError if the cluster does not have KubeVirt."""
    try:
        yield
    except ApiStatusError as exc:
        if exc.status == 404:
            raise CommandError(
                "this cluster has no KubeVirt, so there are no VMs; choose another --context"
            ) from None
        raise
