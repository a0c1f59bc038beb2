"""The state of a controller on the status page, from its metrics."""

from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.runtime import status_server
from tests.support.builders import CREATED_MS, HOUR

HEALTHY = {
    "holdfast_leader": 1.0,
    "holdfast_overdue_pods": 0.0,
    "holdfast_clock_uncertainty_seconds": 0.009870052337646484,
    "holdfast_release_lateness_seconds_count": 4.0,
    "holdfast_release_lateness_seconds_sum": 0.02,
    "holdfast_ca_expiry_timestamp_seconds": (CREATED_MS + HOUR) / 1_000,
    "holdfast_webhooks_registered": 1.0,
}


def facts_with(*, synced: bool = True, **changes: float) -> dict[str, tuple[str, Level]]:
    samples = {**HEALTHY, **{f"holdfast_{name}": value for name, value in changes.items()}}
    facts = status_server.facts(samples.get, CREATED_MS, synced=synced)
    return {name: (value, level) for name, value, level in facts}


def test_healthy_controller() -> None:
    facts = facts_with()
    assert {level for _, level in facts.values()} == {Level.OK}
    assert facts["This controller"][0] == "leader"
    assert facts["Clock uncertainty"][0] == "0.010 s"
    assert facts["Releases"][0] == "4, 0.005 s late on average"
    assert facts["CA"][0] == "valid until 2026-03-01T13:00:00Z (1h left)"
    assert facts["Webhooks"][0] == "registered"


def test_freezes_are_shown() -> None:
    assert status_server.frozen([], "") == ("Freezes", "none", Level.OK)
    assert status_server.frozen([], "HTTP 403") == ("Freezes", "ignored: HTTP 403", Level.PROBLEM)
    freezes = [Freeze(f"n{number}", "x") for number in range(7)]
    text = "; ".join(f"namespace n{number} is frozen: x" for number in range(5))
    assert status_server.frozen(freezes, "") == ("Freezes", f"{text}; and 2 more", Level.WARNING)


def test_unhealthy_controller() -> None:
    assert facts_with(overdue_pods=2.0)["Overdue pods"] == ("2", Level.PROBLEM)
    assert facts_with(webhooks_registered=0.0)["Webhooks"] == (
        "not registered as configured",
        Level.PROBLEM,
    )
    assert facts_with(vm_pods_kept_back=1.0)["VMs waiting for their record"] == ("1", Level.WARNING)
    assert facts_with(ca_expiry_timestamp_seconds=1.0)["CA"][1] is Level.PROBLEM
    assert facts_with(synced=False)["Synced with the API server"] == ("not yet", Level.WARNING)


def test_standby_reports_no_problems() -> None:
    facts = facts_with(leader=0.0, overdue_pods=2.0, webhooks_registered=0.0)
    assert facts["This controller"][0] == "standby"
    assert {level for _, level in facts.values()} == {Level.OK}


def test_facts_without_data_are_omitted() -> None:
    assert "CA" not in facts_with(ca_expiry_timestamp_seconds=0.0)
    assert "Releases" not in facts_with(release_lateness_seconds_count=0.0)
