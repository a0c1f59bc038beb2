"""KubeVirt's objects, and calls that create and remove them in a cluster."""

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
"""KubeVirt's namespace, and its programs' default if no file names another one."""
VIRT_API_SERVICE = "virt-api"
"""The Service of virt-api in KubeVirt's webhook configurations."""

DEFINITION = "CustomResourceDefinition"
SERVED = frozenset({"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
"""The kinds that make the API server call virt-api, which must run before they exist."""
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
_TIMEOUT = 120.0  # seconds for the API server to serve new kinds; usually a few
_POLL = 0.05  # seconds

Object = Mapping[str, Any]


def printed(folder: Path) -> list[Object]:
    """Return the objects that KubeVirt's constructors made while its programs were built."""
    objects: list[Object] = json.loads((folder / "objects.json").read_bytes())["items"]
    return objects


def own() -> list[Object]:
    """Return the objects that a user creates to install KubeVirt: a namespace and a KubeVirt."""
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
    """Return a Service that resolves to this machine; its callers specify the port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }


def served_at(manifest: Object, port: int, ca: bytes) -> Object:
    """Return a copy of a `SERVED` object with the port to call and the CA to trust."""
    bundle = b64encode(ca).decode()
    copy: dict[str, Any] = json.loads(json.dumps(manifest))
    if manifest["kind"] == "APIService":
        copy["spec"]["caBundle"] = bundle
        copy["spec"]["service"]["port"] = port
        return copy
    for webhook in copy["webhooks"]:
        webhook["clientConfig"]["caBundle"] = bundle
        webhook["clientConfig"]["service"]["port"] = port
    return copy


def create(api: Api, objects: Sequence[Object]) -> None:
    """Create objects in parallel, since large CRDs take a while; existing ones are unchanged.

    Raises ControlPlaneError if a request fails.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda manifest: api.create(folder(manifest), manifest), objects):
            pass


def remove(api: Api, objects: Sequence[Object]) -> None:
    """Delete the objects that exist: those of an earlier start have other ports."""
    for manifest in objects:
        api.delete(f"{folder(manifest)}/{manifest['metadata']['name']}")


def folder(manifest: Object) -> str:
    """Return the API path for creating an object."""
    kind = manifest["kind"]
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    plural = "apiservices" if kind == "APIService" else f"{kind.lower()}s"
    return f"{_FOLDERS[kind]}{scope}/{plural}"


def await_definitions(api: Api, definitions: Sequence[Object]) -> None:
    """Wait until the API server serves the CRDs. Raises ControlPlaneError after 120 seconds."""
    missing = {name for definition in definitions for name in resources(definition)}
    deadline = time.monotonic() + _TIMEOUT
    while missing := missing - _served(api, {path for path, _ in missing}):
        if time.monotonic() > deadline:
            path, plural = min(missing)
            raise ControlPlaneError(
                f"the API server does not serve {plural} at {path} after {_TIMEOUT:.0f} s; "
                "check its log"
            )
        time.sleep(_POLL)


def resources(definition: Object) -> set[tuple[str, str]]:
    """Return the API path and plural name of each served version of a CRD."""
    spec = definition["spec"]
    versions = (version["name"] for version in spec["versions"] if version["served"])
    return {(f"/apis/{spec['group']}/{name}", spec["names"]["plural"]) for name in versions}


def _served(api: Api, paths: Collection[str]) -> set[tuple[str, str]]:
    """Return API paths and resource names; the CRDs themselves would be megabytes."""
    responses = {path: api.get(path) or {"resources": []} for path in paths}
    return {
        (path, resource["name"])
        for path, response in responses.items()
        for resource in response["resources"]
    }
