"""`holdfast doctor` findings: every finding that is not OK has a cure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.report.doctor import diagnosis, installation
from holdfast.webhook.report.doctor.diagnosis import Finding, Level
from holdfast.webhook.report.held_pods import HeldPodSummary
from tests.support.builders import CREATED_MS, GATE, HOUR, SECOND

NOW_MS = CREATED_MS
NOW = datetime.fromtimestamp(NOW_MS / 1_000, UTC)
GOOD, OLD, SOON = (NOW + timedelta(days=20), NOW - timedelta(seconds=1), NOW + timedelta(days=6))
DEAD = "pod-1", NOW_MS - 3 * SECOND


def held_pod(due_ms: int | None) -> HeldPodSummary:
    return HeldPodSummary("shop", "web-0", ("delay=1h",), (GATE,), NOW_MS - HOUR, due_ms)


LATE = held_pod(NOW_MS - 6 * SECOND)


def served(not_after: datetime | None = GOOD, *, trusted: bool = True) -> Iterable[Finding]:
    return diagnosis.served("Service a/b", not_after, NOW_MS, trusted=trusted)


def ca(not_after: datetime | None) -> Finding:
    return diagnosis.ca("pods (mutating)", 1, not_after, NOW_MS)


def leader(lease: tuple[str, int] | None, *pods: HeldPodSummary) -> Finding:
    return diagnosis.leader(lease, pods, "start it", NOW_MS)


def test_healthy_installation_is_ok() -> None:
    findings = [
        diagnosis.clock(0.2),
        *diagnosis.date(0.0),
        diagnosis.webhooks(["mutating", "validating"]),
        ca(GOOD),
        diagnosis.server("Service a/b", 2),
        *served(),
        leader(("pod-1", NOW_MS + 5 * SECOND)),
        diagnosis.dev([], "start it", NOW_MS),
        diagnosis.held([], NOW_MS),
        *diagnosis.freezes([]),
        *installation.virt_controllers([("cnv", True)]),
    ]
    assert diagnosis.worst(findings) is Level.OK


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (diagnosis.clock(90.0), "warning clock: this machine's clock is 1m30s ahead of"),
        (diagnosis.clock(-6.0), "warning clock: this machine's clock is 6s behind"),
        (next(diagnosis.date(29.4)), "warning clock: the Date of responses is 29.4s"),
        (diagnosis.webhooks([]), "problem webhooks: no mutating and no validating"),
        (
            diagnosis.webhooks(["mutating"]),
            "problem webhooks: no validating webhook is registered, so invalid values are accepted",
        ),
        (ca(OLD), "problem caBundle: CA 1 of webhook pods (mutating) expired at"),
        (ca(None), "problem caBundle: CA 1 of webhook pods (mutating): no certificate"),
        (ca(SOON), "warning caBundle: CA 1 of webhook pods (mutating) is valid until"),
        (
            diagnosis.server("Service a/b", 0),
            "problem server: no admission server is ready at Service a/b",
        ),
        (next(iter(served(OLD))), "problem certificate: the certificate of Service a/b expired at"),
        pytest.param(
            [*served(trusted=False)][1],
            "problem certificate: no CA in the registered caBundle issued the certificate of "
            "Service a/b",
        ),
        (leader(None), "warning leader: no controller has ever been elected"),
        (leader(None, LATE), "problem leader: no controller has ever been elected"),
        pytest.param(
            leader(DEAD, held_pod(None)),
            "problem leader: no controller is the leader; the last Lease expired 3s ago; "
            "1 held pod waits",
        ),
        (
            leader(("", NOW_MS + SECOND)),
            "problem leader: no controller is the leader; the last Lease expired 0s ago",
        ),
        (
            diagnosis.dev([LATE], "start it", NOW_MS),
            "problem leader: holdfast dev does not release pods",
        ),
        (
            diagnosis.held([LATE] * 5, NOW_MS),
            "problem held pods: 5 of 5 are overdue: shop/web-0, shop/web-0, shop/web-0 and 2 more",
        ),
        (
            next(installation.virt_controllers([("cnv", False)])),
            "problem KubeVirt: there is no account cnv",
        ),
        (
            [*installation.virt_controllers([("a", True), ("b", True)])][-1],
            "warning KubeVirt: there are 2 KubeVirt objects; the oldest counts",
        ),
        (
            next(diagnosis.freezes([Freeze("shop", "x")])),
            "warning freezes: namespace shop is frozen: x",
        ),
        (
            [*diagnosis.freezes([Freeze(f"n{number}", "x") for number in range(9)])][-1],
            "warning freezes: 9 freezes in all",
        ),
        (diagnosis.unread("leader", "no permission"), "unknown leader: no permission"),
    ],
)
def test_finding_has_level_text_and_cure(found: Finding, expected: str) -> None:
    assert f"{found.level} {found.about}: {found.text}".startswith(expected)
    assert found.cure
    assert diagnosis.worst([found, diagnosis.clock(0.0)]) is found.level


def test_missing_certificate_is_one_finding() -> None:
    (finding,) = served(None, trusted=False)
    assert (finding.level, finding.text) == (
        Level.PROBLEM,
        "the certificate of Service a/b: no certificate",
    )
    (finding,) = diagnosis.served("Service a/b", None, NOW_MS, trusted=False, rotates=True)
    assert finding.level is Level.WARNING
    assert "a rotation is in progress" in finding.text


def test_pods_that_are_not_overdue_are_ok() -> None:
    unknown, later, just_now = None, NOW_MS + HOUR, NOW_MS - SECOND
    assert diagnosis.held([*map(held_pod, (unknown, later, just_now))], NOW_MS).level is Level.OK
