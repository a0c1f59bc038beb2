"""The webhook's replicas: the certificate and configuration of each.

Each is asked at its own address, over TLS without verification: the caller judges the certificate.
That needs only permission to list the Service's EndpointSlices.
"""

import http.client
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.certs import authority
from holdfast.certs.authority import Certificate
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api
from holdfast.webhook.registration.configurations import NAME

TIMEOUT = 2.0
"""Seconds for each step of a query."""
AT_ONCE = 8
"""Replicas queried in parallel, so that some that hang do not delay the others."""
_DIGEST_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica and its answers; None if it did not answer."""

    address: str
    called: bool
    """Whether the API server may call it: it is ready, or terminating and was ready."""
    certificate: Certificate | None = None
    conditions: str | None = None
    """The digest of its match conditions (`configurations.digest`)."""


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
        inside = f"{self.name}.{self.namespace}"
        return self.name, inside, f"{inside}.svc"


def ask_all(api: Api, service: Service) -> list[Replica]:
    """Query all replicas. Raises ClusterError if they cannot be listed."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(service.namespace)}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={service.name}"}
    found = [
        (endpoint["addresses"][0], each["ports"][0]["port"], _called(endpoint))
        for each in listing.objects(api, path, dict[str, Any], query)
        if each.get("ports") and each["ports"][0].get("port")
        for endpoint in each.get("endpoints") or ()
    ]
    with ThreadPoolExecutor(AT_ONCE, "replica") as pool:
        return list(pool.map(lambda each: _ask(service, *each), found))


def rolled_out(api: Api, service: Service) -> bool:
    """Return whether all replicas have the Deployment's current template and are available.

    Raises ClusterError if it cannot be read.
    """
    path = (
        f"/apis/apps/v1/namespaces/{quote(service.namespace)}"
        f"/deployments/{quote(service.deployment)}"
    )
    found = listing.read(api, path, dict[str, Any])
    status = found.get("status", {})
    if status.get("observedGeneration", 0) < found["metadata"].get("generation", 0):
        return False
    # Pods of the old template count in `replicas` until they are gone.
    counts = (status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas"))
    return set(counts) == {found["spec"].get("replicas", 1)}


def _called(endpoint: Mapping[str, Any]) -> bool:
    conditions = endpoint.get("conditions") or {}
    # A replica that terminates is not ready, yet it is called as long as it serves.
    serving = conditions.get("serving")
    return bool(conditions.get("ready") is not False if serving is None else serving)


def _ask(service: Service, address: str, port: int, called: bool) -> Replica:  # noqa: FBT001
    try:
        with (
            socket.create_connection((address, port), timeout=TIMEOUT) as raw,
            _context().wrap_socket(raw, server_hostname=service.dns_names[-1]) as tls,
        ):
            certificate = authority.read_der(tls.getpeercert(binary_form=True) or b"")
            connection = http.client.HTTPConnection(
                address, service.health_port or port, timeout=TIMEOUT
            )
            if service.health_port is None:
                connection.sock = tls
            return Replica(address, called, certificate, _read_digest(connection))
    except (OSError, ValueError, http.client.HTTPException):
        return Replica(address, called)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the caller judges the certificate
    return context


def _read_digest(connection: http.client.HTTPConnection) -> str | None:
    try:
        connection.request("GET", "/conditions", headers={"Connection": "close"})
        with connection.getresponse() as answer:
            text = answer.read(_DIGEST_LIMIT).decode(errors="replace").strip()
            return text if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
