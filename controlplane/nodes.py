"""The nodes that kwok simulates."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

FAKE = ("kwok.x-k8s.io/node", "fake")
"""The annotation that marks kwok's nodes; kwok leaves all others alone."""
CAPACITY: Mapping[str, str] = MappingProxyType({"cpu": "32", "memory": "256Gi", "pods": "110"})
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ARCHITECTURE = _ARCHITECTURES.get(platform.machine(), platform.machine())
"""This machine's architecture, as Kubernetes and images name it."""


def node_name(index: int) -> str:
    """Return the name of a node; the first index is 1."""
    return f"node-{index}"


def node(index: int, labels: Mapping[str, str], capacity: Mapping[str, str]) -> dict[str, Any]:
    """Return a Node object; `labels` override the default ones."""
    name = node_name(index)
    defaults = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURE,
        "type": "kwok",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**defaults, **labels}, "annotations": dict([FAKE])},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "nodeInfo": {"architecture": ARCHITECTURE, "operatingSystem": "linux"},
        },
    }


def is_ready(manifest: Mapping[str, Any]) -> bool:
    """Return whether a node is Ready and has no node.kubernetes.io taint, such as not-ready."""
    conditions = manifest.get("status", {}).get("conditions", [])
    taints = manifest.get("spec", {}).get("taints", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    ) and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)
