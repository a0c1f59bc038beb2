"""A namespace on a real cluster, and what tests do and observe in it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import yaml

from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane
from demo.command import Command
from holdfast.webhook import safe_json
from holdfast.webhook.kube.client import Cluster

PATIENCE = 60.0
"""Seconds until a wait times out."""
HOSTNAME = "kubernetes.io/hostname"
UNCALLED = "failed calling webhook"
"""The API server's message while it cannot reach a webhook with failurePolicy Fail."""

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_CORE, _KUBEVIRT = "/api/v1/namespaces/{}", "/apis/kubevirt.io/v1/namespaces/{}"
_COLLECTIONS = {
    "pod": f"{_CORE}/pods",
    "pods": f"{_CORE}/pods",
    "serviceaccounts": f"{_CORE}/serviceaccounts",
    "events.events.k8s.io": "/apis/events.k8s.io/v1/namespaces/{}/events",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "vm": f"{_KUBEVIRT}/virtualmachines",
    "virtualmachine": f"{_KUBEVIRT}/virtualmachines",
    "vmi": f"{_KUBEVIRT}/virtualmachineinstances",
    "vmim": f"{_KUBEVIRT}/virtualmachineinstancemigrations",
}
"""Paths of the kinds that tests wait for. Reading without kubectl takes a tenth of the CPU time."""
_KINDS = {
    ("v1", "ConfigMap"): f"{_CORE}/configmaps",
    ("v1", "Pod"): _COLLECTIONS["pods"],
    ("v1", "Secret"): f"{_CORE}/secrets",
    ("apps/v1", "Deployment"): _COLLECTIONS["deployment"],
    ("apps/v1", "ReplicaSet"): "/apis/apps/v1/namespaces/{}/replicasets",
    ("apps/v1", "StatefulSet"): "/apis/apps/v1/namespaces/{}/statefulsets",
    ("batch/v1", "Job"): "/apis/batch/v1/namespaces/{}/jobs",
    ("kubevirt.io/v1", "VirtualMachine"): _COLLECTIONS["vm"],
    ("kubevirt.io/v1", "VirtualMachineInstance"): _COLLECTIONS["vmi"],
    ("kubevirt.io/v1", "VirtualMachineInstanceMigration"): _COLLECTIONS["vmim"],
}
"""Paths of the kinds that tests create most. Creation without kubectl saves 0.1 s of CPU time."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MANAGERS = {"apply": "kubectl-client-side-apply", "create": "kubectl-create"}

T = TypeVar("T")
Object = dict[str, Any]


@dataclass(frozen=True)
class Namespace:
    plane: ControlPlane
    namespace: str
    holdfast: Command | None = None

    @classmethod
    def create_new(
        cls, plane: ControlPlane, name: str, holdfast: Command | None = None
    ) -> Namespace:
        """Make the namespace, and wait until pods can be created in it."""
        if plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}}) is None:
            raise ControlPlaneError(f"namespace {name} exists already")
        ns = cls(plane, name, holdfast)
        ns.eventually(lambda: ns.all("serviceaccounts"))
        return ns

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace; raises ControlPlaneError when it fails."""
        return self.plane.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def apply(self, *objects: Object, dry_run: bool = False) -> list[Object]:
        """Apply objects as `kubectl apply` does; return them as stored by the API server."""
        return [self._applied(manifest, dry_run=dry_run) for manifest in objects]

    def _applied(self, manifest: Object, *, dry_run: bool) -> Object:
        # kubectl compares later manifests with this annotation.
        text = json.dumps(manifest, separators=(",", ":"))
        metadata = dict(manifest["metadata"])
        metadata["annotations"] = {**(metadata.get("annotations") or {}), _LAST_APPLIED: text}
        stored = self._made({**manifest, "metadata": metadata}, "apply", dry_run=dry_run)
        if stored is not None:
            return stored
        arguments = ["apply", "-o", "json", "-f", "-"]
        arguments += ["--dry-run=server"] if dry_run else []
        return dict(json.loads(self.kubectl(*arguments, stdin=yaml.safe_dump(manifest))))

    def create(self, manifest: Object) -> Object:
        stored = self._made(manifest, "create")
        if stored is not None:
            return stored
        text = yaml.safe_dump(manifest)
        return dict(json.loads(self.kubectl("create", "-o", "json", "-f", "-", stdin=text)))

    def _made(self, manifest: Object, command: str, *, dry_run: bool = False) -> Object | None:
        """Create an object without kubectl; None if that needs kubectl.

        This is the case if the object exists, the namespace is missing, or the kind is a rare one.
        """
        path = _KINDS.get((manifest["apiVersion"], manifest["kind"]))
        if path is None:
            return None
        query = {"fieldManager": _MANAGERS[command], "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        namespace = manifest["metadata"].get("namespace", self.namespace)
        stored = self.plane.api.create(f"{path.format(namespace)}?{urlencode(query)}", manifest)
        return stored and _without_managers(stored)

    def create_when_called(self, manifest: Object) -> Object:
        """Create an object; retry as long as the API server cannot call a webhook.

        Nothing else is retried: an object that is admitted without the webhook is returned.
        """

        def attempt() -> Object | None:
            try:
                return self.create(manifest)
            except ControlPlaneError as exc:
                if UNCALLED not in str(exc):
                    raise
            return None

        stored = self.eventually(attempt)
        assert stored is not None
        return stored

    def holds_pods(self) -> bool:
        """Return whether a pod with a delay is gated; False if it is rejected."""
        try:
            (stored,) = self.apply(pod("asks", {"delay": "3600"}), dry_run=True)
        except ControlPlaneError:
            return False
        return bool(gates(stored))

    def create_pods(self, manifests: Iterable[Object], *, dry_run: bool = False) -> list[Object]:
        """Create many pods concurrently, and return them as stored by the API server, in order."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        query = {"dryRun": "All"} if dry_run else None
        with (
            closing(Cluster.connect(self.plane.kubeconfig)) as cluster,
            ThreadPoolExecutor(16) as pool,
        ):

            def create(manifest: Object) -> Object:
                body = msgspec.json.encode(manifest)
                # The limit of the API server itself: a huge pod takes 20 s on a busy machine.
                response = cluster.request("POST", path, query=query, body=body, timeout=60)
                return dict(msgspec.json.decode(response))

            return list(pool.map(create, manifests))

    def delete_pods(self) -> None:
        """Delete all pods in one request, without waiting until they are gone."""
        self.plane.api.delete(_COLLECTIONS["pods"].format(self.namespace))

    def warnings(self, manifest: Object) -> str:
        command = [str(self.plane.bin / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig)]
        command += ["--namespace", self.namespace, "apply", "-f", "-"]
        text = yaml.safe_dump(manifest)
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return result.stderr

    def refusal(self, *objects: Object) -> str:
        """Apply objects that have to be rejected, and return the error message."""
        try:
            self.apply(*objects)
        except ControlPlaneError as exc:
            return str(exc)
        raise AssertionError("the API server accepted objects that it should have rejected")

    def get(self, kind: str, name: str) -> Object:
        resource = self.find(kind, name)
        if resource is None:
            raise ControlPlaneError(f'Error from server (NotFound): {kind} "{name}" not found')
        return resource

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object; None if it does not exist."""
        if kind not in _COLLECTIONS:
            text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
            return dict(json.loads(text)) if text else None
        resource = self.plane.api.get(f"{_COLLECTIONS[kind].format(self.namespace)}/{name}")
        return resource and _without_managers(resource)

    def all(self, kind: str, selector: str = "") -> list[Object]:
        if kind not in _COLLECTIONS:
            listing = json.loads(self.kubectl("get", kind, "-o", "json", "-l", selector))
            return list(listing["items"])
        path = _COLLECTIONS[kind].format(self.namespace)
        response = self.plane.api.get(f"{path}?{urlencode({'labelSelector': selector})}")
        if response is None:
            raise ControlPlaneError(f"the server does not have {kind}")
        return list(response["items"])

    def definitions_established(self) -> None:
        """Wait until the API server serves the kinds of all CustomResourceDefinitions."""

        def is_established(definition: Object) -> bool:
            conditions = definition.get("status", {}).get("conditions") or ()
            return any(
                (condition["type"], condition["status"]) == ("Established", "True")
                for condition in conditions
            )

        def are_established() -> bool:
            response = self.plane.api.get(DEFINITIONS)
            return response is not None and all(map(is_established, response["items"]))

        self.eventually(are_established)

    def eventually(self, look: Callable[[], T], seconds: float = PATIENCE) -> T:
        """Poll until `look` returns a true value, and return that.

        Waits between calls for as long as a call takes: some start a process.
        """
        began, deadline = time.monotonic(), time.monotonic() + seconds
        while not (result := look()):
            ended = time.monotonic()
            if ended > deadline:
                raise AssertionError(f"not so within {seconds:.0f} s; last seen: {result!r}")
            time.sleep(max(0.05, min(ended - began, 1.0)))
            began = time.monotonic()
        return result

    def notes(self, pod_name: str) -> dict[str, str]:
        """Return the notes of the controller's Events about a pod, by reason."""
        return {
            event["reason"]: event["note"]
            for event in self.all("events.events.k8s.io")
            if event["regarding"]["name"] == pod_name
            and event["reportingController"] == "holdfast.dev/controller"
        }

    def audit(self) -> list[Object]:
        """Return the events in the API server's audit log that are about this namespace."""
        return _audited(self.plane.audit_log, self.namespace).events()

    def releases(self) -> dict[str, float]:
        """Return when the API server received each pod's release, by its own clock, in seconds."""
        return {
            event["objectRef"]["name"]: seconds(event["requestReceivedTimestamp"])
            for event in self.patches()
            if event.get("responseStatus", {}).get("code") == 200
        }

    def release_attempts(self) -> dict[str, list[float]]:
        """Return when it received each pod's releases, including failed ones, in order."""
        attempts: dict[str, list[float]] = {}
        for event in self.patches():
            received = seconds(event["requestReceivedTimestamp"])
            attempts.setdefault(event["objectRef"]["name"], []).append(received)
        return {name: sorted(times) for name, times in attempts.items()}

    def patches(self) -> list[Object]:
        """Return the audit events of all patches of pods by Holdfast."""
        return [
            event
            for event in self.audit()
            if event["verb"] == "patch"
            and event["objectRef"]["resource"] == "pods"
            and event["userAgent"] == "holdfast"
        ]

    def reviews(self) -> float:
        """Return the number of reviews that the admission server has received."""
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.metrics()
            if line.startswith("holdfast_reviews_total")
        )

    def metrics(self) -> list[str]:
        """Read the admission server's metrics, line by line."""
        assert self.holdfast is not None
        context = ssl._create_unverified_context()  # the server's identity does not matter here
        url = f"https://{self.holdfast.address}/metrics"
        with urllib.request.urlopen(url, context=context, timeout=10) as response:
            return list(response.read().decode().splitlines())

    def controller_metrics(self) -> list[str]:
        """Read the controller's metrics, line by line, from the URL that `holdfast dev` prints."""
        assert self.holdfast is not None
        text = self.holdfast.log.read_text()
        (url,) = re.findall(r"the controller's metrics: (http://127\.0\.0\.1:\d+/metrics)", text)
        with urllib.request.urlopen(url, timeout=10) as response:
            return list(response.read().decode().splitlines())


class _Audited:
    """The events of a namespace in an audit log, which is read as it grows."""

    def __init__(self, path: Path, namespace: str) -> None:
        self._path = path
        self._namespace = namespace
        self._offset = 0
        self._events: list[Object] = []

    def events(self) -> list[Object]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        complete_lines = chunk[: chunk.rfind(b"\n") + 1]  # the last line may still grow
        self._offset += len(complete_lines)
        name = self._namespace.encode()
        # Most lines are about other namespaces.
        events = (
            safe_json.decode(safe_json.ANY, line)
            for line in complete_lines.splitlines()
            if name in line
        )
        self._events += (
            event
            for event in events
            if event.get("objectRef", {}).get("namespace") == self._namespace
        )
        return self._events


_audited = cache(_Audited)


def pod(name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def volume(name: str, claim: str, nodes: Object) -> list[Object]:
    """Make a volume that only the nodes of a selector can use, and its claim."""
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    capacity = {"storage": "1Gi"}
    volume_spec = {
        **shared,
        "capacity": capacity,
        "hostPath": {"path": "/disk"},
        "nodeAffinity": {"required": nodes},
    }
    claim_spec = {**shared, "volumeName": name, "resources": {"requests": capacity}}
    return [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": object_name}, "spec": spec}
        for kind, object_name, spec in (
            ("PersistentVolume", name, volume_spec),
            ("PersistentVolumeClaim", claim, claim_spec),
        )
    ]


def definition(group: str, version: str, kind: str, *short: str) -> Object:
    """Make the CustomResourceDefinition of a kind, with any content."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version_entry: Object = {"name": version, "served": True, "storage": True, "schema": schema}
    spec: Object = {"group": group, "scope": "Namespaced", "versions": [version_entry]}
    spec["names"] = {"kind": kind, "plural": plural, "shortNames": list(short)}
    crd: Object = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**crd, "metadata": {"name": f"{plural}.{group}"}, "spec": spec}


def gates(manifest: Object) -> list[str]:
    return [gate["name"] for gate in manifest["spec"].get("schedulingGates", ())]


def _without_managers(manifest: Object) -> Object:
    manifest["metadata"].pop("managedFields", None)  # as kubectl does
    return manifest


def created(manifest: Object) -> float:
    """Return when the API server stored an object, in seconds since 1970."""
    return seconds(manifest["metadata"]["creationTimestamp"])


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def listens(address: str) -> bool:
    """Return whether a process accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
