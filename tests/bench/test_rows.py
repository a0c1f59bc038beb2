"""Every row runs in its short form, all on one control plane; times are not checked.

The omitted row waits over a minute for kube-scheduler with the delay plugin; `make bench-short`
includes it.
"""

from collections.abc import Iterator

import pytest

from bench.__main__ import ROWS
from bench.results import BARS
from bench.size import SHORT
from bench.world import World, world

pytestmark = [pytest.mark.xdist_group("bench"), pytest.mark.slow]

KEYS = {
    "cpu": {
        "cpu_per_review_vs_controller_runtime",
        "cpu_per_review_vs_kopf",
        "p99_vs_controller_runtime",
    },
    "throughput": {"throughput_vs_controller_runtime"},
    "plugins": {"rules_500_cost_ratio", "sticky_cpu_ratio"},
    "latency": {
        "added_latency_vs_controller_runtime",
        "added_latency_vs_cel",
        "added_latency_called_twice_vs_cel",
        "added_latency_mutating_only_vs_cel",
        "added_latency_fixed_answer_vs_cel",
        "unconcerned_calls",
        "unconcerned_added_ratio",
        "unselected_added_ratio",
    },
    "lateness": {"lateness_ms_p50", "lateness_ms_p99"},
    "burst": {"burst_rate_vs_client_go", "burst_cpu_us_per_release"},
    "pace": {"pace_utilisation"},
    "after": {"after_ms_p99"},
    "memory": {"webhook_rss_mb", "webhook_rss_growth_mb"},
    "streamed": {"scale_500k_rss_mb", "scale_500k_growth"},
    "scale": {"scale_rss_mb", "scale_cold_start_s", "scale_idle_cpu_percent", "scale_cpu_growth"},
}
EXTRA = {"added_latency_called_twice_vs_cel", "added_latency_fixed_answer_vs_cel"}
"""Figures without a bar, which explain figures that have one."""


@pytest.fixture(scope="module")
def there() -> Iterator[World]:
    with world(audit=True) as new_world:
        yield new_world


@pytest.mark.parametrize("name", KEYS, ids=list(KEYS))
def test_row_runs(there: World, name: str) -> None:
    messages: list[str] = []
    outcome = ROWS[name].measure(there, SHORT, messages.append)

    assert set(outcome.figures) == KEYS[name]
    assert messages  # it reports its progress
    if name == "latency":
        assert outcome.figures["unconcerned_calls"] == 0
    if name == "lateness":
        assert outcome.details["min"] >= 0  # no release is early


def test_every_bar_has_its_row() -> None:
    measured = {key for keys in KEYS.values() for key in keys}
    assert measured - EXTRA == {bar.key for bar in BARS}
    assert measured > EXTRA
