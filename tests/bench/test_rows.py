"""Every row that needs no Go peer still runs, in its short form; times are not looked at.

`make bench-short` runs the others too: building their peers takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.results import BARS, Outcome
from bench.rows import lateness, memory, plugins, scale
from bench.size import SHORT, Size

Measure = Callable[[Size, Callable[[str], None]], Outcome]


@pytest.mark.parametrize(
    ("measure", "keys"),
    [
        pytest.param(plugins.measure, {"rules_cost_ratio", "sticky_cpu_ratio"}, id="plugins"),
        pytest.param(lateness.measure, {"lateness_ms_p50", "lateness_ms_p99"}, id="lateness"),
        pytest.param(memory.measure, {"webhook_rss_mb", "webhook_rss_growth_mb"}, id="memory"),
        pytest.param(
            scale.measure,
            {"scale_rss_mb", "scale_cold_start_s", "scale_idle_cpu_percent", "scale_cpu_growth"},
            id="scale",
        ),
    ],
)
def test_row_runs(measure: Measure, keys: set[str]) -> None:
    told: list[str] = []
    outcome = measure(SHORT, told.append)
    assert set(outcome.figures) == keys <= {bar.key for bar in BARS}
    assert told  # it says how far it is


def test_no_release_is_early() -> None:
    outcome = lateness.measure(SHORT, lambda _: None)
    assert outcome.details["min"] >= 0
