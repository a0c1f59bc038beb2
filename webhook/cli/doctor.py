"""`holdfast doctor`: check an installation, as far as permissions allow."""

import sys
import time as clocks
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from holdfast.webhook.cli import (
    commands,
    deployments,
    options,
    terminal,
    webhook_checks,
)
from holdfast.webhook.cli.controller_checks import ControllerChecks
from holdfast.webhook.cli.inspection import attempt
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.kube.clock_sync import create_by_dry_run
from holdfast.webhook.report.doctor import diagnosis, installation
from holdfast.webhook.report.doctor.diagnosis import Finding, Level

Document = dict[str, Any]

_STYLES = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
    Level.UNKNOWN: "dim",
}


@commands.command(epilog="Example: holdfast doctor --context production")
@options.own_namespace
@options.target
def doctor(*, own: str, target: options.Target) -> None:
    """Check webhooks, certificates, the guard, the leader, clocks and overdue pods.

    Each finding says what to do. The exit status is 1 if there is a problem. Anything that you may
    not read is reported as unknown.
    """
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    findings = [*examine(cluster, cluster.server, time, own, cluster.namespace)]
    terminal.write(line for finding in findings for line in _lines(finding))
    if diagnosis.worst(findings) is Level.PROBLEM:
        sys.exit(1)


def _lines(finding: Finding) -> list[terminal.Styled]:
    text = f"{finding.level.upper():9}{finding.about}: {finding.text}"
    lines = [(text, _STYLES[finding.level])]
    return [*lines, (f"         {finding.cure}", "")] if finding.cure else lines


def examine(
    api: Api, server: str, time: listing.CommandClock, own_namespace: str, namespace: str
) -> Iterator[Finding]:
    """Run all checks, and yield their findings; `namespace` is the user's.

    Raises UnreachableError if the API server does not respond.
    """
    findings: list[Finding] = []
    for finding in chain(
        _api_server(api, server, time), _installed(api, time, own_namespace, namespace)
    ):
        findings.append(installation.without_repair(finding, findings))
        yield findings[-1]
    yield from diagnosis.unchecked(findings)


def _api_server(api: Api, server: str, time: listing.CommandClock) -> Iterator[Finding]:
    version = listing.read(api, "/version", Document).get("gitVersion", "unknown")
    bounds = time.bounds(boot_time())
    offset = (bounds.low + bounds.high) / 2 if bounds else 0.0
    yield Finding(Level.OK, "API server", f"{server} answers, Kubernetes {version}")
    yield diagnosis.clock(clocks.time() - boot_time() - offset)
    yield from attempt("Event times", "them", lambda: diagnosis.date(_date_ahead(api, time)))


def _installed(
    api: Api, time: listing.CommandClock, own_namespace: str, namespace: str
) -> Iterator[Finding]:
    checks = ControllerChecks(api, own_namespace, namespace, time.now_ms())
    registrations, states = checks.registered, checks.states
    about_deployments = attempt(
        "Deployment", "it", lambda: deployments.judged(api, own_namespace, states)
    )
    about_webhooks = attempt(
        "webhooks", "webhook configurations", lambda: webhook_checks.webhooks(api, registrations)
    )
    client_configs = [*webhook_checks.clients(registrations)]
    namespaces = webhook_checks.namespaces(client_configs)
    is_elsewhere = bool(namespaces) and own_namespace not in namespaces and not about_deployments
    is_read = Level.UNKNOWN not in [
        finding.level for finding in (*about_deployments, *about_webhooks)
    ]
    is_outside = any(client.get("url") for _, client in client_configs)  # as with holdfast dev
    if is_read and not is_elsewhere and not is_outside:
        names = [state.name for state in states]
        yield from installation.incomplete(own_namespace, names, registered=bool(registrations))
    yield from about_webhooks
    yield from webhook_checks.judged(api, client_configs, states, checks.now_ms)
    yield from about_deployments
    if is_elsewhere:
        yield installation.elsewhere(own_namespace, namespaces)
        return
    check_configuration = partial(
        deployments.configuration, api, own_namespace, registrations, checks.profiles
    )
    yield from attempt("configuration", "it", check_configuration)
    yield from checks.judged()


def _date_ahead(api: Api, time: listing.CommandClock) -> float:
    """Return a lower bound, in seconds, of how far `Date` is ahead of creationTimestamp."""
    sent_at = boot_time()
    created_at = create_by_dry_run(api)
    received_at, bounds = boot_time(), time.bounds(boot_time())
    if bounds is None:
        return 0.0
    ahead, behind = (
        bounds.low - (created_at + 1.0 - sent_at),
        created_at - received_at - bounds.high,
    )
    return max(ahead, 0.0) - max(behind, 0.0)
