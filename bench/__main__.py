"""`python -m bench`: measure Holdfast and its peers, row by row.

The compared servers run at the same time and are measured in turn, round after round. Other load
on the machine therefore affects all of them equally. Figures are written after each row, and
`--resume` continues an interrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import click
from rich.console import Console

from bench import page, results
from bench.peers import build
from bench.results import Outcome
from bench.rows import (
    burst,
    creation,
    lateness,
    memory,
    plugins,
    scale,
    scheduler,
    server,
    streamed,
    waiting,
)
from bench.size import FULL, SHORT, Size
from bench.world import World, world
from controlplane import ensure

Measure = Callable[[World, Size, Callable[[str], None]], Outcome]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement, and whether it needs the API server's audit log."""

    measure: Measure
    audit: bool = False


ROWS: Mapping[str, Row] = {
    "cpu": Row(server.cpu),
    "throughput": Row(server.throughput),
    "plugins": Row(plugins.measure),
    "latency": Row(creation.measure),
    "lateness": Row(lateness.measure, audit=True),
    "burst": Row(burst.measure, audit=True),
    "pace": Row(waiting.pace, audit=True),
    "after": Row(waiting.after, audit=True),
    "scheduler": Row(scheduler.measure, audit=True),
    "scale": Row(scale.measure),
    "streamed": Row(streamed.measure),
    "memory": Row(memory.measure),
}


@click.command()
@click.option("--only", default="", help=f"Comma-separated rows to measure: {', '.join(ROWS)}.")
@click.option("--resume", is_flag=True, help="Skip rows that were already measured in full.")
@click.option("--short", is_flag=True, help="Only check that every row works; write no results.")
@click.option("--page-only", is_flag=True, help="Only write the page from earlier results.")
def main(*, only: str, resume: bool, short: bool, page_only: bool) -> None:
    """Measure Holdfast and its peers, in about an hour on two cores."""
    console = Console()
    if not page_only:
        _measure(_chosen(only, resume=resume), SHORT if short else FULL, console, keep=not short)
    if short:
        return
    page.write(results.load())
    console.print(results.table(results.load()))


def _chosen(only: str, *, resume: bool) -> list[str]:
    names = [name.strip() for name in only.split(",") if name.strip()] or list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise click.BadParameter(f"unknown row {unknown[0]!r}: use {', '.join(ROWS)}")
    return [name for name in names if not (resume and results.is_measured(name, asdict(FULL)))]


def _measure(names: list[str], size: Size, console: Console, *, keep: bool) -> None:
    """Measure the rows one by one. A failed row does not stop the others.

    Raises ClickException at the end if a row failed.
    """
    console.print("building Kubernetes and the peers, if not cached")
    ensure()
    build.peers(build.GO_PEERS, lambda step: console.print(step.what))
    failed = []
    for number, name in enumerate(names, 1):
        began = time.monotonic()
        title = f"[{number}/{len(names)}] {name}"
        with console.status(title) as status:
            try:
                with world(audit=ROWS[name].audit) as cluster:
                    outcome = ROWS[name].measure(cluster, size, _telling(status.update, title))
            except Exception:  # noqa: BLE001 - printed; the other rows still run
                console.print_exception(max_frames=4)
                failed.append(name)
                continue
        seconds = time.monotonic() - began
        figures = ", ".join(f"{key} {value:.3g}" for key, value in outcome.figures.items())
        console.print(f"{title}: {seconds:.0f} s: {figures}")
        if keep:
            results.save(name, outcome, seconds, asdict(size))
    if failed:
        raise click.ClickException(
            f"failed rows, with errors above: {', '.join(failed)}; rerun them with --only"
        )


def _telling(show: Callable[[str], None], title: str) -> Callable[[str], None]:
    return lambda message: show(f"{title}: {message}")


if __name__ == "__main__":
    main()
