"""`holdfast doctor`: read and judge an installation, as far as permissions allow."""

import base64
import binascii
import re
import ssl
import sys
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from holdfast.certs import authority
from holdfast.webhook.cli import commands, deployments, inspection, options, rights, terminal
from holdfast.webhook.cli.freeze_lookup import read_all
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework import cel
from holdfast.webhook.kube import listing, unreachable
from holdfast.webhook.kube.client import Api, boot_time
from holdfast.webhook.kube.clock_sync import create_by_dry_run
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.freezes import Freeze, Freezes, read_freezes
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies import builder, guard_check
from holdfast.webhook.policies.pods import CONTROLLER_PODS
from holdfast.webhook.registration import configurations as webhook_configurations
from holdfast.webhook.registration.secrets import LEAF_SECRET
from holdfast.webhook.report import diagnosis, held_pods, installation, rollouts
from holdfast.webhook.report.diagnosis import Finding, Level
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.report.installation import Runs
from holdfast.webhook.report.rollouts import DeploymentState
from holdfast.webhook.runtime import pipelines

LABEL = "app.kubernetes.io/name=holdfast"
TLS_TIMEOUT = 3.0
ROTATION_MS = 180_000
"""Age of a CA up to which its certificate may be missing: twice its propagation, and some."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_REFUSED = frozenset({401, 403})
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
Document = dict[str, Any]

EXAMPLES = """\b
Examples:
  holdfast doctor
  holdfast doctor --context production"""

_STYLES = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
    Level.UNKNOWN: "dim",
}


@commands.command(epilog=EXAMPLES)
@options.own_namespace
@options.target
def doctor(*, own: str, target: options.Target) -> None:
    """Check webhooks, certificates, the guard, the leader, clocks and overdue pods.

    Each finding says what to do. The exit status is 1 if there is a problem. Anything that you
    have no permission to read is reported as unknown.
    """
    time = listing.Time()
    cluster = target.connect(time.observe)
    findings = [*examine(cluster, cluster.server, time, own)]
    terminal.write(line for finding in findings for line in _lines(finding))
    if diagnosis.worst(findings) is Level.PROBLEM:
        sys.exit(1)


def _lines(finding: Finding) -> list[terminal.Styled]:
    text = f"{finding.level.upper():9}{finding.about}: {finding.text}"
    lines = [(text, _STYLES[finding.level])]
    return [*lines, (f"         {finding.cure}", "")] if finding.cure else lines


def examine(api: Api, server: str, time: listing.Time, own: str) -> Iterator[Finding]:
    """Check everything, as a person would. Raises UnreachableError if nothing answers."""
    version = listing.read(api, "/version", Document).get("gitVersion", "unknown")
    bounds, now_ms = time.bounds(boot_time()), time.now_ms()
    middle = (bounds.low + bounds.high) / 2 if bounds else 0.0
    yield Finding(Level.OK, "API server", f"{server} answers, Kubernetes {version}")
    yield diagnosis.clock(clocks.time() - boot_time() - middle)
    yield from _read("Event times", "them", lambda: diagnosis.date(_date_ahead(api, time)))
    found: list[tuple[str, Document]] = []
    states: list[DeploymentState] = []
    about_deployments = _read("Deployment", "it", lambda: deployments.judged(api, own, states))
    yield from _read("webhooks", "webhook configurations", lambda: _webhooks(api, found, states))
    clients = [*_clients(found)]
    yield from _bundles(clients, now_ms)
    for client in _addresses(clients):
        yield from _endpoint(api, client, states, now_ms)
    yield from about_deployments
    called = _called_namespaces(clients)
    if called and own not in called and not about_deployments:
        yield installation.elsewhere(own, called)
        return
    yield from _read("configuration", "it", lambda: deployments.configuration(api, own, found))
    freezes: list[Freeze] = []
    about_freezes = _read("freezes", "namespaces", lambda: _freezes(api, freezes, own, now_ms))
    pods: list[HeldPodSummary] = []
    about_pods = _read("held pods", "pods", lambda: _held(api, pods, Freezes(freezes), now_ms))
    yield from _read(
        "leader", "Leases", lambda: [_leader(api, pods, *_start(api, own, found, states), now_ms)]
    )
    yield from about_pods
    yield from _read("deleted pods", "pods of VMs", lambda: inspection.kept(api, now_ms))
    yield from about_freezes
    yield from _read("guard", "the guard's policies", lambda: _guard(api, own))
    yield from _read("controller", "its permissions", lambda: _follows_freezes(api, own))
    yield from _read(
        "KubeVirt",
        "KubeVirt's account",
        lambda: diagnosis.virt_controllers(_virt_controllers(api)),
    )


def _read(about: str, what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except ApiStatusError as exc:
        if exc.status in _REFUSED:
            return [diagnosis.unread(about, f"no permission to read {what} ({exc})")]
        return [diagnosis.unread(about, f"cannot read {what} ({exc})", "try again")]


def _date_ahead(api: Api, time: listing.Time) -> float:
    """Return by how many seconds, at least, `Date` is ahead of creationTimestamps."""
    sent = boot_time()
    created = create_by_dry_run(api)
    received, bounds = boot_time(), time.bounds(boot_time())
    if bounds is None:
        return 0.0
    ahead, behind = bounds.low - (created + 1.0 - sent), created - received - bounds.high
    return max(ahead, 0.0) - max(behind, 0.0)


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


def _webhooks(
    api: Api, found: list[tuple[str, Document]], states: Sequence[DeploymentState]
) -> list[Finding]:
    """Read the configurations into a list; in the manifests they have no webhooks."""
    found += registered(api)
    kinds = [kind for kind, one in found if one.get("webhooks")]
    return [diagnosis.webhooks(kinds, deleted=bool(states and not found))]


def _called_namespaces(clients: Iterable[tuple[str, Document]]) -> list[str]:
    services = (client.get("service") for _, client in clients)
    return sorted({str(one.get("namespace", "")) for one in services if one})


def _clients(configurations: Sequence[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    for kind, configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield f"{webhook.get('name', '')} ({kind})", webhook.get("clientConfig") or {}


def _bundles(clients: Sequence[tuple[str, Document]], now_ms: int) -> Iterator[Finding]:
    """Judge the CAs of each distinct bundle, named after the first webhook that has it."""
    seen: set[str] = set()
    for name, client in clients:
        text = str(client.get("caBundle") or "")
        if text not in seen:
            seen.add(text)
            expiries = [_expiry(pem) for pem in _CERTIFICATE.findall(_decoded(text))]
            for number, not_after in enumerate(expiries or [None], 1):
                yield diagnosis.ca(name, number, not_after, now_ms)


def _addresses(clients: Sequence[tuple[str, Document]]) -> list[Document]:
    found: dict[str, Document] = {}
    for _, client in clients:
        service = client.get("service") or {}
        url = urlsplit(str(client.get("url") or ""))
        address = f"{service.get('namespace')}/{service.get('name')}" if service else url.netloc
        found.setdefault(address, client)
    return [*found.values()]


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
    yield from _read(
        "server",
        f"the endpoints of {address}",
        lambda: [diagnosis.server(address, _ready(api, namespace, name), cure)],
    )
    yield from _read(
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
    ages = [now_ms - at.timestamp() * 1_000 for at in _issue_times(bundle)]
    rotates = any(age < ROTATION_MS for age in ages)
    return diagnosis.served(address, _expiry(pem), now_ms, trusted=trusted, rotates=rotates)


def _issue_times(bundle: bytes) -> Iterator[datetime]:
    for pem in _CERTIFICATE.findall(bundle):
        with suppress(ValueError):
            yield authority.issued_at(pem)


def _ready(api: Api, namespace: str, service: str) -> int:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={service}"}
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for each in listing.objects(api, path, dict, query)
        for endpoint in each.get("endpoints") or ()
    )


def _certificate(api: Api, namespace: str) -> bytes:
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


def _start(
    api: Api,
    own: str,
    registered: Sequence[tuple[str, Document]],
    states: Sequence[DeploymentState],
) -> tuple[Runs, str]:
    """Return what runs the controller, and how to start it."""
    try:
        by = inspection.runs(api, own, registered)
    except ApiStatusError as exc:
        if exc.status not in _REFUSED:
            raise
        by = Runs.DEPLOYMENT
    return by, rollouts.remedy(states, installation.CONTROLLER) or installation.start(by, own)


def _leader(api: Api, pods: Sequence[HeldPodSummary], by: Runs, start: str, now_ms: int) -> Finding:
    lease = _lease(api)
    if by is Runs.DEV and lease is None:
        return diagnosis.dev(pods, start, now_ms)
    return diagnosis.leader(lease, pods, start, now_ms)


def _lease(api: Api) -> tuple[str, int] | None:
    """Return the holder of the Lease that expires last, and when it does (ms)."""
    query = {"fieldSelector": f"metadata.name={LEASE}"}
    found = listing.objects(api, "/apis/coordination.k8s.io/v1/leases", Document, query)
    leases = []
    for spec in (one.get("spec") or {} for one in found):
        renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds") or 0
        at = datetime.fromisoformat(renewed).timestamp() if renewed else 0.0
        leases.append((str(spec.get("holderIdentity") or ""), int((at + seconds) * 1_000)))
    return max(leases, key=lambda lease: lease[1], default=None)


def _freezes(api: Api, freezes: list[Freeze], own: str, now_ms: int) -> Iterable[Finding]:
    """Read the freezes into a list."""
    freezes += read_freezes(read_all(api), own).active(now_ms)
    return diagnosis.freezes(freezes)


def _follows_freezes(api: Api, own: str) -> Iterable[Finding]:
    # one that runs alone, as holdfast dev does, has no Lease, and acts as its user
    namespaces = {"verb": "list", "resource": "namespaces"}
    user = builder.InstallationNames(own).controller
    may_list = _lease(api) is None or rights.allowed(api, namespaces, user)
    return diagnosis.follows_freezes(allowed=may_list)


def _guard(api: Api, own: str) -> list[Finding]:
    user = builder.InstallationNames(own).controller
    policy = listing.one(api, f"{_POLICIES}/{CONTROLLER_PODS}", Document)
    restricts = None if policy is None else cel.string(user) in str(policy)
    # with holdfast dev, there is no pod to try it on
    refuses = not restricts or guard_check.refuses(api, own) is not False
    return [diagnosis.guard(user, restricts=restricts, refuses=refuses)]


def _held(api: Api, pods: list[HeldPodSummary], freezes: Freezes, now_ms: int) -> list[Finding]:
    """Read the held pods into a list."""
    decider = pipelines.release_decider(pipelines.Setup())
    query = {"fieldSelector": listing.PENDING}
    found = listing.objects(api, listing.pods_path(""), Pod, query)
    pods += held_pods.held_pods(found, decider, lambda name: freezes.of(name, now_ms))
    return [diagnosis.held(pods, now_ms)]
