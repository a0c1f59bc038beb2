"""The labels and status that virt-handler sets on a node, which launcher pods need."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controlplane import nodes
from controlplane.api import Api

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "kubevirt.io/schedulable": "true",
        "kubernetes.io/arch": "amd64",
        "machine-type.node.kubevirt.io/q35": "true",
    }
)
"""The node labels that launcher pods of amd64 and q35 VMs select."""
_DEVICES = "1000"  # VMs per node; virt-handler's device plugin offers the same number
RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "devices.kubevirt.io/kvm": _DEVICES,
        "devices.kubevirt.io/tun": _DEVICES,
        "devices.kubevirt.io/vhost-net": _DEVICES,
        "ephemeral-storage": "1Ti",
    }
)
"""The resources that launcher pods request in addition to CPU and memory."""


def enable(api: Api, name: str) -> None:
    """Make a node accept VMs. Raises ControlPlaneError if a request fails."""
    path = f"/api/v1/nodes/{name}"
    api.patch(path, {"metadata": {"labels": dict(LABELS)}})
    resources = {"capacity": dict(RESOURCES), "allocatable": dict(RESOURCES)}
    api.patch(f"{path}/status", {"status": resources})


def enable_all(api: Api) -> None:
    """Make all kwok nodes accept VMs."""
    key, value = nodes.FAKE
    response = api.get("/api/v1/nodes") or {"items": []}
    for node in response["items"]:
        if node["metadata"].get("annotations", {}).get(key) == value:
            enable(api, node["metadata"]["name"])
