"""Fault rows are scheduled on clusters that run in parallel."""

import threading
from dataclasses import replace

from tests.faults.scenario import Fault
from tests.faults.schedule import Schedule
from tests.faults.table import FAULTS

LONG = replace(FAULTS[0], name="long", minutes=15.0, alone=False)
SHORT = replace(FAULTS[0], name="short", minutes=1.0, alone=False)
QUIET = replace(FAULTS[0], name="quiet", minutes=30.0, alone=True)


def test_row_that_runs_alone_waits_for_other_lanes() -> None:
    schedule, faults = Schedule([QUIET, SHORT, LONG], lanes=2), list[Fault | None]()
    assert [schedule.take(lane) for lane in (0, 1, 1)] == [LONG, SHORT, None]
    thread = threading.Thread(target=lambda: faults.append(schedule.take(0)))
    thread.start()
    thread.join(0.05)
    assert not faults
    schedule.leave(1)
    thread.join(10)
    assert faults == [QUIET]
    assert schedule.take(0) is None


def test_aborted_lane_does_not_block_others() -> None:
    schedule = Schedule([QUIET, SHORT, LONG], lanes=2)
    assert schedule.take(0) == LONG
    schedule.leave(0)
    assert [schedule.take(1) for _ in range(3)] == [SHORT, QUIET, None]


def test_rows_that_fill_a_cluster_run_alone() -> None:
    assert all(fault.alone for fault in FAULTS if fault.fills)
