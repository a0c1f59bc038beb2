"""The results of rows, as JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.webhook.process import write_whole
from tests.faults.scenario import Check, Fault, Result

BUILD = Path(__file__).resolve().parents[2] / "build" / "faults"


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    short: bool = False
    broken: bool = False
    product: str = ""
    """The tested version (`tests.faults.product`); a run has rows of one version only."""

    @property
    def path(self) -> Path:
        """The file of its results, which no other run overwrites."""
        form = ("-short" if self.short else "") + ("-broken" if self.broken else "")
        return BUILD / f"{self.seed}{form}.json"


def write(results: Iterable[Result], run: Run, path: Path) -> None:
    """Write the JSON atomically, so that an interrupted write loses no results."""
    content = [{"fault": result.fault.name, **asdict(run), **to_dict(result)} for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2) + "\n")


def to_dict(result: Result) -> dict[str, Any]:
    return {
        "began": datetime.fromtimestamp(result.began, UTC).isoformat(timespec="seconds"),
        "seconds": round(result.seconds, 1),
        "checks": {
            name: {"value": check.value, "limit": check.limit, "passed": check.passed}
            for name, check in result.checks.items()
        },
        "figures": result.figures,
        "error": result.error,
        "failures": list(result.failures),
        "passed": result.passed,
    }


def read(run: Run, faults: Iterable[Fault], path: Path) -> list[Result]:
    """Read the results that this run has written so far."""
    if not path.exists():
        return []
    faults_by_name = {fault.name: fault for fault in faults}
    return [
        from_dict(row, faults_by_name[row["fault"]])
        for row in json.loads(path.read_text())
        if row["fault"] in faults_by_name and asdict(run).items() <= row.items()
    ]


def from_dict(row: Mapping[str, Any], fault: Fault) -> Result:
    return Result(
        fault,
        {name: Check(check["value"], check["limit"]) for name, check in row["checks"].items()},
        row["figures"],
        row["error"],
        tuple(row["failures"]),
        datetime.fromisoformat(row["began"]).timestamp(),
        row["seconds"],
    )
