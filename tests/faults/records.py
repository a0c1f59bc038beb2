"""Runs whose figures are kept beside the code: what the page about them tells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.scene import Check

FOLDER = Path(__file__).parent / "runs"
"""Copies of `build/faults.json`, by seed: `--resume` goes on with one that was cut short."""

Row = Mapping[str, Any]
Bounded = Mapping[tuple[str, str], Check]
"""What was found and what is allowed, by row and check, where anything is allowed."""
Found = Check | None
"""What a run's check found; None where the run had no such check."""


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
    bounded: Bounded


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
        bounded=dict(_bounds(rows)),
    )


def nearest(kept: Sequence[Record], share: float) -> list[tuple[tuple[str, str], list[Found]]]:
    """Tell which checks came to that share of what they allow in any of these runs.

    With what each run found, in their order, if it had the check; the nearest first.
    """
    keys = dict.fromkeys(key for each in kept for key in each.bounded)
    checks = {key: [each.bounded.get(key) for each in kept] for key in keys}
    near = [(key, found) for key, found in checks.items() if _share(found) >= share]
    return sorted(near, key=lambda one: -_share(one[1]))


def _share(found: Iterable[Found]) -> float:
    return max(each.found / each.most for each in found if each)


def _bounds(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, str], Check]]:
    for row in rows:
        for name, check in row["checks"].items():
            if check["most"]:
                yield (row["fault"], name), Check(check["found"], check["most"])


def _sum(rows: Iterable[Row], figure: str) -> int:
    return sum(int(row["figures"].get(figure, 0)) for row in rows)


def _found(rows: Iterable[Row], check: str) -> int:
    return sum(int(_check(row, check)) for row in rows)


def _check(row: Row, name: str) -> float:
    check = row["checks"].get(name)
    return float(check["found"]) if check else 0.0
