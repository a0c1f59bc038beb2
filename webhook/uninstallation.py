"""What uninstalling has to clear up, in which order. Pure: objects in, a plan and patches out.

A webhook configuration that outlives its server has pods refused, a gate or finalizer that outlives
its controller holds a pod for ever. So the configurations go first, then everything that is on pods
while somebody can still clear it, and what gives the rights to do so goes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from webhook import holds, vms
from webhook.config import Configuration
from webhook.guard import CONTROLLER_PODS, CONTROLLER_WEBHOOKS, HOLD, RELEASER
from webhook.objects import Pod
from webhook.registration import path as registration_path
from webhook.vm_guard import CONTROLLER_VMS

NAME = "holdfast"
CONTROLLER = "holdfast-controller"
WEBHOOK = "holdfast-webhook"
CONFIGURATION_FILE = "holdfast.yaml"
"""The configuration's name in its ConfigMap."""
_VM_KEYS = (vms.STICKY_NODE, vms.STICKY_NODE_UID)
_STICKY = "sticky"
_NODE_ANNOTATION = "nodeAnnotation"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remainder:
    """What of Holdfast is on pods."""

    gated: tuple[Pod, ...]
    """Held: a gate of ours is on them."""
    landed: tuple[Pod, ...]
    """Bound, with a finalizer of ours: where they landed is not recorded yet."""
    kept: tuple[Pod, ...]
    """Not bound, with a finalizer of ours: nothing of them is to be recorded."""

    @property
    def empty(self) -> bool:
        """Whether nothing is left."""
        return not (self.gated or self.landed or self.kept)


def remainder(pods: Iterable[Pod]) -> Remainder:
    """Sort out the pods that carry anything of ours."""
    gated, landed, kept = list[Pod](), list[Pod](), list[Pod]()
    for pod in pods:
        if own(pod.gates):
            gated.append(pod)
        if own(pod.finalizers):
            (landed if pod.spec.node_name else kept).append(pod)
    return Remainder(tuple(gated), tuple(landed), tuple(kept))


def own(names: Collection[str]) -> list[str]:
    """Pick the gates or finalizers that are Holdfast's."""
    return [name for name in names if name.startswith(holds.OWN_PREFIX)]


def clearing(pod: Pod) -> list[Operation]:
    """Make the patch that takes our gates and finalizers off a pod as it was read."""
    operations: list[Operation] = [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": pod.metadata.resource_version,
        },
    ]
    for place, names in (
        ("/spec/schedulingGates", list(pod.gates)),
        ("/metadata/finalizers", list(pod.finalizers)),
    ):
        ours = [index for index, name in enumerate(names) if name.startswith(holds.OWN_PREFIX)]
        operations += [{"op": "remove", "path": f"{place}/{index}"} for index in reversed(ours)]
    return operations


def vm_keys(configured: Iterable[Configuration]) -> list[str]:
    """Name what Holdfast has written on VMs, by default and by these configurations.

    `holdfast.dev/sticky` is not among it: that is the user's own.
    """
    arguments = (
        plugin.args
        for configuration in configured
        for profile in configuration.profiles
        for plugin in profile.plugin_config
        if plugin.name == _STICKY
    )
    chosen = (each.get(_NODE_ANNOTATION) for each in arguments)
    return list(dict.fromkeys([*_VM_KEYS, *(key for key in chosen if isinstance(key, str))]))


def configurations() -> list[str]:
    """Name the paths that go first."""
    return [registration_path(kind, NAME) for kind in ("mutating", "validating")]


def config_maps(namespace: str) -> str:
    """Make the path of the ConfigMaps, among which are this and earlier configurations."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"


def deployment(namespace: str, name: str) -> str:
    """Make the path of one of Holdfast's Deployments."""
    return f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/deployments/{name}"


def rest(namespace: str) -> list[str]:
    """Name the paths that go last, in order: policies, the namespace, then the rights."""
    policies = [
        f"{_ADMISSION}/{kind}/{name}"
        for name in (HOLD, CONTROLLER_PODS, CONTROLLER_VMS, CONTROLLER_WEBHOOKS)
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
    ]
    accounts = (CONTROLLER, f"{CONTROLLER}-kubevirt", WEBHOOK)
    return [
        *policies,
        f"/api/v1/namespaces/{quote(namespace, safe='')}",
        *(f"{_RBAC}/clusterrolebindings/{name}" for name in accounts),
        *(f"{_RBAC}/clusterroles/{name}" for name in (*accounts, RELEASER)),
    ]


def named(pods: Collection[Pod], most: int = 3) -> str:
    """Name some pods in a message."""
    shown = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in list(pods)[:most])
    return shown + (f" and {len(pods) - most} more" if len(pods) > most else "")
