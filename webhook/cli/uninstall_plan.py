"""What to remove when uninstalling, and in which order. Pure: objects in, paths and patches out.

Without its server, a webhook configuration causes rejections; without its controller, a gate or
finalizer blocks a pod forever. So the configurations are removed first, then gates and finalizers,
and the permissions to do so last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.webhook.config.config import Configuration
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import OWN_PREFIX
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies.pods import (
    APPROVAL,
    APPROVER,
    CONTROLLER_PODS,
    CONTROLLER_WEBHOOKS,
    HOLD,
    RELEASER,
)
from holdfast.webhook.policies.vms import CONTROLLER_VMS

CONTROLLER = "holdfast-controller"
WEBHOOK = "holdfast-webhook"
CONFIGURATION_FILE = "holdfast.yaml"
"""The configuration's name in its ConfigMap."""
_VM_KEYS = (kubevirt.STICKY_NODE, kubevirt.STICKY_NODE_UID)
_STICKY = "sticky"
_NODE_ANNOTATION = "nodeAnnotation"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remainder:
    """Pods with gates or finalizers of Holdfast."""

    gated: tuple[Pod, ...]
    """Pods with our gate."""
    landed: tuple[Pod, ...]
    """Bound pods with our finalizer: their node is not recorded yet."""
    kept: tuple[Pod, ...]
    """Unbound pods with our finalizer: there is no node to record."""

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not (self.gated or self.landed or self.kept)


def remainder(pods: Iterable[Pod]) -> Remainder:
    """Sort the pods that have any of ours."""
    gated, landed, kept = list[Pod](), list[Pod](), list[Pod]()
    for pod in pods:
        if own(pod.gates):
            gated.append(pod)
        if own(pod.finalizers):
            (landed if pod.spec.node_name else kept).append(pod)
    return Remainder(tuple(gated), tuple(landed), tuple(kept))


def own(names: Collection[str]) -> list[str]:
    """Return the gates or finalizers that are Holdfast's."""
    return [name for name in names if name.startswith(OWN_PREFIX)]


def clearing(pod: Pod) -> list[Operation]:
    """Build the patch that removes our gates and finalizers from a pod, unless it has changed."""
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
        ours = [index for index, name in enumerate(names) if name.startswith(OWN_PREFIX)]
        # From the end, so that the other indexes stay valid.
        operations += [{"op": "remove", "path": f"{place}/{index}"} for index in reversed(ours)]
    return operations


def vm_keys(configured: Iterable[Configuration]) -> list[str]:
    """List the annotations that Holdfast writes on VMs, by default and in these configurations.

    `holdfast.dev/sticky` is not included: users write it.
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


def config_maps(namespace: str) -> str:
    """Return the path of the ConfigMaps with current and earlier configurations."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"


def deployment(namespace: str, name: str) -> str:
    """Return the path of one of Holdfast's Deployments."""
    return f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/deployments/{name}"


def controller_role() -> str:
    """Return the path of the controller's ClusterRole, which every installation has."""
    return f"{_RBAC}/clusterroles/{CONTROLLER}"


def rest(namespace: str) -> list[str]:
    """List the paths to remove last, in order: policies, namespace, RBAC objects."""
    policies = [
        f"{_ADMISSION}/{kind}/{name}"
        for name in (HOLD, APPROVAL, CONTROLLER_PODS, CONTROLLER_VMS, CONTROLLER_WEBHOOKS)
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
    ]
    accounts = (CONTROLLER, f"{CONTROLLER}-after", f"{CONTROLLER}-kubevirt", WEBHOOK)
    return [
        *policies,
        f"/api/v1/namespaces/{quote(namespace, safe='')}",
        *(f"{_RBAC}/clusterrolebindings/{name}" for name in accounts),
        *(f"{_RBAC}/clusterroles/{name}" for name in (*accounts, APPROVER, RELEASER)),
    ]


def named(pods: Collection[Pod], most: int = 3) -> str:
    """Name some of the pods, for a message."""
    shown = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in list(pods)[:most])
    return shown + (f" and {len(pods) - most} more" if len(pods) > most else "")
