"""Rows of the faults are dealt out to clusters that run beside each other."""

from __future__ import annotations

import threading
from dataclasses import replace

from tests.faults.scene import Fault
from tests.faults.schedule import Schedule
from tests.faults.table import FAULTS

LONG, MIDDLE, SHORT, QUIET, FULL = (
    replace(FAULTS[0], name=name, minutes=minutes, alone=alone, fills=fills)
    for name, minutes, alone, fills in (
        ("long", 15.0, False, False),
        ("middle", 5.0, False, False),
        ("short", 1.0, False, False),
        ("quiet", 30.0, True, False),
        ("full", 4.0, True, True),
    )
)


def test_what_takes_longest_comes_first() -> None:
    schedule = Schedule([SHORT, LONG, MIDDLE], lanes=2)
    assert [schedule.take(lane) for lane in (0, 1, 1)] == [LONG, MIDDLE, SHORT]
    assert [schedule.take(lane) for lane in (1, 0)] == [None, None]


def test_a_single_lane_has_all_rows_those_that_fill_its_cluster_last() -> None:
    schedule = Schedule([FULL, QUIET, SHORT, LONG], lanes=1)
    assert [schedule.take(0) for _ in range(5)] == [LONG, SHORT, QUIET, FULL, None]


def test_what_runs_alone_waits_until_the_other_lane_has_left() -> None:
    schedule, taken = Schedule([QUIET, SHORT, LONG], lanes=2), list[Fault | None]()
    assert [schedule.take(lane) for lane in (0, 1, 1)] == [LONG, SHORT, None]
    waiting = threading.Thread(target=lambda: taken.append(schedule.take(0)))
    waiting.start()
    waiting.join(0.05)
    assert not taken
    schedule.leave(1)
    waiting.join(10)
    assert taken == [QUIET]
    assert schedule.take(0) is None


def test_a_lane_that_broke_off_holds_up_no_other() -> None:
    schedule = Schedule([QUIET, SHORT, LONG], lanes=2)
    assert schedule.take(0) == LONG
    schedule.leave(0)
    assert [schedule.take(1) for _ in range(3)] == [SHORT, QUIET, None]


def test_there_are_no_more_lanes_than_rows_for_them() -> None:
    assert list(Schedule([LONG, QUIET], lanes=2).lanes) == [0]
    assert list(Schedule([QUIET], lanes=2).lanes) == [0]
    assert list(Schedule([], lanes=2).lanes) == []


def test_rows_that_fill_a_cluster_have_it_alone() -> None:
    assert all(fault.alone for fault in FAULTS if fault.fills)
