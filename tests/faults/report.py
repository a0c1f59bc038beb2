"""The results of rows: a table for people, JSON for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.webhook.process import write_whole
from tests.faults.scenario import Check, Fault, Result

BUILD = Path(__file__).resolve().parents[2] / "build" / "faults"


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    short: bool = False
    broken: bool = False
    product: str = ""
    """The tested version (`tests.faults.product`); rows of other versions are not in this run."""

    @property
    def path(self) -> Path:
        """The file of its results; a later run leaves it alone."""
        form = ("-short" if self.short else "") + ("-broken" if self.broken else "")
        return BUILD / f"{self.seed}{form}.json"


def show(results: Sequence[Result], *, seed: int, console: Console) -> None:
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
        verdict = "passed" if result.passed else f"[bold red]failed[/] {escape(result.said)}"
        verdict += f"\nin {result.seconds:.0f} s"
        group, fault = str(result.fault.group), result.fault.name
        table.add_row(group, fault, "\n".join(checks), "\n".join(figures), verdict)
    console.print(table)


def write(results: Iterable[Result], run: Run, path: Path) -> None:
    """Write the JSON, whole or not at all: what was measured for long is not lost."""
    content = [{"fault": each.fault.name, **asdict(run), **written(each)} for each in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2) + "\n")


def written(result: Result) -> dict[str, Any]:
    return {
        "began": datetime.fromtimestamp(result.began, UTC).isoformat(timespec="seconds"),
        "seconds": round(result.seconds, 1),
        "took": result.took,
        "checks": {
            name: {"found": check.found, "most": check.most, "passed": check.passed}
            for name, check in result.checks.items()
        },
        "figures": result.figures,
        "said": result.said,
        "failures": list(result.failures),
        "passed": result.passed,
    }


def read(run: Run, faults: Iterable[Fault], path: Path) -> list[Result]:
    """Read back what that very run has written; nothing where there is none."""
    if not path.exists():
        return []
    by_name = {fault.name: fault for fault in faults}
    return [
        read_back(one, by_name[one["fault"]])
        for one in json.loads(path.read_text())
        if one["fault"] in by_name and asdict(run).items() <= one.items()
    ]


def read_back(one: Mapping[str, Any], fault: Fault) -> Result:
    return Result(
        fault,
        {name: Check(each["found"], each["most"]) for name, each in one["checks"].items()},
        one["figures"],
        one["said"],
        tuple(one["failures"]),
        datetime.fromisoformat(one["began"]).timestamp(),
        one["took"],
    )
