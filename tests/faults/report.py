"""What came of the rows: a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.scene import Result

TARGET = Path(__file__).resolve().parents[2] / "build" / "faults.json"


def show(results: Sequence[Result], *, seed: int, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"faults, seed {seed}", show_lines=True)
    for name in ("", "fault", "checks", "figures", "verdict"):
        table.add_column(name, overflow="fold")
    for result in results:
        checks = [
            f"{'' if check.passed else '[bold red]'}{name}: {check.found:g}"
            f"{f' of {check.most:g}' if check.most else ''}{'' if check.passed else '[/]'}"
            for name, check in result.checks.items()
        ]
        figures = [f"{name}: {value:g}" for name, value in result.figures.items()]
        verdict = "passed" if result.passed else f"[bold red]failed[/] {result.said}"
        group, fault = str(result.fault.group), result.fault.name
        table.add_row(group, fault, "\n".join(checks), "\n".join(figures), verdict)
    console.print(table)


def write(results: Iterable[Result], *, seed: int, path: Path = TARGET) -> None:
    """Write the JSON."""
    content = [
        {
            "fault": result.fault.name,
            "seed": seed,
            "checks": {
                name: {"found": check.found, "most": check.most, "passed": check.passed}
                for name, check in result.checks.items()
            },
            "figures": result.figures,
            "said": result.said,
            "passed": result.passed,
        }
        for result in results
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
