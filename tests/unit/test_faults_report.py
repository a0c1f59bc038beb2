"""A run of the faults lasts for hours: what was measured is kept, and told from other runs'."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults import report
from tests.faults.report import Run
from tests.faults.scene import Check, Result
from tests.faults.table import FAULTS

RUN = Run(seed=7, product="this")
RESULTS = [
    Result(
        FAULTS[0],
        {"early": Check(0, 0), "seconds late": Check(1.5, 60)},
        {"pods": 900},
        began=1_700_000_000.0,
        took={"room": 0.5, "load": 60.0, "verdict": 12.5},
    ),
    Result(FAULTS[1], {"stuck": Check(3, 0)}, {}, "OSError: no", ("refused", "timed out")),
]


def test_what_a_run_has_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "build" / "faults.json"
    assert report.read(RUN, FAULTS, path) == []
    report.write(RESULTS, RUN, path)
    read = report.read(RUN, FAULTS, path)
    assert read == RESULTS
    assert [each.passed for each in read] == [True, False]
    assert report.read(RUN, FAULTS[:1], path) == RESULTS[:1]


def test_what_is_written_tells_when_each_row_ran_for_how_long_and_on_what(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    report.write(RESULTS, RUN, path)
    first = json.loads(path.read_text())[0]
    assert (first["fault"], first["passed"]) == (FAULTS[0].name, True)
    assert (first["seed"], first["short"], first["product"]) == (7, False, "this")
    assert (first["began"], first["seconds"]) == ("2023-11-14T22:13:20+00:00", 73.0)


def test_what_other_runs_have_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    report.write(RESULTS, RUN, path)
    different: list[dict[str, Any]] = [
        {"seed": 8},
        {"short": True},
        {"broken": True},
        {"product": "another"},
    ]
    for each in different:
        assert report.read(replace(RUN, **each), FAULTS, path) == []
    assert RUN.path != replace(RUN, broken=True).path
    assert RUN.kept != replace(RUN, seed=8).kept


def test_each_row_is_there_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert sorted(names) == sorted(set(names))


def test_a_break_is_caught_by_the_check_that_is_there_for_it() -> None:
    fault = FAULTS[0]
    by_it, by_another = {fault.caught_by: Check(9, 5)}, {"something else": Check(9, 5)}
    assert Result(fault, by_it, {}, "TimeoutError: and it broke off").caught
    assert not Result(fault, {fault.caught_by: Check(5, 5)} | by_another, {}).caught
    assert not Result(fault, by_another, {}).caught
    assert not Result(fault, {}, {}, "no cluster").caught
