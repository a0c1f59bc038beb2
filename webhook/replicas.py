"""The webhook's replicas: which there are, and what each of them serves and knows.

Each one is asked itself, at its own address, in a TLS handshake that trusts nobody: what it shows
is judged by who asks. That needs no right but to list the Service's EndpointSlices.
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

from certs import authority
from certs.authority import Certificate
from webhook.cluster import Api

TIMEOUT = 2.0
"""Seconds for each step of asking one replica."""
AT_ONCE = 8
"""Replicas asked at the same time, so that some that hang do not keep the others waiting."""
_DIGEST_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, and what it said; None where it did not."""

    address: str
    called: bool
    """Whether the API server may call it: it is ready, or was when it began to end."""
    certificate: Certificate | None = None
    conditions: str | None = None
    """Which pods it knows what to do with (`webhook.registration.digest`)."""


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


class _Meta(msgspec.Struct):
    generation: int = 0


class _Spec(msgspec.Struct):
    replicas: int = 1


class _Status(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0


class _Deployment(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(frozen=True, slots=True)
class Service:
    """Under which names the API server calls the webhook, and where it is deployed."""

    namespace: str
    name: str = "holdfast-webhook"
    deployment: str = "holdfast-webhook"
    health_port: int | None = None
    """Where replicas tell in plain HTTP what they know, when their own port asks for a client's
    certificate."""

    @property
    def dns_names(self) -> tuple[str, ...]:
        """All names that its certificate has; API servers call it by the last."""
        inside = f"{self.name}.{self.namespace}"
        return self.name, inside, f"{inside}.svc"


def ask_all(api: Api, service: Service) -> list[Replica]:
    """Find the replicas and ask each of them. Raises ClusterError when they cannot be listed."""
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
    """Tell whether the Deployment has only replicas of its newest template, all of them available.

    Raises ClusterError when it cannot be read.
    """
    path = (
        f"/apis/apps/v1/namespaces/{quote(service.namespace)}"
        f"/deployments/{quote(service.deployment)}"
    )
    found = msgspec.json.decode(api.request("GET", path), type=_Deployment)
    status = found.status
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return status.observed_generation >= found.metadata.generation and counts == {
        found.spec.replicas
    }


def _called(conditions: _Conditions) -> bool:
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
    context.verify_mode = ssl.CERT_NONE  # what it shows is what is asked for
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
    """Give the certificates that are served."""
    return [one.certificate for one in replicas if one.certificate is not None]
