"""The totals of the latest complete run: the only results of runs that git keeps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LATEST = Path(__file__).with_name("latest.json")
"""Written after a run of all rows in the long form, and shown on the page on failure modes."""

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
    """Restarts of VMs."""
    early: int
    stuck: int
    astray: int
    """Sticky VMs that ran on a wrong node."""
    latest: float
    """Seconds from due time to release, of the latest release, without outages."""


def summarize(rows: Sequence[Row]) -> Summary:
    """Sum up rows that `report.write` wrote. Raises ValueError if they are of several runs."""
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
        restarts=_sum(rows, "VM restarts"),
        early=sum(map(int, _values(rows, "early"))),
        stuck=sum(map(int, _values(rows, "stuck"))),
        astray=sum(map(int, _values(rows, "sticky VMs on a wrong node"))),
        latest=max(_values(rows, "maximum seconds late"), default=0.0),
    )


def write(results: Path, summary: Path = LATEST) -> None:
    content = asdict(summarize(json.loads(results.read_text(encoding="utf-8"))))
    summary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read() -> Summary:
    return Summary(**json.loads(LATEST.read_text(encoding="utf-8")))


def _sum(rows: Iterable[Row], figure: str) -> int:
    return sum(int(row["figures"].get(figure, 0)) for row in rows)


def _values(rows: Iterable[Row], check: str) -> list[float]:
    return [row["checks"][check]["value"] for row in rows if check in row["checks"]]
