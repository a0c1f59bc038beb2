"""A kubeconfig, and checks of the messages about a wrong one."""

import json
from pathlib import Path
from typing import Any

from holdfast.webhook.errors import StartError
from holdfast.webhook.kube.client import Cluster

RIGHT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
    "users": [{"name": "u", "user": {"token": "abc"}}],
}

_NAMED = ("credential plugin ", "tokenFile ")
"""How messages start that name what the kubeconfig refers to."""


def write_kubeconfig(path: Path, server: str = "", **changes: Any) -> Path:
    """Write a kubeconfig, by default `RIGHT`, with another server or other fields."""
    if server:
        changes["clusters"] = [{"name": "c", "cluster": {"server": server}}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RIGHT | changes))
    return path


def complaint(file: Path, content: bytes) -> str:
    """Return the message about a file; empty for a valid file."""
    file.write_bytes(content)
    try:
        Cluster.connect(file).close()
    except StartError as exc:
        return str(exc)
    return ""


def check(message: str, file: Path) -> None:
    if not message.startswith(_NAMED):
        assert message.startswith(f"no usable kubeconfig {file} (")
        assert message.endswith("or run in a pod with a ServiceAccount")
    assert message.isprintable()
    assert len(message) < 1_500
