"""What is wrong with an installation, judged from what was read of it: each with its cure. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from webhook import tables, values
from webhook.held_pods import PATIENCE_MS, HeldPod

SOON = timedelta(days=7)
"""A certificate that expires within this should have been renewed already."""
SKEW_SECONDS = 5.0
"""How far this machine's clock may be from the API server's before it is worth a word."""
_MOST_NAMED = 3


class Level(enum.StrEnum):
    """How bad a finding is; a PROBLEM is exit status 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing, and what to do about it."""

    level: Level
    about: str
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, and until when it is valid; None where it cannot be read."""

    where: str
    not_after: datetime | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server finds the webhooks, and how many servers are ready there."""

    address: str
    ready: int | Unread
    served: Certificate | Unread
    """The certificate with which it serves."""
    trusted: bool | None
    """Whether a CA of the registered bundle issued it; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads, and until when nobody else may."""

    holder: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was read. `kinds` are the kinds of webhooks that are registered."""

    server: str
    version: str
    now_ms: int
    skew_seconds: float
    kinds: Sequence[str] | Unread
    bundles: Sequence[Certificate]
    """The CAs that the API server trusts the webhooks by."""
    endpoints: Sequence[Endpoint]
    lease: Lease | Unread | None
    held: Sequence[HeldPod] | Unread


def diagnose(facts: Facts) -> list[Finding]:
    """Judge everything, in the order in which a person would look."""
    return [
        Finding(Level.OK, "API server", f"{facts.server} answers, Kubernetes {facts.version}"),
        *_clock(facts),
        *_registered(facts),
        *_bundles(facts),
        *(finding for endpoint in facts.endpoints for finding in _endpoint(endpoint, facts)),
        *_leader(facts),
        *_held(facts),
    ]


def _clock(facts: Facts) -> Iterator[Finding]:
    skew = abs(facts.skew_seconds)
    if skew > SKEW_SECONDS:
        way = "ahead of" if facts.skew_seconds > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock",
            f"this machine's clock is {tables.duration(int(skew * 1_000))} {way} the API server's",
            "set the clocks by NTP; releases go by the API server's, certificates by each "
            "machine's own",
        )
    else:
        yield Finding(Level.OK, "clock", "this machine's clock agrees with the API server's")


def _registered(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.kinds, Unread):
        yield _unread("webhooks", facts.kinds)
        return
    missing = [kind for kind in ("mutating", "validating") if kind not in facts.kinds]
    if missing:
        lost = "pods are not held" if "mutating" in missing else "bad values are not refused"
        yield Finding(
            Level.PROBLEM,
            "webhooks",
            f"no {' and no '.join(missing)} webhook is registered, so {lost}",
            "start the controller, which registers them; or holdfast dev",
        )
    else:
        yield Finding(Level.OK, "webhooks", "mutating and validating webhooks are registered")


def _bundles(facts: Facts) -> Iterator[Finding]:
    cure = "let the leading controller write the caBundle anew; its log says why it does not"
    for bundle in facts.bundles:
        yield _certificate(bundle, facts, "caBundle", cure)


def _endpoint(endpoint: Endpoint, facts: Facts) -> Iterator[Finding]:
    about = "server"
    if isinstance(endpoint.ready, Unread):
        yield _unread(about, endpoint.ready)
    elif endpoint.ready == 0:
        yield Finding(
            Level.PROBLEM,
            about,
            f"no admission server is ready at {endpoint.address}, so pods that ask are refused",
            "see the Pods of the Deployment holdfast-webhook, and their logs",
        )
    else:
        yield Finding(Level.OK, about, f"{endpoint.ready} ready at {endpoint.address}")
    if isinstance(endpoint.served, Unread):
        yield _unread("certificate", endpoint.served)
        return
    yield _certificate(
        endpoint.served, facts, "certificate", "see that the controller renews it: its log"
    )
    if endpoint.trusted is False:
        yield Finding(
            Level.PROBLEM,
            "certificate",
            f"the registered caBundle has not issued the certificate of {endpoint.address}",
            "let the leading controller write the caBundle anew; a GitOps tool must leave it alone",
        )


def _certificate(certificate: Certificate, facts: Facts, about: str, cure: str) -> Finding:
    if certificate.not_after is None:
        return Finding(Level.PROBLEM, about, f"{certificate.where} has no certificate", cure)
    now = values.to_datetime(facts.now_ms)
    until = f"{certificate.not_after:%Y-%m-%d %H:%M} UTC"
    if certificate.not_after <= now:
        return Finding(Level.PROBLEM, about, f"{certificate.where} expired at {until}", cure)
    level = Level.WARNING if certificate.not_after - now < SOON else Level.OK
    text = f"{certificate.where} is valid until {until}"
    return Finding(level, about, text, cure if level is Level.WARNING else "")


def _leader(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.lease, Unread):
        yield _unread("leader", facts.lease)
        return
    if facts.lease is not None and facts.lease.holder and facts.lease.until_ms > facts.now_ms:
        yield Finding(Level.OK, "leader", f"{facts.lease.holder} leads")
        return
    start = (
        "start the controller: kubectl -n holdfast-system rollout restart "
        "deployment/holdfast-controller; meanwhile holdfast release lets pods go by hand"
    )
    number = 0 if isinstance(facts.held, Unread) else len(facts.held)
    waiting = f"{tables.counted(number, 'held pod')} wait{'s' if number == 1 else ''} for one"
    if facts.lease is None:
        # one that runs alone, as holdfast dev does, needs no Lease
        level = Level.PROBLEM if _late(facts) else Level.WARNING
        text = f"no controller was ever elected; {waiting}"
        yield Finding(level, "leader", text, f"unless one runs without election, {start}")
        return
    ago = tables.duration(max(0, facts.now_ms - facts.lease.until_ms))
    text = f"no controller leads; the last one's Lease ran out {ago} ago; {waiting}"
    yield Finding(Level.PROBLEM, "leader", text, start)


def _late(facts: Facts) -> list[str]:
    """Name the pods that should have been released."""
    if isinstance(facts.held, Unread):
        return []
    return [
        one.namespace + "/" + one.name
        for one in facts.held
        if one.due_ms is not None and one.due_ms + PATIENCE_MS < facts.now_ms
    ]


def _held(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.held, Unread):
        yield _unread("held pods", facts.held)
        return
    late = _late(facts)
    if late:
        count = f"{len(late)} of {len(facts.held)} {'is' if len(late) == 1 else 'are'}"
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        yield Finding(
            Level.PROBLEM,
            "held pods",
            f"{count} overdue: {', '.join(late[:_MOST_NAMED])}{more}",
            "the controller's log and the pods' Events (ReleaseFailed) say why; "
            "holdfast release lets them go by hand",
        )
    else:
        yield Finding(Level.OK, "held pods", f"{len(facts.held)} held, none overdue")


def _unread(about: str, unread: Unread) -> Finding:
    return Finding(Level.UNKNOWN, about, unread.reason, "ask somebody who may see it")


def worst(findings: Sequence[Finding]) -> Level:
    """Give the level of the worst finding."""
    order = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.PROBLEM)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
