"""Runs of the faults whose figures are kept are of one run each, and summed up as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import records, report
from tests.faults.records import FOLDER, Record
from tests.faults.report import Run
from tests.faults.scene import Check, Result
from tests.faults.table import FAULTS

RUN = Run(seed=7, product="this")
LATE = "seconds late, at most"
FIGURES = {"pods": 900.0, "delayed": 400.0, "restarts of VMs": 5.0}


def result(place: int, *, late: float, stuck: int = 0) -> Result:
    checks = {
        "early": Check(0, 0),
        "stuck": Check(stuck, 0),
        "sticky VMs astray": Check(0, 0),
        LATE: Check(late, 60),
    }
    began = 1_700_000_000.0 - 1_000 * place
    return Result(FAULTS[place], checks, FIGURES, began=began)


def keep(folder: Path, run: Run, *results: Result) -> None:
    report.write(results, run, folder / f"{run.seed}.json")


def test_a_run_is_summed_up(tmp_path: Path) -> None:
    broken_off = Result(FAULTS[2], {}, {}, "the lane has ended", began=1_700_000_000.0)
    keep(tmp_path, RUN, result(0, late=1.5), result(1, late=34.0, stuck=3), broken_off)
    assert records.read_all(tmp_path) == [
        Record(
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
            bounded={
                (FAULTS[0].name, LATE): Check(1.5, 60),
                (FAULTS[1].name, LATE): Check(34.0, 60),
            },
        )
    ]


def test_checks_that_came_near_to_their_bounds_in_any_run_are_told(tmp_path: Path) -> None:
    """The nearest first, with what each of the runs found."""
    keep(tmp_path, RUN, result(0, late=1.5), result(1, late=36.0), result(2, late=2.0))
    other = replace(RUN, seed=8)
    keep(tmp_path, other, result(0, late=45.0), result(2, late=29.0))
    kept = records.read_all(tmp_path)
    assert records.nearest(kept, 0.5) == [
        ((FAULTS[0].name, LATE), [Check(1.5, 60), Check(45.0, 60)]),
        ((FAULTS[1].name, LATE), [Check(36.0, 60), None]),
    ]
    assert records.nearest([], 0.5) == []


def test_runs_are_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    keep(tmp_path, replace(RUN, seed=1), result(0, late=1.0))
    keep(tmp_path, replace(RUN, seed=2), result(1, late=1.0))
    assert [each.seed for each in records.read_all(tmp_path)] == [2, 1]


def test_rows_of_several_runs_are_no_record(tmp_path: Path) -> None:
    keep(tmp_path, RUN, result(0, late=1.0))
    keep(tmp_path, replace(RUN, seed=8), result(1, late=1.0))
    both = [row for seed in (7, 8) for row in records.rows_of(tmp_path / f"{seed}.json")]
    with pytest.raises(ValueError, match="rows of 2 runs"):
        records.record(both)


def test_what_is_kept_is_of_rows_in_their_long_form_on_a_product_that_is_known() -> None:
    names = [fault.name for fault in FAULTS]
    for path in FOLDER.glob("*.json"):
        rows = records.rows_of(path)
        found = [row["fault"] for row in rows]
        assert found == [name for name in names if name in found]
        assert {(row["short"], row["broken"]) for row in rows} == {(False, False)}
        assert path.stem == str(records.record(rows).seed)
        assert "+changed" not in records.record(rows).product
