"""`holdfast doctor` findings: every finding that is not OK has a cure."""

from __future__ import annotations

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
LEADER, DEAD = ("pod-1", NOW_MS + 5 * SECOND), ("pod-1", NOW_MS - 3 * SECOND)
PROBLEM, WARNING = Level.PROBLEM, Level.WARNING


def held_pod(due_ms: int | None) -> HeldPodSummary:
    return HeldPodSummary("shop", "web-0", ("delay=1h",), (GATE,), NOW_MS - HOUR, due_ms)


LATE = held_pod(NOW_MS - 6 * SECOND)


def served(not_after: datetime | None = GOOD, *, trusted: bool = True) -> Iterable[Finding]:
    return diagnosis.served("Service a/b", not_after, NOW_MS, trusted=trusted)


def ca(not_after: datetime | None) -> Finding:
    return diagnosis.ca("pods (mutating)", 1, not_after, NOW_MS)


def test_healthy_installation_is_ok() -> None:
    findings = [
        diagnosis.clock(0.2),
        *diagnosis.date(0.0),
        diagnosis.webhooks(["mutating", "validating"]),
        ca(GOOD),
        diagnosis.server("Service a/b", 2),
        *served(),
        diagnosis.leader(LEADER, [], "start it", NOW_MS),
        diagnosis.dev([], "start it", NOW_MS),
        diagnosis.held([], NOW_MS),
        *diagnosis.freezes([]),
        *installation.virt_controllers([("cnv", True)]),
    ]
    assert diagnosis.worst(findings) is Level.OK


@pytest.mark.parametrize(
    ("found", "level", "about", "text"),
    [
        pytest.param(diagnosis.clock(90.0), WARNING, "clock", "1m30s ahead of", id="ahead"),
        pytest.param(diagnosis.clock(-6.0), WARNING, "clock", "6s behind", id="behind"),
        pytest.param(
            next(diagnosis.date(29.4)), WARNING, "clock", "Date of responses is 29.4s", id="Date"
        ),
        pytest.param(
            diagnosis.webhooks([]),
            PROBLEM,
            "webhooks",
            "no mutating and no validating",
            id="no webhooks",
        ),
        pytest.param(
            diagnosis.webhooks(["mutating"]),
            PROBLEM,
            "webhooks",
            "invalid values are accepted",
            id="no validating webhook",
        ),
        pytest.param(ca(OLD), PROBLEM, "caBundle", "expired at", id="expired CA"),
        pytest.param(ca(None), PROBLEM, "caBundle", "no certificate", id="no CA"),
        pytest.param(ca(SOON), WARNING, "caBundle", "valid until", id="expiring CA"),
        pytest.param(
            diagnosis.server("Service a/b", 0),
            PROBLEM,
            "server",
            "no admission server is ready at Service a/b",
            id="no server",
        ),
        pytest.param(
            next(iter(served(OLD))), PROBLEM, "certificate", "expired", id="expired certificate"
        ),
        pytest.param(
            [*served(trusted=False)][1],
            PROBLEM,
            "certificate",
            "issued the certificate of Service a/b",
            id="issued by another CA",
        ),
        pytest.param(
            diagnosis.leader(None, [], "start it", NOW_MS),
            WARNING,
            "leader",
            "ever been elected",
            id="no leader",
        ),
        pytest.param(
            diagnosis.leader(None, [LATE], "start it", NOW_MS),
            PROBLEM,
            "leader",
            "ever been elected",
            id="no leader for overdue pods",
        ),
        pytest.param(
            diagnosis.leader(DEAD, [held_pod(None)], "start it", NOW_MS),
            PROBLEM,
            "leader",
            "expired 3s ago; 1 held pod waits",
            id="dead leader",
        ),
        pytest.param(
            diagnosis.leader(("", NOW_MS + SECOND), [], "start it", NOW_MS),
            PROBLEM,
            "leader",
            "0s",
            id="released Lease",
        ),
        pytest.param(
            diagnosis.dev([LATE], "start it", NOW_MS),
            PROBLEM,
            "leader",
            "holdfast dev does not release pods",
            id="holdfast dev hangs",
        ),
        pytest.param(
            diagnosis.held([LATE] * 5, NOW_MS),
            PROBLEM,
            "held pods",
            "5 of 5 are overdue: shop/web-0, shop/web-0, shop/web-0 and 2 more",
            id="overdue",
        ),
        pytest.param(
            next(installation.virt_controllers([("cnv", False)])),
            PROBLEM,
            "KubeVirt",
            "no account cnv",
            id="missing KubeVirt account",
        ),
        pytest.param(
            [*installation.virt_controllers([("a", True), ("b", True)])][-1],
            WARNING,
            "KubeVirt",
            "2 KubeVirt objects; the oldest counts",
            id="two KubeVirt objects",
        ),
        pytest.param(
            next(diagnosis.freezes([Freeze("shop", "x")])),
            WARNING,
            "freezes",
            "namespace shop is frozen: x",
            id="freeze",
        ),
        pytest.param(
            [*diagnosis.freezes([Freeze(f"n{number}", "x") for number in range(9)])][-1],
            WARNING,
            "freezes",
            "9 freezes in all",
            id="many freezes",
        ),
        pytest.param(
            installation.may_not_follow("holdfast-controller", "list", "jobs.batch", "some wait"),
            PROBLEM,
            "permissions",
            "holdfast-controller may not list jobs.batch: some wait",
            id="kind that cannot be listed",
        ),
        pytest.param(
            diagnosis.unread("leader", "no permission"),
            Level.UNKNOWN,
            "leader",
            "no permission",
            id="unread",
        ),
    ],
)
def test_finding_has_level_text_and_cure(
    found: Finding, level: Level, about: str, text: str
) -> None:
    assert (found.level, found.about) == (level, about)
    assert text in found.text
    assert found.cure
    assert diagnosis.worst([found, diagnosis.clock(0.0)]) is level


def test_missing_certificate_is_one_finding() -> None:
    (finding,) = served(None, trusted=False)
    assert (finding.level, finding.text) == (
        PROBLEM,
        "the certificate of Service a/b: no certificate",
    )
    (finding,) = diagnosis.served("Service a/b", None, NOW_MS, trusted=False, rotates=True)
    assert finding.level is WARNING
    assert "a rotation is in progress" in finding.text


@pytest.mark.parametrize(
    "due_ms",
    [
        pytest.param(None, id="unknown"),
        pytest.param(NOW_MS + HOUR, id="later"),
        pytest.param(NOW_MS - SECOND, id="just now"),
    ],
)
def test_pods_that_are_not_overdue_are_ok(due_ms: int | None) -> None:
    assert diagnosis.held([held_pod(due_ms)], NOW_MS).level is Level.OK
