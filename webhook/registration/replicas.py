"""The webhook's replicas: the certificate and configuration of each.

Each is asked at its own address, over TLS without verification: the caller judges the certificate.
That needs only permission to list the Service's EndpointSlices.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from holdfast.certs import authority
from holdfast.certs.authority import Certificate
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


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Port(msgspec.Struct):
    port: int | None = None


class _Slice(msgspec.Struct):
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _Slices(msgspec.Struct):
    items: list[_Slice] | None = None


class _DeploymentMeta(msgspec.Struct):
    generation: int = 0


class _DeploymentSpec(msgspec.Struct):
    replicas: int = 1


class _DeploymentStatus(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class _Deployment(msgspec.Struct):
    metadata: _DeploymentMeta
    spec: _DeploymentSpec
    status: _DeploymentStatus = msgspec.field(default_factory=_DeploymentStatus)


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
    answer = msgspec.json.decode(api.request("GET", path, query=query), type=_Slices)
    found = [
        (endpoint.addresses[0], one.ports[0].port, _called(endpoint.conditions))
        for one in answer.items or ()
        for endpoint in one.endpoints or ()
        if endpoint.addresses and one.ports and one.ports[0].port
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
    found = msgspec.json.decode(api.request("GET", path), type=_Deployment)
    status = found.status
    # Pods of the old template count in `replicas` until they are gone.
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return status.observed_generation >= found.metadata.generation and counts == {
        found.spec.replicas
    }


def _called(conditions: _Conditions) -> bool:
    # A replica that terminates is not ready, yet it is called as long as it serves.
    if conditions.serving is not None:
        return conditions.serving
    return conditions.ready is not False


def _ask(service: Service, address: str, port: int, called: bool) -> Replica:  # noqa: FBT001
    try:
        with (
            socket.create_connection((address, port), timeout=TIMEOUT) as raw,
            _context().wrap_socket(raw, server_hostname=service.dns_names[-1]) as tls,
        ):
            certificate = authority.read_der(tls.getpeercert(binary_form=True) or b"")
            known = _known(tls) if service.health_port is None else None
    except (OSError, ValueError):
        return Replica(address, called)
    if service.health_port is not None:
        known = _known_beside(address, service.health_port)
    return Replica(address, called, certificate, known)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the caller judges the certificate
    return context


def _known(tls: ssl.SSLSocket) -> str | None:
    connection = http.client.HTTPConnection("replica")
    connection.sock = tls
    return _read_digest(connection)


def _known_beside(address: str, port: int) -> str | None:
    return _read_digest(http.client.HTTPConnection(address, port, timeout=TIMEOUT))


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


def certificates(replicas: Sequence[Replica]) -> list[Certificate]:
    """Return the serving certificates."""
    return [one.certificate for one in replicas if one.certificate is not None]
