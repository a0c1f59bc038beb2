from prometheus_client import Counter

from holdfast.certs.rotation import Action
from holdfast.webhook.controller.releaser import Outcome
from holdfast.webhook.sticky.decision import RecordChange
from holdfast.webhook.telemetry.metrics import ControllerMetrics, ServerMetrics


def series(counter: Counter) -> dict[tuple[str, ...], float]:
    (family,) = counter.collect()
    samples = [sample for sample in family.samples if sample.name.endswith("_total")]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def zero(*values: str) -> dict[tuple[str, ...], float]:
    return {(value,): 0.0 for value in values}


def test_counters_of_the_controller_are_zero_before_the_first_event() -> None:
    """A series that appears with its first event hides this event from increase()."""
    metrics = ControllerMetrics()

    assert series(metrics.releases) == zero(*(outcome.value for outcome in Outcome), "early")
    records = {change.value for change in RecordChange} - {RecordChange.NONE.value} | {"retried"}
    assert series(metrics.vm_records) == zero(*records)
    assert series(metrics.certificate_writes) == zero(*(action.name.lower() for action in Action))
    assert series(metrics.leader_transitions) == zero("leading", "standby")
    assert series(metrics.watch_restarts) == zero("end", "error", "expired", "relist")


def test_counters_of_the_server_are_zero_before_the_first_event() -> None:
    outcomes = ("allowed", "patched", "refused", "bad", "failed")
    assert series(ServerMetrics().reviews) == {
        (path, outcome): 0.0 for path in ("mutate", "validate") for outcome in outcomes
    }


def test_unknown_gate_names_share_one_series() -> None:
    metrics = ControllerMetrics()
    metrics.hold_plugins = {"delay"}
    holds = {(f"x{number}", "time"): 2 for number in range(1_000)}
    metrics.count_holds = lambda: {("delay", "time"): 3, **holds}
    exposition = metrics.exposition().decode()
    lines = [line for line in exposition.splitlines() if line.startswith("holdfast_holds{")]
    assert sorted(lines) == [
        'holdfast_holds{plugin="delay",reason="time"} 3.0',
        'holdfast_holds{plugin="other",reason="time"} 2000.0',
    ]
