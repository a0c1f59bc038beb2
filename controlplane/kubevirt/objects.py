"""The objects that KubeVirt consists of, and how they get into a cluster."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from controlplane.api import Api
from controlplane.errors import ControlPlaneError

NAMESPACE = "kubevirt"
"""Where KubeVirt lives; its programs take no other where they find no file that names one."""
VIRT_API_SERVICE = "virt-api"
"""The Service by which KubeVirt's webhook configurations name virt-api."""

DEFINITION = "CustomResourceDefinition"
SERVED = frozenset({"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
"""The kinds that have the API server call virt-api, so that it has to run before."""
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_FOLDERS = {
    DEFINITION: "/apis/apiextensions.k8s.io/v1",
    "Namespace": "/api/v1",
    "Service": "/api/v1",
    "ServiceAccount": "/api/v1",
    "ClusterRole": _RBAC,
    "ClusterRoleBinding": _RBAC,
    "Role": _RBAC,
    "RoleBinding": _RBAC,
    "APIService": "/apis/apiregistration.k8s.io/v1",
    "MutatingWebhookConfiguration": _ADMISSION,
    "ValidatingWebhookConfiguration": _ADMISSION,
    "KubeVirt": "/apis/kubevirt.io/v1",
}
_THREADS = 4
_TIMEOUT = 120.0  # seconds until the API server has to serve the kinds: it takes a few
_POLL = 0.05  # seconds

Object = Mapping[str, Any]


def printed(folder: Path) -> list[Object]:
    """Read what KubeVirt's own constructors made while its programs were built."""
    listed: list[Object] = json.loads((folder / "objects.json").read_bytes())["items"]
    return listed


def own() -> list[Object]:
    """Make what a person who installs KubeVirt makes: a namespace and the KubeVirt object."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
            "spec": {},
        },
    ]


def loopback_service(name: str) -> Object:
    """Make a Service that leads the API server to this machine; the port is its callers'."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }


def served_at(each: Object, port: int, ca: bytes) -> Object:
    """Give an object of the `SERVED` kinds the port to call and the CA to trust."""
    bundle = b64encode(ca).decode()
    changed: dict[str, Any] = json.loads(json.dumps(each))
    if each["kind"] == "APIService":
        changed["spec"]["caBundle"] = bundle
        changed["spec"]["service"]["port"] = port
        return changed
    for webhook in changed["webhooks"]:
        webhook["clientConfig"]["caBundle"] = bundle
        webhook["clientConfig"]["service"]["port"] = port
    return changed


def create(api: Api, objects: Sequence[Object]) -> None:
    """Create objects, or leave them unchanged; many at once: large definitions take a while.

    Raises ControlPlaneError where the API server refuses one.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda each: api.create(folder(each), each), objects):
            pass


def remove(api: Api, objects: Sequence[Object]) -> None:
    """Remove objects, as far as they are there: those of an earlier start name other ports."""
    for each in objects:
        api.delete(f"{folder(each)}/{each['metadata']['name']}")


def folder(each: Object) -> str:
    """Return the path that an object is created at."""
    kind = each["kind"]
    namespace = each["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = "apiservices" if kind == "APIService" else f"{kind.lower()}s"
    return f"{_FOLDERS[kind]}{within}/{plural}"


def await_definitions(api: Api, definitions: Sequence[Object]) -> None:
    """Wait until the API server serves the kinds. Raises ControlPlaneError if it does not."""
    missing = {name for each in definitions for name in resources(each)}
    deadline = time.monotonic() + _TIMEOUT
    while missing := missing - _served(api, {path for path, _ in missing}):
        if time.monotonic() > deadline:
            path, plural = min(missing)
            raise ControlPlaneError(
                f"the API server does not serve {plural} at {path} after {_TIMEOUT:.0f} s; "
                "see its log"
            )
        time.sleep(_POLL)


def resources(definition: Object) -> set[tuple[str, str]]:
    """Return what a definition adds: the path of each version, and the plural name."""
    spec = definition["spec"]
    served = (each["name"] for each in spec["versions"] if each["served"])
    return {(f"/apis/{spec['group']}/{name}", spec["names"]["plural"]) for name in served}


def _served(api: Api, paths: Collection[str]) -> set[tuple[str, str]]:
    """Ask for the names alone: the definitions themselves are megabytes."""
    found = {path: api.get(path) or {"resources": []} for path in paths}
    return {(path, each["name"]) for path, listed in found.items() for each in listed["resources"]}
