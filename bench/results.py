"""The figures, the bars they are held to, and how both are shown and kept."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

RESULTS = Path(__file__).with_name("results.json")
DETAILS = "details"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row found: figures by key, with an interval of confidence where there is one."""

    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach; `at_least` where more is better."""

    key: str
    what: str
    bar: float
    at_least: bool = False
    around: bool = False
    """The interval has to contain the bar: no difference can be told."""
    unit: str = ""
    aim: float | None = None

    def met(self, value: float, interval: Sequence[float] | None) -> bool:
        """Tell whether a figure reaches the bar."""
        if self.around:
            return value <= self.bar or (interval is not None and interval[0] <= self.bar)
        return value >= self.bar if self.at_least else value <= self.bar

    def shown(self) -> str:
        """Write the bar for a reader."""
        sign = "≈" if self.around else "≥" if self.at_least else "≤"
        return f"{sign} {self.bar:g}{self.unit}"


BARS: Sequence[Bar] = (
    Bar("cpu_per_review_vs_controller_runtime", "CPU of a review ÷ controller-runtime", 0.50),
    Bar("cpu_per_review_vs_kopf", "CPU of a review ÷ kopf", 0.70),
    Bar("p99_vs_controller_runtime", "p99 at 4 connections ÷ controller-runtime", 0.20),
    Bar(
        "throughput_vs_controller_runtime",
        "reviews/s on one core ÷ controller-runtime",
        1.4,
        at_least=True,
    ),
    Bar(
        "added_latency_vs_controller_runtime",
        "time added to a pod's creation, 16 clients ÷ controller-runtime",
        0.9,
    ),
    Bar("added_latency_vs_cel", "same ÷ MutatingAdmissionPolicy", 1.5),
    Bar("added_latency_mutating_only_vs_cel", "same, mutating webhook alone", 0.9),
    Bar("unconcerned_calls", "calls for pods that ask for nothing", 0),
    Bar("unconcerned_added_ratio", "creation of such pods ÷ without Holdfast", 1.0, around=True),
    Bar("lateness_ms_p50", "lateness of a release, p50", 15, unit=" ms"),
    Bar("lateness_ms_p99", "lateness of a release, p99", 100, unit=" ms"),
    Bar("burst_rate_vs_client_go", "releases/s in a burst ÷ client-go", 0.85, at_least=True),
    Bar("scale_rss_mb", "controller's peak memory, 100,000 held pods", 300, unit=" MiB"),
    Bar("scale_cold_start_s", "its cold start", 20, unit=" s"),
    Bar("scale_idle_cpu_percent", "its CPU at rest", 2, unit=" %"),
    Bar("scale_cpu_growth", "CPU of a release, 100,000 held ÷ 1,000 held", 1.2),
    Bar("rules_cost_ratio", "review with 20 placement rules ÷ delay review", 1.5),
    Bar("sticky_cpu_ratio", "review of a sticky VM's pod ÷ delay review", 8),
    Bar("webhook_rss_mb", "admission server's memory at rest", 90, unit=" MiB"),
    Bar("webhook_rss_growth_mb", "its growth after 1,000,000 reviews", 5, unit=" MiB"),
)


def load() -> dict[str, Any]:
    """Read what earlier runs found; nothing where there was none."""
    if not RESULTS.exists():
        return {}
    return dict(json.loads(RESULTS.read_text("utf-8")))


def save(row: str, outcome: Outcome, seconds: float, size: object) -> dict[str, Any]:
    """Add a row's figures to the file at once, so that a run cut short has not run in vain."""
    known = load()
    known["machine"] = machine()
    known.update({key: round(value, 4) for key, value in outcome.figures.items()})
    intervals = {key: [round(end, 4) for end in ends] for key, ends in outcome.intervals.items()}
    known["intervals"] = {**known.get("intervals", {}), **intervals}
    told = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(seconds)}
    row_details = {**told, "size": size, **outcome.details}
    known[DETAILS] = {**known.get(DETAILS, {}), row: row_details}
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    return known


def machine() -> dict[str, Any]:
    """Say what the figures were measured on."""
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("gunicorn", "flask", "msgspec", "urllib3")},
    }


def table(known: Mapping[str, Any]) -> Table:
    """Lay the figures out beside their bars."""
    shown = Table("what", title="Holdfast beside its peers")
    for heading in ("measured", "95 %", "bar", "met"):
        shown.add_column(heading, justify="right")
    for bar in BARS:
        value = known.get(bar.key)
        ends = known.get("intervals", {}).get(bar.key)
        between = f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else ""
        if value is None:
            shown.add_row(bar.what, "-", "", bar.shown(), "not measured")
            continue
        met = "yes" if bar.met(value, ends) else "[bold red]no"
        shown.add_row(bar.what, f"{value:.3g}{bar.unit}", between, bar.shown(), met)
    return shown
