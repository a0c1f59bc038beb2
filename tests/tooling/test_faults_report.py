"""Results of a fault run are kept separate from those of other runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults import report
from tests.faults.report import Run
from tests.faults.scenario import Check, Result
from tests.faults.table import FAULTS

RUN = Run(seed=7, product="this")
RESULTS = [
    Result(
        FAULTS[0],
        {"early": Check(0, 0), "seconds late": Check(1.5, 60)},
        {"pods": 900},
        began=1_700_000_000.0,
        seconds=73.0,
    ),
    Result(FAULTS[1], {"stuck": Check(3, 0)}, {}, "OSError: no", ("refused", "timed out")),
]


def test_results_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "build" / "faults.json"
    assert report.read(RUN, FAULTS, path) == []
    report.write(RESULTS, RUN, path)
    results = report.read(RUN, FAULTS, path)
    assert results == RESULTS
    assert [result.passed for result in results] == [True, False]
    assert report.read(RUN, FAULTS[:1], path) == RESULTS[:1]


def test_results_of_other_runs_are_separate(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    report.write(RESULTS, RUN, path)
    changes: list[dict[str, Any]] = [
        {"seed": 8},
        {"short": True},
        {"broken": True},
        {"product": "another"},
    ]
    for change in changes:
        assert report.read(replace(RUN, **change), FAULTS, path) == []
    forms = (RUN, replace(RUN, seed=8), replace(RUN, short=True), replace(RUN, broken=True))
    assert len({run.path for run in forms}) == len(forms)


def test_row_names_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert sorted(names) == sorted(set(names))


def test_break_is_caught_by_its_own_check() -> None:
    fault = FAULTS[0]
    own_checks, other_checks = {fault.caught_by: Check(9, 5)}, {"something else": Check(9, 5)}
    assert Result(fault, own_checks, {}, "TimeoutError: and it broke off").caught
    assert not Result(fault, {fault.caught_by: Check(5, 5)} | other_checks, {}).caught
    assert not Result(fault, other_checks, {}).caught
    assert not Result(fault, {}, {}, "no cluster").caught
