"""Read everything that `holdfast doctor` checks, as far as permissions allow."""

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

from holdfast.certs import authority
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api, boot_time
from holdfast.webhook.kube.clock_sync import create_by_dry_run
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.registration import configurations as webhook_configurations
from holdfast.webhook.registration.secrets import LEAF_SECRET
from holdfast.webhook.report import held_pods
from holdfast.webhook.report.diagnosis import (
    CertificateValidity,
    Endpoint,
    InstallationFacts,
    Lease,
    Unread,
)
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.runtime import pipelines

LABEL = "app.kubernetes.io/name=holdfast"
TLS_TIMEOUT = 3.0

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_REFUSED = frozenset({401, 403})
T = TypeVar("T")
Document = dict[str, Any]


def examine(api: Api, server: str, time: listing.Time) -> InstallationFacts:
    """Read everything. Raises UnreachableError if the cluster does not answer."""
    version = msgspec.json.decode(api.request("GET", "/version"))
    bounds = time.bounds(boot_time())
    middle = (bounds.low + bounds.high) / 2 if bounds else 0.0
    kinds = _read_or_explain("webhook configurations", lambda: registered(api))
    clients = [] if isinstance(kinds, Unread) else [*_clients(kinds)]
    return InstallationFacts(
        server=server,
        version=version.get("gitVersion", "unknown"),
        now_ms=time.now_ms(),
        skew_seconds=clocks.time() - boot_time() - middle,
        date_ahead_seconds=_read_or_explain("a new Event's time", lambda: _date_ahead(api, time)),
        kinds=kinds if isinstance(kinds, Unread) else [*_calling(kinds)],
        bundles=[*_bundles(clients)],
        endpoints=[_endpoint(api, client) for client in _addresses(clients)],
        lease=_read_or_explain("Leases", lambda: _lease(api)),
        held=_read_or_explain("pods", lambda: _held(api)),
        virt_controllers=_read_or_explain("KubeVirt's account", lambda: _virt_controllers(api)),
    )


def _date_ahead(api: Api, time: listing.Time) -> float:
    """Return by how many seconds, at least, `Date` is ahead of creationTimestamps."""
    sent = boot_time()
    created = create_by_dry_run(api)
    received, bounds = boot_time(), time.bounds(boot_time())
    if bounds is None:
        return 0.0
    ahead, behind = bounds.low - (created + 1.0 - sent), created - received - bounds.high
    return max(ahead, 0.0) - max(behind, 0.0)


def _read_or_explain(what: str, ask: Callable[[], T]) -> T | Unread:
    try:
        return ask()
    except ApiStatusError as exc:
        if exc.status in _REFUSED:
            return Unread(f"no permission to read {what} ({exc})")
        return Unread(f"cannot read {what} ({exc})")


# --- the webhooks and their CAs ------------------------------------------------------------------


def registered(api: Api) -> list[tuple[str, Document]]:
    """Return the registered configurations with their kinds."""
    return [
        (kind, one)
        for kind in ("mutating", "validating")
        for one in listing.objects(
            api, webhook_configurations.path(kind, "").rstrip("/"), dict, {"labelSelector": LABEL}
        )
    ]


def _calling(configurations: Sequence[tuple[str, Document]]) -> Iterator[str]:
    """Return the kinds of those with webhooks: in the manifests they are empty."""
    return (kind for kind, configuration in configurations if configuration.get("webhooks"))


def _clients(configurations: Sequence[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    """Yield each webhook's name and clientConfig."""
    for kind, configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield f"{webhook.get('name', '')} ({kind})", webhook.get("clientConfig") or {}


def _bundles(clients: Sequence[tuple[str, Document]]) -> Iterator[CertificateValidity]:
    """Yield the CAs of each distinct bundle, named after the first webhook that has it."""
    seen: set[str] = set()
    for name, client in clients:
        text = str(client.get("caBundle") or "")
        if text not in seen:
            seen.add(text)
            expiries = [_expiry(pem) for pem in _CERTIFICATE.findall(_decoded(text))]
            for number, not_after in enumerate(expiries or [None], 1):
                yield CertificateValidity(f"CA {number} of webhook {name}", not_after)


def _addresses(clients: Sequence[tuple[str, Document]]) -> list[Document]:
    """Return one clientConfig for each distinct address."""
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
    ready = _read_or_explain(f"the endpoints of {address}", lambda: _ready(api, namespace, name))
    secret = _read_or_explain(
        f"the Secret {namespace}/{LEAF_SECRET}", lambda: _served(api, namespace)
    )
    if isinstance(secret, Unread):
        return Endpoint(address, ready, secret, None)
    served = CertificateValidity(f"the certificate of {address}", _expiry(secret))
    return Endpoint(address, ready, served, authority.issued_by(secret, bundle))


def _by_url(address: str, bundle: bytes) -> Endpoint:
    """Check a server outside the cluster, such as that of holdfast dev."""
    host, _, port = address.rpartition(":")
    try:
        pem = ssl.get_server_certificate((host, int(port)), timeout=TLS_TIMEOUT).encode()
    except (OSError, ValueError) as exc:
        unread = Unread(f"{address} does not answer from here ({exc})")
        return Endpoint(address, 0, unread, None)
    served = CertificateValidity(f"the certificate of {address}", _expiry(pem))
    return Endpoint(address, 1, served, authority.issued_by(pem, bundle))


def _ready(api: Api, namespace: str, service: str) -> int:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={service}"}
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for each in listing.objects(api, path, dict, query)
        for endpoint in each.get("endpoints") or ()
    )


def _served(api: Api, namespace: str) -> bytes:
    """Read the serving certificate from its Secret; the key is discarded."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{LEAF_SECRET}"
    secret = listing.one(api, path, dict) or {}
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


def _virt_controllers(api: Api) -> list[tuple[str, bool]]:
    """Return the account that each KubeVirt object stands for, and whether it exists."""
    try:
        found = [*listing.objects(api, kubevirt.INSTALLATIONS, dict)]
    except ApiStatusError as exc:
        if exc.status != 404:
            raise
        return []
    namespaces = [str(one["metadata"]["namespace"]) for one in found]
    path = "/api/v1/namespaces/{}/serviceaccounts/{}"
    return [
        (
            kubevirt.controller_account(name),
            listing.one(api, path.format(name, kubevirt.CONTROLLER), dict) is not None,
        )
        for name in namespaces
    ]


def _lease(api: Api) -> Lease | None:
    query = {"fieldSelector": f"metadata.name={LEASE}"}
    found = [*listing.objects(api, "/apis/coordination.k8s.io/v1/leases", dict, query)]
    leases = [_read(one.get("spec") or {}) for one in found]
    return max(leases, key=lambda lease: lease.until_ms, default=None)


def _read(spec: Document) -> Lease:
    renewed = spec.get("renewTime")
    at = datetime.fromisoformat(renewed).timestamp() if renewed else 0.0
    seconds = spec.get("leaseDurationSeconds") or 0
    return Lease(str(spec.get("holderIdentity") or ""), int((at + seconds) * 1_000))


def _held(api: Api) -> list[HeldPodSummary]:
    decider = pipelines.release_decider(pipelines.Setup())
    query = {"fieldSelector": listing.PENDING}
    pods = listing.objects(api, "/api/v1/pods", Pod, query)
    return held_pods.held_pods(pods, decider)
