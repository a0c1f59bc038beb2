"""Findings about an installation, with advice. Pure."""

import enum
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.webhook.model import durations
from holdfast.webhook.model.freezes import Freeze, thaw
from holdfast.webhook.report import table
from holdfast.webhook.report.held_pods import PATIENCE_MS, HeldPodSummary

SOON = timedelta(days=7)
"""Remaining validity below which a certificate should have been renewed."""
SKEW_SECONDS = 5.0
"""Tolerated difference between this machine's clock and the API server's, in seconds."""
CHECK_PODS = "check the pods of Deployment holdfast-webhook, and their logs"
_MOST_NAMED = 3


class Level(enum.StrEnum):
    """The severity of a finding; a PROBLEM causes exit status 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """A finding about one part of the installation, and what to do about it."""

    level: Level
    about: str
    text: str
    cure: str = ""


_ASK = "ask someone who has permission"


def unread(about: str, reason: str, cure: str = _ASK) -> Finding:
    """Return the finding that something could not be read, with the reason."""
    return Finding(Level.UNKNOWN, about, reason, cure)


def unchecked(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a summary of unchecked and checked parts; nothing if all parts were checked."""
    unknown = [finding for finding in findings if finding.level is Level.UNKNOWN]
    denied = dict.fromkeys(finding.about for finding in unknown if finding.cure == _ASK)
    failed = dict.fromkeys(finding.about for finding in unknown if finding.cure != _ASK)
    checked = dict.fromkeys(
        finding.about for finding in findings if finding.level is not Level.UNKNOWN
    )
    parts = [f"not checked, for lack of permission: {', '.join(denied)}"] if denied else []
    parts += [f"not checked, because it failed: {', '.join(failed)}"] if failed else []
    is_bad = worst(findings) is Level.PROBLEM
    parts.append(f"checked, {'with problems' if is_bad else 'no problem'}: {', '.join(checked)}")
    if unknown:
        cure = "ask a cluster admin to run holdfast doctor" if denied else "run it again"
        yield Finding(Level.UNKNOWN, "summary", "; ".join(parts), cure)


def clock(skew_seconds: float) -> Finding:
    """Return the finding on this machine's clock, which is this far ahead of the API server's."""
    skew = abs(skew_seconds)
    if skew <= SKEW_SECONDS:
        return Finding(Level.OK, "clock", "this machine's clock agrees with the API server's")
    way = "ahead of" if skew_seconds > 0 else "behind"
    return Finding(
        Level.WARNING,
        "clock",
        f"this machine's clock is {table.duration(int(skew * 1_000))} {way} the API server's",
        "synchronize the clocks with NTP: certificates depend on each machine's clock",
    )


def date(ahead_seconds: float) -> Iterator[Finding]:
    """Yield a warning if `Date` is at least this far ahead of creationTimestamps (< 0: behind)."""
    if ahead_seconds:
        way = "ahead of" if ahead_seconds > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock",
            f"the Date of responses is {abs(ahead_seconds):.1f}s or more {way} creationTimestamps",
            "connect the controller without the proxy that rewrites Date: a controller that "
            "cannot create Events would release by it",
        )


def webhooks(kinds: Sequence[str]) -> Finding:
    """Return the finding on the kinds of registered webhooks."""
    missing = [kind for kind in ("mutating", "validating") if kind not in kinds]
    if not missing:
        return Finding(Level.OK, "webhooks", "mutating and validating webhooks are registered")
    consequence = "pods are not held" if "mutating" in missing else "invalid values are accepted"
    return Finding(
        Level.PROBLEM,
        "webhooks",
        f"no {' and no '.join(missing)} webhook is registered, so {consequence}",
        "start the controller, which registers them, or holdfast dev",
    )


def ca(webhook: str, number: int, not_after: datetime | None, now_ms: int) -> Finding:
    """Return the finding on a CA in a registered caBundle."""
    cure = "the leading controller writes the caBundle; its log says why it has not"
    return _certificate("caBundle", f"CA {number} of webhook {webhook}", not_after, now_ms, cure)


def guard(user: str, *, restricts: bool | None, refuses: bool) -> Finding:
    """Return the finding on the guard.

    `restricts` says whether it restricts this user, or is None if it is not installed. `refuses`
    says whether it rejects a forbidden update in a dry run.
    """
    cure = (
        "apply the output of holdfast policies, with --namespace and --config of this installation"
    )
    if restricts is None:
        text = "not installed: anyone who may update a pod can release it"
        return Finding(
            Level.WARNING, "guard", text, f"run kubectl apply -k manifests/rbac, then {cure}"
        )
    if not restricts:
        return Finding(Level.PROBLEM, "guard", f"it restricts another account than {user}", cure)
    if not refuses:
        text = "the API server accepted, as a dry run, an approval in another user's name"
        return Finding(Level.PROBLEM, "guard", text, "check the bindings of its policies")
    return Finding(Level.OK, "guard", f"it restricts {user}")


def server(address: str, ready: int, cure: str = CHECK_PODS) -> Finding:
    """Return the finding on the ready servers at an address that the API server calls."""
    if ready:
        return Finding(Level.OK, "server", f"{ready} ready at {address}")
    return Finding(
        Level.PROBLEM,
        "server",
        f"no admission server is ready at {address}, so new pods that use Holdfast are rejected",
        cure,
    )


def served(
    address: str, not_after: datetime | None, now_ms: int, *, trusted: bool, rotates: bool = False
) -> Iterator[Finding]:
    """Yield the findings on a server's certificate, which a CA in the bundle must have issued.

    `rotates` says whether a CA in the registered bundle is new.
    """
    cure = "the controller renews it; check its log"
    if not_after is None and rotates:
        text = f"a rotation is in progress: {address} gets a certificate of the new CA"
        cure = "wait until API servers have had time to load that CA: a minute by default"
        yield Finding(Level.WARNING, "certificate", text, cure)
        return
    yield _certificate("certificate", f"the certificate of {address}", not_after, now_ms, cure)
    if not_after is not None and not trusted:
        yield Finding(
            Level.PROBLEM,
            "certificate",
            f"no CA in the registered caBundle issued the certificate of {address}",
            "the leading controller writes the caBundle; make GitOps tools ignore that field",
        )


def _certificate(
    about: str, subject: str, not_after: datetime | None, now_ms: int, cure: str
) -> Finding:
    if not_after is None:
        return Finding(Level.PROBLEM, about, f"{subject}: no certificate", cure)
    now, until = durations.to_datetime(now_ms), f"{not_after:%Y-%m-%d %H:%M} UTC"
    if not_after <= now:
        return Finding(Level.PROBLEM, about, f"{subject} expired at {until}", cure)
    level = Level.WARNING if not_after - now < SOON else Level.OK
    return Finding(
        level, about, f"{subject} is valid until {until}", cure if level is Level.WARNING else ""
    )


def leader(
    lease: tuple[str, int] | None, pods: Sequence[HeldPodSummary], start: str, now_ms: int
) -> Finding:
    """Return the finding on the Lease: its holder and expiry (ms), or None if there is no Lease.

    `start` is the advice on starting the controller.
    """
    if lease is not None and lease[0] and lease[1] > now_ms:
        return Finding(Level.OK, "leader", f"{lease[0]} is the leader")
    start = f"{start}; until then, release pods with holdfast release"
    waiting = f"{table.counted(len(pods), 'held pod')} wait{'s' if len(pods) == 1 else ''}"
    if lease is None:
        # a controller that runs alone, such as holdfast dev, does not need a Lease
        level = Level.PROBLEM if _late(pods, now_ms) else Level.WARNING
        text = f"no controller has ever been elected; {waiting}"
        cure = f"unless a controller runs without leader election, {start}"
        return Finding(level, "leader", text, cure)
    elapsed = table.duration(max(0, now_ms - lease[1]))
    text = f"no controller is the leader; the last Lease expired {elapsed} ago; {waiting}"
    return Finding(Level.PROBLEM, "leader", text, start)


def dev(pods: Sequence[HeldPodSummary], start: str, now_ms: int) -> Finding:
    """Return the finding on a cluster that `holdfast dev` serves, without a Lease."""
    if not _late(pods, now_ms):
        text = "holdfast dev has registered the webhooks, and needs no election"
        return Finding(Level.OK, "leader", text)
    return Finding(Level.PROBLEM, "leader", "holdfast dev does not release pods", start)


def _late(pods: Sequence[HeldPodSummary], now_ms: int) -> list[str]:
    return [
        f"{pod.namespace}/{pod.name}"
        for pod in pods
        if pod.due_ms is not None and pod.due_ms + PATIENCE_MS < now_ms
    ]


def held(pods: Sequence[HeldPodSummary], now_ms: int) -> Finding:
    """Return the finding on held pods."""
    late = _late(pods, now_ms)
    if not late:
        return Finding(Level.OK, "held pods", f"{len(pods)} held, none overdue")
    count = f"{len(late)} of {len(pods)} {'is' if len(late) == 1 else 'are'}"
    return Finding(
        Level.PROBLEM,
        "held pods",
        f"{count} overdue: {table.some(late, _MOST_NAMED)}",
        "check the controller's log and the pods' Events (ReleaseFailed); "
        "holdfast release releases them by hand",
    )


def freezes(active_freezes: Sequence[Freeze]) -> Iterator[Finding]:
    """Yield the findings on freezes that have not ended."""
    about = "freezes"
    if not active_freezes:
        yield Finding(Level.OK, about, "no namespace is frozen")
    for freeze in active_freezes[:_MOST_NAMED]:
        yield Finding(Level.WARNING, about, str(freeze), f"to end it, run {thaw(freeze)}")
    if len(active_freezes) > _MOST_NAMED:
        text = f"{len(active_freezes)} freezes in all"
        yield Finding(Level.WARNING, about, text, "see kubectl get namespaces -o yaml")


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level."""
    order = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.PROBLEM)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
