"""Find problems in what was read of an installation, and say what to do. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.webhook.model import durations
from holdfast.webhook.report import table
from holdfast.webhook.report.held_pods import PATIENCE_MS, HeldPodSummary

SOON = timedelta(days=7)
"""A certificate that expires this soon should have been renewed."""
SKEW_SECONDS = 5.0
"""Difference between this machine's clock and the API server's that is reported."""
_MOST_NAMED = 3


class Level(enum.StrEnum):
    """The severity of a finding; a PROBLEM causes exit status 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one part of the installation, and what to do about it."""

    level: Level
    about: str
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason why something could not be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class CertificateValidity:
    """A certificate and its expiry; None if it cannot be read."""

    where: str
    not_after: datetime | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address where the API server calls the webhooks, and the number of ready servers."""

    address: str
    ready: int | Unread
    served: CertificateValidity | Unread
    """The serving certificate."""
    trusted: bool | None
    """Whether a CA of the registered bundle issued it; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The leader, and the expiry of its Lease."""

    holder: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """Everything that was read. `kinds` are the registered kinds of webhooks."""

    server: str
    version: str
    now_ms: int
    skew_seconds: float
    date_ahead_seconds: float | Unread
    """By how much the `Date` of responses is ahead of creationTimestamps, at least."""
    kinds: Sequence[str] | Unread
    bundles: Sequence[CertificateValidity]
    """The CAs in the registered caBundles."""
    endpoints: Sequence[Endpoint]
    lease: Lease | Unread | None
    held: Sequence[HeldPodSummary] | Unread
    virt_controllers: Sequence[tuple[str, bool]] | Unread
    """The account that each KubeVirt object stands for, and whether it exists."""


def diagnose(observed: InstallationFacts) -> list[Finding]:
    """Check everything, in the order in which a person would look."""
    return [
        Finding(
            Level.OK, "API server", f"{observed.server} answers, Kubernetes {observed.version}"
        ),
        *_clock(observed),
        *_registered(observed),
        *_bundles(observed),
        *(finding for endpoint in observed.endpoints for finding in _endpoint(endpoint, observed)),
        *_leader(observed),
        *_held(observed),
        *_virt_controllers(observed),
    ]


def _clock(observed: InstallationFacts) -> Iterator[Finding]:
    skew = abs(observed.skew_seconds)
    if skew > SKEW_SECONDS:
        way = "ahead of" if observed.skew_seconds > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock",
            f"this machine's clock is {table.duration(int(skew * 1_000))} {way} the API server's",
            "synchronize the clocks with NTP: releases use the API server's clock, certificates "
            "each machine's own",
        )
    else:
        yield Finding(Level.OK, "clock", "this machine's clock agrees with the API server's")
    ahead = observed.date_ahead_seconds
    if isinstance(ahead, Unread):
        yield _unread("clock", ahead)
    elif ahead:
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock",
            f"the Date of responses is {abs(ahead):.1f}s or more {way} creationTimestamps",
            "connect the controller without the proxy that rewrites Date: a controller that "
            "cannot create Events would release by it",
        )


def _registered(observed: InstallationFacts) -> Iterator[Finding]:
    if isinstance(observed.kinds, Unread):
        yield _unread("webhooks", observed.kinds)
        return
    missing = [kind for kind in ("mutating", "validating") if kind not in observed.kinds]
    if missing:
        lost = "pods are not held" if "mutating" in missing else "invalid values are accepted"
        yield Finding(
            Level.PROBLEM,
            "webhooks",
            f"no {' and no '.join(missing)} webhook is registered, so {lost}",
            "start the controller, which registers them, or holdfast dev",
        )
    else:
        yield Finding(Level.OK, "webhooks", "mutating and validating webhooks are registered")


def _bundles(observed: InstallationFacts) -> Iterator[Finding]:
    cure = "the leading controller writes the caBundle; its log says why it has not"
    for bundle in observed.bundles:
        yield _certificate(bundle, observed, "caBundle", cure)


def _endpoint(endpoint: Endpoint, observed: InstallationFacts) -> Iterator[Finding]:
    about = "server"
    if isinstance(endpoint.ready, Unread):
        yield _unread(about, endpoint.ready)
    elif endpoint.ready == 0:
        yield Finding(
            Level.PROBLEM,
            about,
            f"no admission server is ready at {endpoint.address}, so requesting pods are rejected",
            "check the pods of Deployment holdfast-webhook, and their logs",
        )
    else:
        yield Finding(Level.OK, about, f"{endpoint.ready} ready at {endpoint.address}")
    if isinstance(endpoint.served, Unread):
        yield _unread("certificate", endpoint.served)
        return
    yield _certificate(
        endpoint.served, observed, "certificate", "the controller renews it; check its log"
    )
    if endpoint.trusted is False:
        yield Finding(
            Level.PROBLEM,
            "certificate",
            f"no CA in the registered caBundle issued the certificate of {endpoint.address}",
            "the leading controller writes the caBundle; make GitOps tools ignore that field",
        )


def _certificate(
    certificate: CertificateValidity, observed: InstallationFacts, about: str, cure: str
) -> Finding:
    if certificate.not_after is None:
        return Finding(Level.PROBLEM, about, f"{certificate.where}: no certificate", cure)
    now = durations.to_datetime(observed.now_ms)
    until = f"{certificate.not_after:%Y-%m-%d %H:%M} UTC"
    if certificate.not_after <= now:
        return Finding(Level.PROBLEM, about, f"{certificate.where} expired at {until}", cure)
    level = Level.WARNING if certificate.not_after - now < SOON else Level.OK
    text = f"{certificate.where} is valid until {until}"
    return Finding(level, about, text, cure if level is Level.WARNING else "")


def _leader(observed: InstallationFacts) -> Iterator[Finding]:
    if isinstance(observed.lease, Unread):
        yield _unread("leader", observed.lease)
        return
    if (
        observed.lease is not None
        and observed.lease.holder
        and observed.lease.until_ms > observed.now_ms
    ):
        yield Finding(Level.OK, "leader", f"{observed.lease.holder} is the leader")
        return
    start = (
        "start the controller: kubectl -n holdfast-system rollout restart "
        "deployment/holdfast-controller; meanwhile, holdfast release releases pods by hand"
    )
    number = 0 if isinstance(observed.held, Unread) else len(observed.held)
    waiting = f"{table.counted(number, 'held pod')} wait{'s' if number == 1 else ''}"
    if observed.lease is None:
        # one that runs alone, as holdfast dev does, needs no Lease
        level = Level.PROBLEM if _late(observed) else Level.WARNING
        text = f"no controller has ever been elected; {waiting}"
        yield Finding(
            level, "leader", text, f"unless a controller runs without leader election, {start}"
        )
        return
    ago = table.duration(max(0, observed.now_ms - observed.lease.until_ms))
    text = f"no controller is the leader; the last Lease expired {ago} ago; {waiting}"
    yield Finding(Level.PROBLEM, "leader", text, start)


def _late(observed: InstallationFacts) -> list[str]:
    """List the pods that should have been released."""
    if isinstance(observed.held, Unread):
        return []
    return [
        one.namespace + "/" + one.name
        for one in observed.held
        if one.due_ms is not None and one.due_ms + PATIENCE_MS < observed.now_ms
    ]


def _held(observed: InstallationFacts) -> Iterator[Finding]:
    if isinstance(observed.held, Unread):
        yield _unread("held pods", observed.held)
        return
    late = _late(observed)
    if late:
        count = f"{len(late)} of {len(observed.held)} {'is' if len(late) == 1 else 'are'}"
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        yield Finding(
            Level.PROBLEM,
            "held pods",
            f"{count} overdue: {', '.join(late[:_MOST_NAMED])}{more}",
            "check the controller's log and the pods' Events (ReleaseFailed); "
            "holdfast release releases them by hand",
        )
    else:
        yield Finding(Level.OK, "held pods", f"{len(observed.held)} held, none overdue")


def _virt_controllers(observed: InstallationFacts) -> Iterator[Finding]:
    about, cure = "KubeVirt", "set the argument account of plugin sticky to virt-controller's"
    if isinstance(observed.virt_controllers, Unread):
        yield _unread(about, observed.virt_controllers)
        return
    for account, there in observed.virt_controllers:
        if there:
            yield Finding(Level.OK, about, f"{account} creates the pods of VMs")
        else:
            text = f"there is no account {account}, so VMs may not return to their nodes"
            yield Finding(Level.PROBLEM, about, text, cure)
    if len(observed.virt_controllers) > 1:
        text = f"there are {len(observed.virt_controllers)} KubeVirt objects; the oldest counts"
        yield Finding(Level.WARNING, about, text, f"{cure}, or delete the others")


def _unread(about: str, unread: Unread) -> Finding:
    return Finding(Level.UNKNOWN, about, unread.reason, "ask someone who has permission")


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level."""
    order = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.PROBLEM)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
