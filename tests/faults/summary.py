"""The figures of the latest whole run: the only results of runs that git keeps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LATEST = Path(__file__).with_name("latest.json")
"""Written at the end of a run of all rows in the long form; the page on failure modes shows it."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """The sums and maxima of one run."""

    seed: int
    product: str
    """The product's git object names, as `tests.faults.product` gives them."""
    began: str
    """Start of the first row: ISO 8601, UTC."""
    rows: int
    failed: Sequence[str]
    """The names of the failed rows."""
    pods: int
    delayed: int
    restarts: int
    """Of VMs."""
    early: int
    stuck: int
    astray: int
    latest: float
    """Seconds from due time to release, of the latest release; outages do not count."""


def summarize(rows: Sequence[Row]) -> Summary:
    """Sum up rows as `report.write` has written them. Raises ValueError if they mix runs."""
    runs = {(row["seed"], row["product"], row["short"], row["broken"]) for row in rows}
    if len(runs) != 1:
        raise ValueError(f"rows of {len(runs)} runs; give the file of one run")
    seed, product, *_ = runs.pop()
    return Summary(
        seed=seed,
        product=product,
        began=min(row["began"] for row in rows),
        rows=len(rows),
        failed=[row["fault"] for row in rows if not row["passed"]],
        pods=_sum(rows, "pods"),
        delayed=_sum(rows, "delayed"),
        restarts=_sum(rows, "restarts of VMs"),
        early=sum(map(int, _found(rows, "early"))),
        stuck=sum(map(int, _found(rows, "stuck"))),
        astray=sum(map(int, _found(rows, "sticky VMs astray"))),
        latest=max(_found(rows, "seconds late, at most"), default=0.0),
    )


def write(results: Path, summary: Path = LATEST) -> None:
    made = asdict(summarize(json.loads(results.read_text(encoding="utf-8"))))
    summary.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def read() -> Summary:
    return Summary(**json.loads(LATEST.read_text(encoding="utf-8")))


def _sum(rows: Iterable[Row], figure: str) -> int:
    return sum(int(row["figures"].get(figure, 0)) for row in rows)


def _found(rows: Iterable[Row], check: str) -> list[float]:
    return [row["checks"][check]["found"] for row in rows if check in row["checks"]]
