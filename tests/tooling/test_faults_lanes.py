"""Lanes run all rows, even if one lane crashes."""

from pathlib import Path

import pytest

from tests.faults import lane, lanes
from tests.faults.report import Run
from tests.faults.table import FAULTS
from tests.faults.worker import READY
from tests.tooling.lane_worker import ENDS_AT

ROWS = [fault for fault in FAULTS if not fault.alone][:4]
RUN = Run(seed=7)


@pytest.fixture(autouse=True)
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "WORKER", "tests.tooling.lane_worker")
    monkeypatch.setattr(lanes, "BUILD", tmp_path)


def test_row_of_a_crashed_lane_fails_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDS_AT, ROWS[2].name)
    results = {result.fault.name: result for result in lanes.results(ROWS, RUN, lanes=2)}
    assert [results[row.name].passed for row in ROWS] == [True, True, False, True]
    assert results[ROWS[2].name].error == "the lane has ended: it broke off"


def test_break_that_prevents_startup_counts_as_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDS_AT, READY)
    results = list(lanes.results(ROWS[:2], Run(seed=7, broken=True), lanes=1))
    assert [result.error for result in results] == ["no cluster: nothing works here"] * 2
    assert not any(result.caught for result in results)


def test_broken_builds_run_in_separate_processes() -> None:
    results = list(lanes.results(ROWS[:2], Run(seed=7, broken=True), lanes=1))
    assert len({result.figures["process"] for result in results}) == 2
