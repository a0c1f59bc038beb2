"""Lanes run all rows, whatever becomes of one of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.faults import lane, lanes
from tests.faults.lane import NoClusterError
from tests.faults.report import Run
from tests.faults.table import FAULTS
from tests.faults.worker import READY
from tests.unit.lane_worker import ENDS_AT

ROWS = [fault for fault in FAULTS if not fault.alone][:4]
RUN = Run(seed=7)


@pytest.fixture(autouse=True)
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "WORKER", "tests.unit.lane_worker")
    monkeypatch.setattr(lanes, "BUILD", tmp_path)


def test_each_row_is_run_once() -> None:
    found = list(lanes.results(ROWS, RUN, lanes=2))
    assert sorted(each.fault.name for each in found) == sorted(row.name for row in ROWS)
    assert all(each.passed for each in found)
    assert len({each.figures["process"] for each in found}) <= 2


def test_a_row_whose_lane_ends_has_failed_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENDS_AT, ROWS[2].name)
    found = {each.fault.name: each for each in lanes.results(ROWS, RUN, lanes=2)}
    assert [found[row.name].passed for row in ROWS] == [True, True, False, True]
    assert found[ROWS[2].name].said == "the lane has ended: it broke off"


def test_without_a_cluster_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDS_AT, READY)
    with pytest.raises(NoClusterError, match=r"^no cluster: nothing works here$"):
        list(lanes.results(ROWS, RUN, lanes=2))


def test_what_is_too_broken_for_a_cluster_has_shown_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENDS_AT, READY)
    found = list(lanes.results(ROWS[:2], Run(seed=7, broken=True), lanes=1))
    assert [each.said for each in found] == ["no cluster: nothing works here"] * 2
    assert not any(each.caught for each in found)


def test_builds_broken_on_purpose_have_a_process_each() -> None:
    found = list(lanes.results(ROWS[:2], Run(seed=7, broken=True), lanes=1))
    assert len({each.figures["process"] for each in found}) == 2


def test_whoever_wants_no_more_leaves_nothing_running() -> None:
    found = lanes.results(ROWS, RUN, lanes=2)
    next(found)
    del found
    assert not [one for one in threading.enumerate() if one.name.startswith("lane ")]
