"""The summary of a fault run, which is committed instead of its results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults import report, summary
from tests.faults.report import Run
from tests.faults.scenario import Check, Result
from tests.faults.summary import Summary
from tests.faults.table import FAULTS

RUN = Run(seed=7, product="this")
FIGURES = {"pods": 900.0, "delayed": 400.0, "VM restarts": 5.0}


def result(place: int, *, late: float, stuck: int = 0) -> Result:
    checks = {
        "early": Check(0, 0),
        "stuck": Check(stuck, 0),
        "sticky VMs on a wrong node": Check(0, 0),
        "maximum seconds late": Check(late, 60),
    }
    return Result(FAULTS[place], checks, FIGURES, began=1_700_000_000.0 - 1_000 * place)


def rows(folder: Path, run: Run, *results: Result) -> list[dict[str, Any]]:
    path = folder / "run.json"
    report.write(results, run, path)
    return list(json.loads(path.read_text()))


def test_run_is_summarized(tmp_path: Path) -> None:
    aborted = Result(FAULTS[2], {}, {}, "the lane has ended", began=1_700_000_000.0)
    written_rows = rows(tmp_path, RUN, result(0, late=1.5), result(1, late=34.0, stuck=3), aborted)
    assert summary.summarize(written_rows) == Summary(
        seed=7,
        product="this",
        began="2023-11-14T21:56:40+00:00",
        rows=3,
        failed=[FAULTS[1].name, FAULTS[2].name],
        pods=1800,
        delayed=800,
        restarts=10,
        early=0,
        stuck=3,
        astray=0,
        latest=34.0,
    )


def test_rows_of_several_runs_are_rejected(tmp_path: Path) -> None:
    written_rows = rows(tmp_path, RUN, result(0, late=1.0))
    written_rows += rows(tmp_path, replace(RUN, seed=8), result(1, late=1.0))
    with pytest.raises(ValueError, match="rows of 2 runs"):
        summary.summarize(written_rows)


def test_committed_summary_is_of_a_committed_product() -> None:
    assert "+changed" not in summary.read().product
