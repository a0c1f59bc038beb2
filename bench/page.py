"""The measured parts of the performance page and the README, from bench/results.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import results

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
PODS, NODES = 150_000, 5_000
"""Documented limits of a Kubernetes cluster."""

_CLAIMED = ("cpu", "latency", "lateness", "burst", "scheduler", "scale", "memory")
"""The rows that the README quotes."""
_WAYS = {
    "cel": "MutatingAdmissionPolicy",
    "fixed-answer": "fixed response",
    "holdfast": "Holdfast",
    "holdfast-called-twice": "Holdfast, validating call not skipped",
    "holdfast-mutating": "Holdfast, mutating webhook only",
    "none": "no webhooks",
    "unconcerned": "Holdfast, pod without its annotations",
    "unselected": "Holdfast, namespace not selected",
}
"""The page's labels for the ways to create a pod."""
Known = Mapping[str, Any]


def write(summary: Known) -> None:
    """Write the measured parts of the page and of the README."""
    for path, part in ((PAGE, measured(summary)), (README, claims(summary))):
        path.write_text(placed(path.read_text("utf-8"), part), "utf-8")


def placed(text: str, part: str) -> str:
    """Return `text` with `part` between the benchmark markers."""
    before, _, after = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{part}\n{END}{after.partition(END)[2]}"


def claims(summary: Known) -> str:
    """Return the README's table, with the figures that users ask about first."""
    if any(row not in summary.get(results.DETAILS, {}) for row in _CLAIMED):
        return "Not measured yet.\n"
    servers = _details(summary, "cpu")["medians"]
    ours, go, kopf = (servers[name] for name in ("Holdfast", "controller-runtime", "kopf"))
    times = _details(summary, "latency")["medians_ms"]["16 clients"]
    added = [times[way] - times["none"] for way in ("holdfast", "controller-runtime", "cel")]
    burst = _details(summary, "burst")["medians"]
    lateness = summary["scheduler_plugin_lateness_s_p50"]
    rows = [
        ("", "Holdfast", "alternatives"),
        ("---", "---", "---"),
        (
            "CPU of a review",
            f"{ours['cpu_us']:.0f} µs",
            f"controller-runtime {go['cpu_us']:.0f} µs, kopf {kopf['cpu_us']:.0f} µs",
        ),
        (
            "p99 of a review",
            f"{ours['p99_ms']:.1f} ms",
            f"controller-runtime {go['p99_ms']:.1f} ms, kopf {kopf['p99_ms']:.1f} ms",
        ),
        (
            "time added to a pod creation",
            f"{added[0]:.0f} ms",
            f"controller-runtime {added[1]:.0f} ms, a CEL policy {added[2]:.0f} ms",
        ),
        ("calls for a pod without its annotations", f"{summary['unconcerned_calls']:.0f}", ""),
        (
            "lateness of a release",
            f"{summary['lateness_ms_p50']:.0f} ms, p99 {summary['lateness_ms_p99']:.0f} ms",
            f"delay plugin in kube-scheduler {lateness:.0f} s (idle cluster)",
        ),
        (
            "releases a second in a burst",
            f"{burst['holdfast']:.0f}",
            f"client-go {burst['client-go']:.0f}",
        ),
        (
            "controller with 100,000 held pods",
            (
                f"{summary['scale_rss_mb']:.0f} MiB, "
                f"{summary['scale_idle_cpu_percent']:.1f} % of a core"
            ),
            "",
        ),
        ("admission server", f"{summary['webhook_rss_mb']:.0f} MiB", ""),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def measured(summary: Known) -> str:
    """Return the measured part of the performance page."""
    lines = [*_machine(summary), *_bars(summary), *_servers(summary), *_creations(summary)]
    lines += [*_growth(summary), *_reckoning(summary)]
    return "\n".join(lines) + "\n"


def _machine(summary: Known) -> Iterator[str]:
    machine = summary.get("machine", {})
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    yield f"Measured on: {facts or 'nothing yet'}."
    yield ""


def _bars(summary: Known) -> Iterator[str]:
    yield "| measure | result | 95 % interval | target | met |"
    yield "| --- | --- | --- | --- | --- |"
    for bar in results.BARS:
        value, bounds = summary.get(bar.key), summary.get("intervals", {}).get(bar.key)
        interval = f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""
        result = "not measured" if value is None else f"{value:.3g}{bar.unit}"
        met = "" if value is None else "yes" if bar.met(value, bounds) else "**no**"
        yield f"| {bar.what} | {result} | {interval} | {bar.shown()} | {met} |"
    yield ""


def _servers(summary: Known) -> Iterator[str]:
    medians = _details(summary, "cpu").get("medians", {})
    if not medians:
        return
    yield "| server | CPU per review | p50 | p99 | reviews/s |"
    yield "| --- | --- | --- | --- | --- |"
    for name, figures in medians.items():
        yield (
            f"| {name} | {figures['cpu_us']:.0f} µs | {figures['p50_ms']:.2f} ms "
            f"| {figures['p99_ms']:.2f} ms | {figures['per_second']:.0f} |"
        )
    yield ""


def _creations(summary: Known) -> Iterator[str]:
    """Yield the table of pod creations, with the time and the API server's CPU for each way."""
    details = _details(summary, "latency")
    times, costs = details.get("medians_ms", {}), details.get("api_server_us", {})
    if not costs:
        return
    yield "| pod creation | 16 clients | one client | API server CPU |"
    yield "| --- | --- | --- | --- |"
    for way, cost in costs.items():
        parallel, single = times["16 clients"][way], times["1 client"][way]
        yield f"| {_WAYS.get(way, way)} | {parallel:.1f} ms | {single:.2f} ms | {cost:.0f} µs |"
    yield ""


def _growth(summary: Known) -> Iterator[str]:
    """Yield the table of the controller's cost, by number of held pods."""
    details = _details(summary, "scale")
    costs = details.get("release_cpu_us", {})
    if not costs:
        return
    few, many = sorted(costs, key=int)
    yield f"| controller, by held pods | 0 | {int(few):,} | {int(many):,} |"
    yield "| --- | --- | --- | --- |"
    yield f"| CPU per release | | {costs[few]:.0f} µs | {costs[many]:.0f} µs |"
    idle = f"{details['empty_rss_mb']:.0f} MiB | | {details['steady_rss_mb']:.0f} MiB"
    yield f"| idle memory | {idle} |"
    yield f"| peak memory | | | {summary['scale_rss_mb']:.0f} MiB |"
    yield ""


def _reckoning(summary: Known) -> Iterator[str]:
    """Yield estimates for a cluster at the Kubernetes limits, with its first bottleneck."""
    cpu = _details(summary, "cpu").get("medians", {}).get("Holdfast", {}).get("cpu_us")
    burst = _details(summary, "burst").get("medians", {}).get("holdfast")
    times = _details(summary, "latency").get("medians_ms", {}).get("16 clients", {})
    empty, full = _memory(summary)
    if not (cpu and burst and times and full):
        return
    review_rate = 1e6 / cpu
    creation_rate = 16 / times["none"] * 1e3
    rates = {
        "API server, pod creations without webhooks": creation_rate,
        "admission server, one core": review_rate,
        "controller, releases in a burst": burst,
    }
    yield f"### Estimate for {PODS:,} pods and {NODES:,} nodes"
    yield ""
    yield "The largest cluster that Kubernetes supports, at the rates measured here:"
    yield ""
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        yield f"- {name}: {rate:,.0f} per second, or {PODS / rate / 60:.1f} min for all pods."
    slowest = min(rates, key=lambda key: rates[key])
    memory = empty + (full - empty) * PODS / 100_000
    yield f"- controller memory with all pods held: about {memory:.0f} MiB."
    yield ""
    yield f"The first bottleneck is: {slowest}. Nodes cost nothing, because Holdfast watches none."


def _memory(summary: Known) -> tuple[float, float]:
    """Return the controller's memory in MiB without held pods, and its peak with 100,000."""
    details = _details(summary, "scale")
    return details.get("empty_rss_mb", 0.0), summary.get("scale_rss_mb", 0.0)


def _details(summary: Known, row: str) -> Mapping[str, Any]:
    details: Mapping[str, Any] = summary.get(results.DETAILS, {}).get(row, {})
    return details
