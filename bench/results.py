"""The measured figures and their targets: how they are stored and shown."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

RESULTS = Path(__file__).with_name("results.json")
"""The summary, which is kept in git. The pages are generated from it."""
BUILD = Path(__file__).resolve().parents[1] / "build" / "bench"
"""All measurements, one file per row."""
DETAILS = "details"
TOLERANCE = 0.1
"""Share of the target by which the interval may miss it if the median meets it."""
SHOWN: Mapping[str, Sequence[str]] = {
    "burst": ("medians",),
    "cpu": ("medians",),
    "latency": ("medians_ms", "api_server_us"),
    "scale": ("empty_rss_mb", "steady_rss_mb", "release_cpu_us"),
}
"""Details shown on the pages, by row."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a row: figures by key, some with a confidence interval."""

    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """The target of a figure: an upper limit, or a lower one with `at_least`."""

    key: str
    what: str
    bar: float
    at_least: bool = False
    around: bool = False
    """The interval has to contain the target, so the difference is not significant."""
    unit: str = ""

    def met(self, value: float, interval: Sequence[float] | None) -> bool:
        """Return whether a figure meets the target, and its interval does so within TOLERANCE."""
        low, high = interval or (value, value)
        if self.around:
            return low <= self.bar <= high
        if self.at_least:
            return value >= self.bar and low >= self.bar * (1 - TOLERANCE)
        return value <= self.bar and high <= self.bar * (1 + TOLERANCE)

    def shown(self) -> str:
        """Return the target as text, with its sign and unit."""
        sign = "≈" if self.around else "≥" if self.at_least else "≤"
        return f"{sign} {self.bar:g}{self.unit}"


BARS: Sequence[Bar] = (
    Bar("cpu_per_review_vs_controller_runtime", "CPU per review ÷ controller-runtime", 0.30),
    Bar("cpu_per_review_vs_kopf", "CPU per review ÷ kopf", 0.15),
    Bar("p99_vs_controller_runtime", "p99 of a review, 4 connections ÷ controller-runtime", 0.12),
    Bar(
        "throughput_vs_controller_runtime",
        "reviews/s on one core ÷ controller-runtime",
        2.8,
        at_least=True,
    ),
    Bar(
        "added_latency_vs_controller_runtime",
        "time added to a pod creation, 16 clients ÷ controller-runtime",
        0.85,
    ),
    Bar("added_latency_vs_cel", "the same ÷ MutatingAdmissionPolicy", 1.2),
    Bar("added_latency_mutating_only_vs_cel", "the same, mutating webhook only", 0.9),
    Bar("unconcerned_calls", "webhook calls for pods that do not use Holdfast", 0),
    Bar("unconcerned_added_ratio", "creation time of such pods ÷ without Holdfast", 1.15),
    Bar(
        "unselected_added_ratio",
        "creation time in namespaces that are not selected ÷ without Holdfast",
        1.0,
        around=True,
    ),
    Bar("lateness_ms_p50", "release lateness, p50", 6, unit=" ms"),
    Bar("lateness_ms_p99", "release lateness, p99", 25, unit=" ms"),
    Bar("burst_rate_vs_client_go", "releases/s in a burst ÷ client-go", 1.0, at_least=True),
    Bar("burst_cpu_us_per_release", "CPU of a release in a burst", 200, unit=" µs"),
    Bar("pace_utilisation", "share of a pace's slots in use", 0.95, at_least=True),
    Bar("after_ms_p99", "release after the Job completed, 1,000 waiters, p99", 1_000, unit=" ms"),
    Bar("scale_rss_mb", "controller peak memory, 100,000 held pods", 200, unit=" MiB"),
    Bar("scale_cold_start_s", "controller cold start, 100,000 held pods", 12, unit=" s"),
    Bar("scale_idle_cpu_percent", "controller idle CPU, 100,000 held pods", 0.5, unit=" %"),
    Bar("scale_cpu_growth", "CPU per release, 100,000 held ÷ 1,000 held", 1.2),
    Bar("scale_500k_rss_mb", "controller peak memory, 500,000 held pods", 900, unit=" MiB"),
    Bar("scale_500k_growth", "CPU per release, 500,000 held ÷ 1,000 held", 1.2),
    Bar("rules_500_cost_ratio", "review with 500 placement rules ÷ delay review", 1.5),
    Bar("sticky_cpu_ratio", "review of a sticky VM's pod ÷ delay review", 6),
    Bar("webhook_rss_mb", "admission server idle memory", 80, unit=" MiB"),
    Bar(
        "webhook_rss_growth_mb", "admission server memory growth, 1,000,000 reviews", 5, unit=" MiB"
    ),
)


def load() -> dict[str, Any]:
    """Return the summary of earlier runs, empty if there is none."""
    return _read(RESULTS)


def is_measured(row: str, size: object) -> bool:
    """Return whether a row was last measured at this size, on this machine."""
    as_read = json.loads(json.dumps(size))  # JSON has no tuples
    return bool(_read(_file(row)).get("size") == as_read)


def save(row: str, outcome: Outcome, seconds: float, size: object) -> None:
    """Write a row's details, and merge its figures into the summary.

    An interrupted run keeps the rows that it finished.
    """
    summary = load()
    summary["machine"] = machine()
    summary.update({key: round(value, 4) for key, value in outcome.figures.items()})
    intervals = {
        key: [round(bound, 4) for bound in bounds] for key, bounds in outcome.intervals.items()
    }
    summary["intervals"] = {**summary.get("intervals", {}), **intervals}
    timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    details = {key: outcome.details[key] for key in SHOWN.get(row, ())}
    summary[DETAILS] = {**summary.get(DETAILS, {}), row: {"when": timestamp, **details}}
    _write(RESULTS, summary)
    _write(
        _file(row), {**asdict(outcome), "when": timestamp, "seconds": round(seconds), "size": size}
    )


def _file(row: str) -> Path:
    return BUILD / f"{row}.json"


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")


def machine() -> dict[str, Any]:
    """Return the CPU count, system and software versions of this machine."""
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("gunicorn", "flask", "msgspec", "urllib3")},
    }


def table(summary: Mapping[str, Any]) -> Table:
    """Return a table of the figures and their targets."""
    grid = Table("measure", title="Holdfast and its peers")
    for heading in ("result", "95 % interval", "target", "met"):
        grid.add_column(heading, justify="right")
    for bar in BARS:
        value = summary.get(bar.key)
        bounds = summary.get("intervals", {}).get(bar.key)
        interval = f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""
        if value is None:
            grid.add_row(bar.what, "-", "", bar.shown(), "not measured")
            continue
        met = "yes" if bar.met(value, bounds) else "[bold red]no"
        grid.add_row(bar.what, f"{value:.3g}{bar.unit}", interval, bar.shown(), met)
    return grid
