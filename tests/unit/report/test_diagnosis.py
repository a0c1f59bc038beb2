"""What `holdfast doctor` makes of the facts: every finding that is not well has a cure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.webhook.report import diagnosis
from holdfast.webhook.report.diagnosis import (
    CertificateValidity,
    Endpoint,
    Finding,
    InstallationFacts,
    Lease,
    Level,
    Unread,
)
from holdfast.webhook.report.held_pods import HeldPodSummary
from tests.support.builders import CREATED_MS, GATE, HOUR, SECOND

NOW = datetime.fromtimestamp(CREATED_MS / 1_000, UTC)
GOOD = CertificateValidity("it", NOW + timedelta(days=20))
SERVER = Endpoint("Service a/b", 2, GOOD, trusted=True)
WELL = InstallationFacts(
    server="https://x",
    version="v1.36.3",
    now_ms=CREATED_MS,
    skew_seconds=0.2,
    date_ahead_seconds=0.0,
    kinds=["mutating", "validating"],
    bundles=[GOOD],
    endpoints=[SERVER],
    lease=Lease("pod-1", CREATED_MS + 5 * SECOND),
    held=[],
    virt_controllers=[("cnv", True)],
)


def waiting(due_ms: int | None) -> HeldPodSummary:
    return HeldPodSummary("shop", "web-0", "delay=1h", (GATE,), CREATED_MS - HOUR, due_ms)


def found(**changes: Any) -> list[Finding]:
    findings = diagnosis.diagnose(replace(WELL, **changes))
    assert all(one.cure for one in findings if one.level is not Level.OK)
    return [one for one in findings if one.level is not Level.OK]


def test_all_is_well() -> None:
    assert found() == []
    assert diagnosis.worst(diagnosis.diagnose(WELL)) is Level.OK


def certificate(left: timedelta | None) -> CertificateValidity:
    return CertificateValidity("it", None if left is None else NOW + left)


PROBLEM, WARNING = Level.PROBLEM, Level.WARNING
OLD = certificate(timedelta(seconds=-1))
EXPIRING = certificate(timedelta(days=6))
NONE = certificate(None)


@pytest.mark.parametrize(
    ("changes", "level", "about", "text"),
    [
        pytest.param({"skew_seconds": 90.0}, WARNING, "clock", "1m30s ahead of", id="ahead"),
        pytest.param({"skew_seconds": -6.0}, WARNING, "clock", "6s behind", id="behind"),
        pytest.param(
            {"date_ahead_seconds": 29.4}, WARNING, "clock", "Date of responses is 29.4s", id="Date"
        ),
        pytest.param(
            {"kinds": []}, PROBLEM, "webhooks", "no mutating and no validating", id="none"
        ),
        pytest.param(
            {"kinds": ["mutating"]}, PROBLEM, "webhooks", "invalid values are accepted", id="half"
        ),
        pytest.param({"bundles": [OLD]}, PROBLEM, "caBundle", "expired at", id="old CA"),
        pytest.param({"bundles": [NONE]}, PROBLEM, "caBundle", "no certificate", id="no CA"),
        pytest.param({"bundles": [EXPIRING]}, WARNING, "caBundle", "valid until", id="CA"),
        pytest.param(
            {"endpoints": [replace(SERVER, ready=0)]},
            PROBLEM,
            "server",
            "no admission server is ready at Service a/b",
            id="no server",
        ),
        pytest.param(
            {"endpoints": [replace(SERVER, served=OLD)]},
            PROBLEM,
            "certificate",
            "expired",
            id="old certificate",
        ),
        pytest.param(
            {"endpoints": [replace(SERVER, trusted=False)]},
            PROBLEM,
            "certificate",
            "issued the certificate of Service a/b",
            id="another CA's",
        ),
        pytest.param({"lease": None}, WARNING, "leader", "ever been elected", id="no leader"),
        pytest.param(
            {"lease": Lease("pod-1", CREATED_MS - 3 * SECOND), "held": [waiting(None)]},
            PROBLEM,
            "leader",
            "expired 3s ago; 1 held pod waits",
            id="dead leader",
        ),
        pytest.param(
            {"lease": Lease("", CREATED_MS + SECOND)}, PROBLEM, "leader", "0s", id="given up"
        ),
        pytest.param(
            {"held": [waiting(CREATED_MS - 6 * SECOND)] * 5},
            PROBLEM,
            "held pods",
            "5 of 5 are overdue: shop/web-0, shop/web-0, shop/web-0 and 2 more",
            id="overdue",
        ),
        pytest.param(
            {"virt_controllers": [("cnv", False)]}, PROBLEM, "KubeVirt", "no account cnv", id="VMs"
        ),
        pytest.param(
            {"virt_controllers": [("a", True), ("b", True)]},
            WARNING,
            "KubeVirt",
            "2 KubeVirt objects; the oldest counts",
            id="two KubeVirts",
        ),
    ],
)
def test_a_finding(changes: dict[str, Any], level: Level, about: str, text: str) -> None:
    (one,) = found(**changes)
    assert (one.level, one.about) == (level, about)
    assert text in one.text


def test_overdue_pods_without_a_leader_are_no_matter_of_taste() -> None:
    findings = found(lease=None, held=[waiting(CREATED_MS - 6 * SECOND)])
    assert [one.level for one in findings] == [Level.PROBLEM, Level.PROBLEM]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kinds": Unread("no")}, id="webhooks"),
        pytest.param({"lease": Unread("no")}, id="lease"),
        pytest.param({"held": Unread("no")}, id="pods"),
        pytest.param({"virt_controllers": Unread("no")}, id="KubeVirt"),
        pytest.param({"endpoints": [replace(SERVER, ready=Unread("no"))]}, id="endpoints"),
        pytest.param({"endpoints": [replace(SERVER, served=Unread("no"))]}, id="secret"),
    ],
)
def test_what_could_not_be_read_is_unknown_and_no_problem(changes: dict[str, Any]) -> None:
    findings = found(**changes)
    assert [one.level for one in findings] == [Level.UNKNOWN]
    assert diagnosis.worst(findings) is Level.UNKNOWN


@pytest.mark.parametrize(
    "due_ms",
    [
        pytest.param(None, id="unknown"),
        pytest.param(CREATED_MS + HOUR, id="later"),
        pytest.param(CREATED_MS - SECOND, id="just now"),
    ],
)
def test_pods_that_are_not_overdue(due_ms: int | None) -> None:
    assert found(held=[waiting(due_ms)]) == []
