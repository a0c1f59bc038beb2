"""Checks of `holdfast doctor` for webhooks: configurations, CAs, servers and certificates."""

import base64
import binascii
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from holdfast.certs import authority
from holdfast.webhook.cli import inspection
from holdfast.webhook.kube import listing, unreachable
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration import configurations, replicas
from holdfast.webhook.registration.secrets import LEAF_SECRET
from holdfast.webhook.report.doctor import diagnosis, installation, rollouts
from holdfast.webhook.report.doctor.diagnosis import Finding
from holdfast.webhook.report.doctor.installation import Runs
from holdfast.webhook.report.doctor.rollouts import DeploymentState

LABEL = "app.kubernetes.io/name=holdfast"
TLS_TIMEOUT = 3.0
ROTATION_MS = 180_000
"""Age of a CA up to which its certificate may be missing: over twice the propagation time."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
Document = dict[str, Any]


def registered(api: Api) -> list[tuple[str, Document]]:
    """Return the registered webhook configurations, each with its kind."""
    return [
        (kind, configuration)
        for kind in ("mutating", "validating")
        for configuration in listing.objects(
            api, configurations.path(kind, "").rstrip("/"), dict, {"labelSelector": LABEL}
        )
    ]


def webhooks(api: Api, registrations: list[tuple[str, Document]]) -> list[Finding]:
    """Check the configurations, and append them to `registrations`; manifests have no webhooks."""
    registrations += registered(api)
    return [
        diagnosis.webhooks(
            [kind for kind, configuration in registrations if configuration.get("webhooks")]
        )
    ]


def clients(registrations: Sequence[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    """Yield the name and the clientConfig of each webhook."""
    for kind, configuration in registrations:
        for webhook in configuration.get("webhooks") or ():
            yield f"{webhook.get('name', '')} ({kind})", webhook.get("clientConfig") or {}


def namespaces(client_configs: Iterable[tuple[str, Document]]) -> list[str]:
    """Return the namespaces of the Services that the API server calls."""
    services = (client.get("service") for _, client in client_configs)
    return sorted({str(service.get("namespace", "")) for service in services if service})


def judged(
    api: Api,
    client_configs: Sequence[tuple[str, Document]],
    states: Sequence[DeploymentState],
    now_ms: int,
) -> Iterator[Finding]:
    """Check the CAs of the webhooks, and the servers and certificates at their addresses."""
    yield from _bundles(client_configs, now_ms)
    for client in _addresses(client_configs):
        yield from _endpoint(api, client, states, now_ms)


def _bundles(client_configs: Sequence[tuple[str, Document]], now_ms: int) -> Iterator[Finding]:
    """Check the CAs of each distinct bundle, reported under its first webhook."""
    bundles: set[str] = set()
    for name, client in client_configs:
        text = str(client.get("caBundle") or "")
        if text not in bundles:
            bundles.add(text)
            expiries = [_expiry(pem) for pem in _CERTIFICATE.findall(_decoded(text))]
            for number, not_after in enumerate(expiries or [None], 1):
                yield diagnosis.ca(name, number, not_after, now_ms)


def _addresses(client_configs: Sequence[tuple[str, Document]]) -> list[Document]:
    by_address: dict[str, Document] = {}
    for _, client in client_configs:
        service = client.get("service") or {}
        url = urlsplit(str(client.get("url") or ""))
        address = f"{service.get('namespace')}/{service.get('name')}" if service else url.netloc
        by_address.setdefault(address, client)
    return [*by_address.values()]


def _endpoint(
    api: Api, client: Document, states: Sequence[DeploymentState], now_ms: int
) -> Iterator[Finding]:
    bundle = _decoded(str(client.get("caBundle") or ""))
    service = client.get("service")
    if not service:
        yield from _by_url(urlsplit(str(client.get("url") or "")).netloc, bundle, now_ms)
        return
    namespace, name = str(service.get("namespace", "")), str(service.get("name", ""))
    address = f"Service {namespace}/{name}"
    cure = rollouts.remedy(states, rollouts.WEBHOOK) or diagnosis.CHECK_PODS
    yield from inspection.attempt(
        "server",
        f"the endpoints of {address}",
        lambda: [diagnosis.server(address, _ready(api, namespace, name), cure)],
    )
    yield from inspection.attempt(
        "certificate",
        f"the Secret {namespace}/{LEAF_SECRET}",
        lambda: _served(address, _certificate(api, namespace), bundle, now_ms),
    )


def _by_url(address: str, bundle: bytes, now_ms: int) -> Iterator[Finding]:
    """Check a server outside the cluster, such as that of holdfast dev."""
    host, _, port = address.rpartition(":")
    try:
        pem = ssl.get_server_certificate((host, int(port)), timeout=TLS_TIMEOUT).encode()
    except (OSError, ValueError) as exc:
        yield diagnosis.server(address, 0, installation.start(Runs.DEV, ""))
        reason = f"{address} does not answer from here: {unreachable.reason(exc)}"
        yield diagnosis.unread("certificate", reason, "start the server, or check the firewall")
    else:
        yield diagnosis.server(address, 1)
        yield from _served(address, pem, bundle, now_ms)


def _served(address: str, pem: bytes, bundle: bytes, now_ms: int) -> Iterator[Finding]:
    trusted = authority.issued_by(pem, bundle)
    issue_times = [
        certificate.issued_at.timestamp() * 1_000 for certificate in authority.read_all(bundle)
    ]
    rotates = any(now_ms - at_ms < ROTATION_MS for at_ms in issue_times)
    return diagnosis.served(address, _expiry(pem), now_ms, trusted=trusted, rotates=rotates)


def _ready(api: Api, namespace: str, service: str) -> int:
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for endpoint_slice in replicas.slices(api, namespace, service)
        for endpoint in endpoint_slice.get("endpoints") or ()
    )


def _certificate(api: Api, namespace: str) -> bytes:
    """Return the serving certificate from its Secret; the key is discarded."""
    secret = listing.one(api, api_path("v1", "secrets", namespace, LEAF_SECRET), dict) or {}
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
