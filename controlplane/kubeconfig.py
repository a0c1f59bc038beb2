"""Generate self-contained kubeconfigs."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence

import yaml

from holdfast.certs.authority import KeyPair


def kubeconfig(server: str, ca: bytes, user: str, pair: KeyPair) -> bytes:
    """Return a kubeconfig for one user of one server, with embedded certificates."""
    credentials = {
        "client-certificate-data": _data(pair.certificate),
        "client-key-data": _data(pair.key),
    }
    return _kubeconfig(server, ca, user, credentials)


def token_kubeconfig(server: str, ca: bytes, user: str, token: str) -> bytes:
    """Return a kubeconfig for a user with a bearer token, such as a ServiceAccount."""
    return _kubeconfig(server, ca, user, {"token": token})


def _kubeconfig(server: str, ca: bytes, user: str, credentials: Mapping[str, str]) -> bytes:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "holdfast",
        "clusters": [
            {
                "name": "holdfast",
                "cluster": {"server": server, "certificate-authority-data": _data(ca)},
            }
        ],
        "users": [{"name": user, "user": dict(credentials)}],
        "contexts": [{"name": "holdfast", "context": {"cluster": "holdfast", "user": user}}],
    }
    return yaml.safe_dump(content, sort_keys=False).encode()


def folder_name(user: str, groups: Sequence[str]) -> str:
    """Return a user's folder name: readable, safe for paths, different for other groups."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", user)[:40]
    return f"{readable}-{hashlib.sha256(repr((user, list(groups))).encode()).hexdigest()[:8]}"


def _data(pem: bytes) -> str:
    return b64encode(pem).decode()
