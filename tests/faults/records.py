"""Runs whose figures are kept beside the code: what the page about them tells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "runs"
"""Copies of `build/faults.json`, by seed: `--resume` goes on with one that was cut short."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """What came of a run."""

    seed: int
    product: str
    """What it ran on (`tests.faults.product`)."""
    began: str
    """When its first row began: ISO 8601, UTC."""
    rows: int
    failed: Sequence[str]
    """The names of the rows that did not pass."""
    pods: int
    delayed: int
    restarts: int
    """Of VMs."""
    early: int
    stuck: int
    astray: int
    latest: float
    """By how many seconds the latest release was late, not counting times without any."""


def read_all(folder: Path = FOLDER) -> list[Record]:
    """Read what is kept, in the order in which the runs were made."""
    kept = [record(rows_of(path)) for path in folder.glob("*.json")]
    return sorted(kept, key=lambda each: each.began)


def rows_of(path: Path) -> Sequence[Row]:
    """Read what a run has written."""
    rows: Sequence[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def record(rows: Sequence[Row]) -> Record:
    """Sum up a run. Raises ValueError where rows are not of one run on one product."""
    told = {(row["seed"], row["product"], row["short"], row["broken"]) for row in rows}
    if len(told) != 1:
        raise ValueError(f"rows of {len(told)} runs; keep the file that one run has written")
    seed, product, *_ = told.pop()
    return Record(
        seed=seed,
        product=product,
        began=min(row["began"] for row in rows),
        rows=len(rows),
        failed=[row["fault"] for row in rows if not row["passed"]],
        pods=_sum(rows, "pods"),
        delayed=_sum(rows, "delayed"),
        restarts=_sum(rows, "restarts of VMs"),
        early=_found(rows, "early"),
        stuck=_found(rows, "stuck"),
        astray=_found(rows, "sticky VMs astray"),
        latest=max((_check(row, "seconds late, at most") for row in rows), default=0.0),
    )


def _sum(rows: Iterable[Row], figure: str) -> int:
    return sum(int(row["figures"].get(figure, 0)) for row in rows)


def _found(rows: Iterable[Row], check: str) -> int:
    return sum(int(_check(row, check)) for row in rows)


def _check(row: Row, name: str) -> float:
    check = row["checks"].get(name)
    return float(check["found"]) if check else 0.0
