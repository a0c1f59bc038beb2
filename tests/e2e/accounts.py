"""Kubeconfigs for the ServiceAccounts of the shipped manifests, with exactly their rights."""

import base64
from pathlib import Path

import yaml

from controlplane.launcher import ControlPlane

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
NAMESPACE = "holdfast-system"
_LIFETIME = "24h"


def kubevirt_rights(process: str = "controller") -> Path:
    """Return the shipped manifest with the additional rights on VMs of a process."""
    return MANIFESTS / "kubevirt" / f"{process}.yaml"


def controller_kubeconfig(plane: ControlPlane, path: Path, server: str = "") -> Path:
    """Apply the shipped roles, and write a kubeconfig with the controller's token."""
    plane.kubectl("apply", "-k", str(MANIFESTS / "rbac"))
    return token_kubeconfig(plane, path, "holdfast-controller", server)


def token_kubeconfig(plane: ControlPlane, path: Path, account: str, server: str = "") -> Path:
    """Write a kubeconfig with the token of one of the shipped ServiceAccounts.

    `server` replaces the address of the API server. No kubelet renews the token, but it
    outlasts the longest run.
    """
    options = ("--namespace", NAMESPACE, f"--duration={_LIFETIME}")
    token = plane.kubectl("create", "token", account, *options)
    ca = base64.b64encode(plane.ca.read_bytes()).decode()
    cluster = {"server": server or plane.server, "certificate-authority-data": ca}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": token.strip()}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path
