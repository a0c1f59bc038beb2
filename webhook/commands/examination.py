"""Reading all that `holdfast doctor` judges; what may not be read is noted, and stops nothing."""

from __future__ import annotations

import base64
import binascii
import re
import ssl
import time as clocks
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from certs import authority
from webhook import held_pods, reading, registration, wiring
from webhook.certificates import LEAF_SECRET
from webhook.cluster import Api, boot_time
from webhook.diagnosis import Certificate, Endpoint, Facts, Lease, Unread
from webhook.errors import ApiStatusError
from webhook.held_pods import HeldPod
from webhook.leader import LEASE
from webhook.objects import Pod

LABEL = "app.kubernetes.io/name=holdfast"
TLS_TIMEOUT = 3.0

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_REFUSED = frozenset({401, 403})
T = TypeVar("T")
Document = dict[str, Any]


def examine(api: Api, server: str, time: reading.Time) -> Facts:
    """Read everything. Raises UnreachableError where the cluster does not answer."""
    version = msgspec.json.decode(api.request("GET", "/version"))
    bounds = time.bounds()
    middle = (bounds.low + bounds.high) / 2 if bounds else 0.0
    kinds = _asked("webhook configurations", lambda: _configurations(api))
    clients = [] if isinstance(kinds, Unread) else [*_clients(kinds)]
    return Facts(
        server=server,
        version=version.get("gitVersion", "of an unknown version"),
        now_ms=time.now_ms(),
        skew_seconds=clocks.time() - boot_time() - middle,
        kinds=kinds if isinstance(kinds, Unread) else [*_calling(kinds)],
        bundles=[*_bundles(clients)],
        endpoints=[_endpoint(api, client) for client in _addresses(clients)],
        lease=_asked("Leases", lambda: _lease(api)),
        held=_asked("pods", lambda: _held(api)),
    )


def _asked(what: str, ask: Callable[[], T]) -> T | Unread:
    try:
        return ask()
    except ApiStatusError as exc:
        if exc.status in _REFUSED:
            return Unread(f"you may not see {what} ({exc})")
        return Unread(f"{what} cannot be read ({exc})")


# --- the webhooks and their CAs ------------------------------------------------------------------


def _configurations(api: Api) -> list[tuple[str, Document]]:
    """Give the registered configurations, each with its kind."""
    return [
        (kind, one)
        for kind in ("mutating", "validating")
        for one in reading.objects(
            api, registration.path(kind, "").rstrip("/"), dict, {"labelSelector": LABEL}
        )
    ]


def _calling(configurations: Sequence[tuple[str, Document]]) -> Iterator[str]:
    """Give the kinds of those that name a webhook: the manifests have them empty."""
    return (kind for kind, configuration in configurations if configuration.get("webhooks"))


def _clients(configurations: Sequence[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    """Give each webhook's name with how the API server reaches it."""
    for kind, configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield f"{webhook.get('name', '')} ({kind})", webhook.get("clientConfig") or {}


def _bundles(clients: Sequence[tuple[str, Document]]) -> Iterator[Certificate]:
    """Give the CAs of each different bundle, named by the first webhook that has it."""
    seen: set[str] = set()
    for name, client in clients:
        text = str(client.get("caBundle") or "")
        if text not in seen:
            seen.add(text)
            expiries = [_expiry(pem) for pem in _CERTIFICATE.findall(_decoded(text))]
            for number, not_after in enumerate(expiries or [None], 1):
                yield Certificate(f"CA {number} of webhook {name}", not_after)


def _addresses(clients: Sequence[tuple[str, Document]]) -> list[Document]:
    """Give one client configuration for each different address."""
    found: dict[str, Document] = {}
    for _, client in clients:
        service = client.get("service") or {}
        url = urlsplit(str(client.get("url") or ""))
        address = f"{service.get('namespace')}/{service.get('name')}" if service else url.netloc
        found.setdefault(address, client)
    return [*found.values()]


def _endpoint(api: Api, client: Document) -> Endpoint:
    bundle = _decoded(str(client.get("caBundle") or ""))
    service = client.get("service")
    if not service:
        return _by_url(urlsplit(str(client.get("url") or "")).netloc, bundle)
    namespace, name = str(service.get("namespace", "")), str(service.get("name", ""))
    address = f"Service {namespace}/{name}"
    ready = _asked(f"the endpoints of {address}", lambda: _ready(api, namespace, name))
    secret = _asked(f"the Secret {namespace}/{LEAF_SECRET}", lambda: _served(api, namespace))
    if isinstance(secret, Unread):
        return Endpoint(address, ready, secret, None)
    served = Certificate(f"the certificate of {address}", _expiry(secret))
    return Endpoint(address, ready, served, authority.issued_by(secret, bundle))


def _by_url(address: str, bundle: bytes) -> Endpoint:
    """Look at a server that runs outside of the cluster, as holdfast dev does."""
    host, _, port = address.rpartition(":")
    try:
        pem = ssl.get_server_certificate((host, int(port)), timeout=TLS_TIMEOUT).encode()
    except (OSError, ValueError) as exc:
        unread = Unread(f"{address} does not answer from here ({exc})")
        return Endpoint(address, 0, unread, None)
    served = Certificate(f"the certificate of {address}", _expiry(pem))
    return Endpoint(address, 1, served, authority.issued_by(pem, bundle))


def _ready(api: Api, namespace: str, service: str) -> int:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={service}"}
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for each in reading.objects(api, path, dict, query)
        for endpoint in each.get("endpoints") or ()
    )


def _served(api: Api, namespace: str) -> bytes:
    """Read the certificate that the servers serve with, from its Secret; its key is not kept."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{LEAF_SECRET}"
    secret = reading.one(api, path, dict) or {}
    return _decoded(str((secret.get("data") or {}).get("tls.crt") or ""))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _expiry(pem: bytes) -> datetime | None:
    try:
        return authority.not_after(pem)
    except ValueError:
        return None


# --- the controller ------------------------------------------------------------------------------


def _lease(api: Api) -> Lease | None:
    query = {"fieldSelector": f"metadata.name={LEASE}"}
    found = [*reading.objects(api, "/apis/coordination.k8s.io/v1/leases", dict, query)]
    leases = [_read(one.get("spec") or {}) for one in found]
    return max(leases, key=lambda lease: lease.until_ms, default=None)


def _read(spec: Document) -> Lease:
    renewed = spec.get("renewTime")
    at = datetime.fromisoformat(renewed).timestamp() if renewed else 0.0
    seconds = spec.get("leaseDurationSeconds") or 0
    return Lease(str(spec.get("holderIdentity") or ""), int((at + seconds) * 1_000))


def _held(api: Api) -> list[HeldPod]:
    pipeline = wiring.pipeline(wiring.Setup(), wiring.unobserved)
    query = {"fieldSelector": reading.PENDING}
    pods = reading.objects(api, "/api/v1/pods", Pod, query)
    return held_pods.held_pods(pods, pipeline)
