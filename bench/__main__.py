"""`python -m bench`: measure Holdfast and its peers, row by row.

The compared servers run at the same time and are measured in turns, round after round, so that
other work of the machine affects all of them equally. Figures are written after each row, and
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
    """How something is measured, and whether by the API server's audit log."""

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
@click.option("--only", default="", help=f"Rows, with commas between: {', '.join(ROWS)}.")
@click.option("--resume", is_flag=True, help="Leave out rows that were measured in full before.")
@click.option("--short", is_flag=True, help="Only show that every row works; nothing is kept.")
@click.option("--page-only", is_flag=True, help="Write the page of what was measured before.")
def main(*, only: str, resume: bool, short: bool, page_only: bool) -> None:
    """Measure Holdfast and its peers; about an hour on two cores."""
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
        raise click.BadParameter(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return [name for name in names if not (resume and results.is_measured(name, asdict(FULL)))]


def _measure(names: list[str], size: Size, console: Console, *, keep: bool) -> None:
    """Measure rows one by one; a failure is reported at the end and does not stop the others."""
    console.print("building what is measured, where it is missing")
    ensure()
    build.peers(build.GO_PEERS, lambda step: console.print(step.what))
    failed = []
    for number, name in enumerate(names, 1):
        began = time.monotonic()
        title = f"[{number}/{len(names)}] {name}"
        with console.status(title) as status:
            try:
                with world(audit=ROWS[name].audit) as there:
                    outcome = ROWS[name].measure(there, size, _telling(status.update, title))
            except Exception:  # noqa: BLE001 - shown, and the other rows are measured all the same
                console.print_exception(max_frames=4)
                failed.append(name)
                continue
        took = time.monotonic() - began
        figures = ", ".join(f"{key} {value:.3g}" for key, value in outcome.figures.items())
        console.print(f"{title}: {took:.0f} s: {figures}")
        if keep:
            results.save(name, outcome, took, asdict(size))
    if failed:
        raise click.ClickException(
            f"these rows failed, for the reasons above: {', '.join(failed)}; again with --only"
        )


def _telling(show: Callable[[str], None], title: str) -> Callable[[str], None]:
    return lambda what: show(f"{title}: {what}")


if __name__ == "__main__":
    main()
