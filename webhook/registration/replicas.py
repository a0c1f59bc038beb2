"""Query the webhook's replicas for their certificates and configurations.

Each replica is queried at its address, over TLS without verification: the caller checks the
certificate. This needs only permission to list the Service's EndpointSlices.
"""

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holdfast.certs import authority
from holdfast.certs.authority import Certificate
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration.configurations import NAME

TIMEOUT = 2.0
"""Seconds for each step of a query: connection, TLS handshake, and reading the digest."""
AT_ONCE = 16
"""Replicas queried in parallel: replicas that hang must not delay the others."""
MOST = 64
"""Maximum number of endpoints to query."""
_REQUEST = b"GET /conditions HTTP/1.1\r\nHost: holdfast\r\nConnection: close\r\n\r\n"
_ANSWER_LIMIT = 4096
_DIGEST_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica and its responses, which are None if it did not respond."""

    address: str
    called: bool
    """Whether the API server may call it: it is ready, or terminating and was ready."""
    certificate: Certificate | None = None
    digest: str | None = None
    """The digest of the webhooks that its configuration needs (`configurations.digest`)."""


@dataclass(frozen=True, slots=True)
class Service:
    """The webhook's Service and Deployment."""

    namespace: str
    name: str = "holdfast-webhook"
    deployment: str = "holdfast-webhook"
    health_port: int | None = None
    """The replicas' plain HTTP port, if their main port requires client certificates."""
    configurations: str = NAME
    """The name of the webhook configurations that call it."""

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The DNS names of its certificate; API servers use the last."""
        base = f"{self.name}.{self.namespace}"
        return self.name, base, f"{base}.svc"


def ask_all(api: Api, service: Service) -> list[Replica]:
    """Query all replicas. Raises ClusterError if they cannot be listed."""
    targets = [
        (endpoint["addresses"][0], endpoint_slice["ports"][0]["port"], _called(endpoint))
        for endpoint_slice in slices(api, service.namespace, service.name)
        if endpoint_slice.get("ports") and endpoint_slice["ports"][0].get("port")
        if endpoint_slice.get("addressType") != "FQDN"  # kube-proxy ignores these, and DNS is slow
        for endpoint in endpoint_slice.get("endpoints") or ()
    ]
    with ThreadPoolExecutor(AT_ONCE, "replica") as pool:
        return list(pool.map(lambda target: _ask(service, *target), targets[:MOST]))


def slices(api: Api, namespace: str, service: str) -> Iterator[dict[str, Any]]:
    """Yield the EndpointSlices of a Service. Raises ClusterError."""
    path = api_path("discovery.k8s.io/v1", "endpointslices", namespace)
    query = {"labelSelector": f"kubernetes.io/service-name={service}"}
    return listing.objects(api, path, dict[str, Any], query)


def rolled_out(api: Api, service: Service) -> bool:
    """Return whether all replicas have the Deployment's current template and are available.

    Raises ClusterError if it cannot be read.
    """
    path = api_path("apps/v1", "deployments", service.namespace, service.deployment)
    deployment = listing.read(api, path, dict[str, Any])
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return False
    # Pods of the old template count in `replicas` until they are gone.
    counts = (status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas"))
    return set(counts) == {deployment["spec"].get("replicas", 1)}


def _called(endpoint: Mapping[str, Any]) -> bool:
    conditions = endpoint.get("conditions") or {}
    # A terminating replica is not ready, but it is called while it serves.
    serving = conditions.get("serving")
    return bool(conditions.get("ready") is not False if serving is None else serving)


def _ask(service: Service, address: str, port: int, called: bool) -> Replica:  # noqa: FBT001
    try:
        with (
            socket.create_connection((address, port), timeout=TIMEOUT) as raw,
            _context().wrap_socket(raw, server_hostname=service.dns_names[-1]) as tls,
        ):
            certificate = authority.read_der(tls.getpeercert(binary_form=True) or b"")
            return Replica(address, called, certificate, _digest(service, address, tls))
    except (OSError, ValueError):
        return Replica(address, called)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the caller checks the certificate
    return context


def _digest(service: Service, address: str, tls: ssl.SSLSocket) -> str | None:
    if service.health_port is None:
        return read_digest(tls)
    try:
        with socket.create_connection((address, service.health_port), timeout=TIMEOUT) as plain:
            return read_digest(plain)
    except OSError:
        return None


def read_digest(peer: socket.socket, now: Callable[[], float] = boot_time) -> str | None:
    """Request and return the digest, or None if it does not arrive completely in time."""
    deadline, response = now() + TIMEOUT, b""
    try:
        peer.sendall(_REQUEST)
        while len(response) < _ANSWER_LIMIT:
            seconds = deadline - now()
            if seconds <= 0:
                return None
            peer.settimeout(seconds)
            part = peer.recv(_ANSWER_LIMIT)
            if not part:
                break
            response += part
    except OSError:
        return None
    head, _, body = response.partition(b"\r\n\r\n")
    is_ok = head.split(b" ", 2)[1:2] == [b"200"]
    digest = body[:_DIGEST_LIMIT].decode(errors="replace").strip()
    return digest if is_ok and digest else None
