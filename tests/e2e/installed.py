"""Holdfast as installed by the manifests, as far as possible in a cluster without kubelets.

The API server calls the real Service. Its endpoints are admission servers on this machine; a
substitute for the kubelet mounts the Secret into their folder. The Deployment is real, too; kwok
reports its pods as ready.
"""

import base64
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from controlplane import versions
from controlplane.components import API_SERVER
from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane
from demo.command import Command
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.registration.configurations import NOT_YET
from tests.e2e import certificate_secrets
from tests.e2e.accounts import MANIFESTS, NAMESPACE, controller_kubeconfig
from tests.e2e.namespace import Namespace, Object

SERVICE = "holdfast-webhook"
KINDS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
MOUNT_SECONDS = 0.3
"""Interval in which the substitute for the kubelet reads the Secret."""
REPAIR = 30.0
"""Seconds until damaged objects have to be repaired."""
DIALS = {API_SERVER: ["--enable-aggregator-routing=true"]}
"""Without a kube-proxy, the API server must dial the Service's endpoints directly."""
_LABELS = {"app.kubernetes.io/name": "holdfast"}


ADDRESS = "192.0.2.1"
"""Address of the Service's endpoints. 127.0.0.0/8 is invalid for endpoints, so an address reserved
for documentation is assigned to the loopback interface: traffic to it stays local."""


@cache
def endpoint_address() -> str:
    """Assign ADDRESS to the loopback interface, which takes root, and return it.

    Raises ControlPlaneError if that fails.
    """
    assign = ["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"]
    with socket.socket() as probe:
        try:
            probe.bind((ADDRESS, 0))
        except OSError:
            result = subprocess.run(assign, capture_output=True, text=True, check=False)
            if result.returncode:
                cure = f"run once: sudo {' '.join(assign)}"
                raise ControlPlaneError(
                    f"cannot assign {ADDRESS}: {result.stderr}; {cure}"
                ) from None
    return ADDRESS


@dataclass
class Mount:
    """A folder with a Secret's content, updated atomically as a kubelet does."""

    kubeconfig: Path
    folder: Path
    secret: str = "holdfast-tls"
    stop: threading.Event = field(default_factory=threading.Event)
    known: Any = None
    number: int = 0

    def run(self) -> None:
        cluster = Cluster.connect(self.kubeconfig)
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{self.secret}"
        while not self.stop.wait(MOUNT_SECONDS):
            try:
                data = json.loads(cluster.request("GET", path)).get("data")
            except ClusterError:
                continue  # a deleted Secret stays mounted
            if data != self.known:
                self.known = data
                self._swap(data)
        cluster.close()

    def _swap(self, data: dict[str, str]) -> None:
        self.number += 1
        version = self.folder / f"..{self.number}"
        version.mkdir()
        for name, value in data.items():
            (version / name).write_bytes(base64.b64decode(value))
        link = self.folder / "..new"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")


@dataclass
class Installation:
    """A cluster, and the processes of Holdfast that run in it."""

    ns: Namespace
    kubeconfig: Path
    folder: Path
    stack: ExitStack
    controllers: list[Command] = field(default_factory=list)
    replicas: list[Command] = field(default_factory=list)
    ports: dict[int, int] = field(default_factory=dict)
    module: str = "tests.e2e.wrong_clock"
    """The module that controllers run; `server_module` is that of the admission servers."""
    server_module: str = "webhook"
    environment: dict[str, str] = field(default_factory=dict)
    """Variables added to the environment of all of them."""

    @property
    def plane(self) -> ControlPlane:
        return self.ns.plane

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl("--namespace", NAMESPACE, *arguments, stdin=stdin)

    def get(self, kind: str, name: str) -> Object:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def controller(
        self, *arguments: str, certificates: str = "self", seconds_ahead: float = 0
    ) -> Command:
        """Start a controller that keeps the webhooks registered, under its own ServiceAccount."""
        log = self.folder / f"controller-{len(self.controllers)}.log"
        options = ["--kubeconfig", str(self.kubeconfig), "--health-port", "0", "--leader-elect"]
        options += ["--namespace", NAMESPACE, "--certificates", certificates]
        offset_file = self.folder / f"ahead-{len(self.controllers)}"
        offset_file.write_text(str(seconds_ahead))
        command = Command(
            "controller",
            *options,
            *arguments,
            log=log,
            module=self.module,
            environment={**self.environment, "SECONDS_AHEAD": str(offset_file)},
        )
        self.stack.enter_context(command)
        self.controllers.append(command)
        return command

    def replica(self, *arguments: str) -> Command:
        """Start an admission server, and make it an endpoint of the Service."""
        number = len(self.replicas)
        folder = self.folder / f"mount-{number}"
        folder.mkdir()
        mount = Mount(self.plane.kubeconfig, folder)
        thread = threading.Thread(target=mount.run, daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(mount.stop.set)
        data = folder / "..data"
        options = ["--cert", str(data / "tls.crt"), "--key", str(data / "tls.key")]
        options += ["--port", "0", "--await-certificate"]
        options += ["--kubeconfig", str(self.plane.kubeconfig)]
        log = self.folder / f"replica-{number}.log"
        offset_file = self.folder / f"ahead-replica-{number}"
        offset_file.write_text("0")
        command = Command(
            "serve",
            *options,
            *arguments,
            log=log,
            module=self.server_module,
            environment={**self.environment, "SECONDS_AHEAD": str(offset_file)},
        )
        self.replicas.append(self.stack.enter_context(command))
        self.join(number, port(command))
        return command

    def join(self, number: int, port_number: int, *, ready: bool = True) -> None:
        """Make a port an endpoint of the Service; it replaces the last one of that replica."""
        self.ports[number] = port_number
        self.apply(endpoint(number, port_number, ready=ready))
        self._route()

    def retire(self, number: int) -> None:
        """Remove a replica from the Service, then stop its process."""
        self.kubectl("delete", "endpointslice", f"{SERVICE}-{number}")
        del self.ports[number]
        self._route()
        self.replicas[number].stop()

    def _route(self) -> None:
        """Update the Endpoints, which older API servers read instead of EndpointSlices."""
        if os.environ.get(versions.VARIABLE, versions.NEWEST) != versions.NEWEST:
            self.apply(endpoints(self.ports.values()))

    def configurations(self) -> list[Object]:
        path = "/apis/admissionregistration.k8s.io/v1"
        return [self.plane.api.get(f"{path}/{kind}s/holdfast") or {} for kind in KINDS]

    def webhooks(self) -> list[Object]:
        return [
            webhook
            for configuration in self.configurations()
            for webhook in configuration.get("webhooks") or ()
        ]

    def bundles(self) -> set[str]:
        return {webhook["clientConfig"].get("caBundle", "") for webhook in self.webhooks()}

    def secret(self, name: str) -> dict[str, str]:
        return certificate_secrets.secret(self, name)

    def ready(self) -> None:
        """Wait until the webhooks of both configurations are registered, and called."""
        self.ns.eventually(lambda: self._is_registered() and self.ns.holds_pods(), 90.0)

    def _is_registered(self) -> bool:
        """Return whether both have been written: the controller writes one after the other."""
        webhook_lists = [
            configuration.get("webhooks", []) for configuration in self.configurations()
        ]
        return all(webhook_lists) and not any(
            NOT_YET in webhook["matchConditions"]
            for webhook_list in webhook_lists
            for webhook in webhook_list
        )


def port(command: Command) -> int:
    return int(command.address.rpartition(":")[2])


def endpoints(ports: Iterable[int]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": SERVICE,
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [
            {
                "addresses": [{"ip": endpoint_address()}],
                "ports": [{"name": "webhook", "port": port_number, "protocol": "TCP"}],
            }
            for port_number in ports
        ],
    }


def endpoint(number: int, port_number: int, *, ready: bool = True) -> Object:
    """Make the EndpointSlice of a replica; replicas on one machine differ in their port."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{SERVICE}-{number}",
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv4",
        "ports": [{"name": "webhook", "port": port_number, "protocol": "TCP"}],
        "endpoints": [{"addresses": [endpoint_address()], "conditions": {"ready": ready}}],
    }


def service() -> Object:
    ports = [{"name": "webhook", "port": 443, "targetPort": 8443}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"ports": ports},
    }


def deployment(
    configuration: str = "first", *, paused: bool = False, component: str = "webhook"
) -> Object:
    """Make a component's Deployment; a different `configuration` changes its template.

    A paused Deployment does not roll out a changed template.
    """
    context = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    labels = {**_LABELS, "app.kubernetes.io/component": component}
    container = {"name": component, "image": "holdfast", "securityContext": context}
    template = {
        "metadata": {"labels": labels, "annotations": {"configuration": configuration}},
        "spec": {"containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"holdfast-{component}", "labels": labels},
        "spec": {
            "replicas": 2,
            "paused": paused,
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }


def empty_configurations() -> list[Object]:
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": "holdfast", "labels": _LABELS},
        }
        for kind in ("Mutating", "Validating")
    ]


@contextmanager
def installation(folder: Path, *api_server: str) -> Iterator[Installation]:
    """Start a cluster and install everything in it, but do not start Holdfast yet.

    `api_server` are further arguments of the API server.
    """
    arguments = {API_SERVER: [*DIALS[API_SERVER], *api_server]}
    with ControlPlane(nodes=2, audit=True, extra_args=arguments) as plane, ExitStack() as stack:
        kubeconfig = controller_kubeconfig(plane, folder / "controller.kubeconfig")
        yield install(plane, kubeconfig, folder, stack)


def install(plane: ControlPlane, kubeconfig: Path, folder: Path, stack: ExitStack) -> Installation:
    """Install everything in a running cluster; controllers will use the kubeconfig.

    Processes that are started later are stopped by `stack`.
    """
    ns = Namespace.create_new(plane, f"users-{os.getpid()}")
    installed = Installation(ns, kubeconfig, folder, stack)
    plane.kubectl("apply", "-k", str(MANIFESTS / "guard"))
    installed.apply(service(), deployment(), *empty_configurations())
    return installed
