"""Several lanes in parallel, until all rows have run."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from tests.faults.lane import Lane, LaneError, NoClusterError
from tests.faults.report import BUILD, Run
from tests.faults.scenario import Fault, Result
from tests.faults.schedule import Schedule

Outcomes = SimpleQueue[Result | Exception | None]
"""Results of rows, errors that ended a lane, and None for each lane that has ended."""


def results(faults: Sequence[Fault], run: Run, lanes: int) -> Iterator[Result]:
    """Run rows in this many lanes, and yield each result as soon as it is known.

    If a lane ends unexpectedly, its row has failed, and a new lane replaces it. Raises
    NoClusterError if a cluster does not start.
    """
    outcomes: Outcomes = SimpleQueue()
    schedule = Schedule(faults, lanes)
    drivers = [Driver(number, schedule, run, outcomes) for number in schedule.lanes]
    for driver in drivers:
        driver.start()
    try:
        active_drivers = len(drivers)
        while active_drivers:
            match outcomes.get():
                case None:
                    active_drivers -= 1
                case Result() as result:
                    yield result
                case Exception() as exc:
                    raise exc
    finally:
        for driver in drivers:
            driver.abort()
        for driver in drivers:
            driver.join()


class Driver(threading.Thread):
    """Runs rows in one lane while there are any; each row with a break gets its own cluster."""

    def __init__(self, number: int, schedule: Schedule, run: Run, outcomes: Outcomes) -> None:
        super().__init__(name=f"lane {number}")
        self._number = number
        self._schedule = schedule
        self._run = run
        self._outcomes = outcomes
        self._lane: Lane | None = None
        self._aborted = False

    def run(self) -> None:
        """Put the result of each row into the queue."""
        try:
            self._drive()
        except Exception as exc:  # noqa: BLE001 - the reader of the queue raises it
            self._outcomes.put(exc)
        finally:
            self._close()
            self._schedule.leave(self._number)
            self._outcomes.put(None)

    def abort(self) -> None:
        self._aborted = True
        if (lane := self._lane) is not None:
            lane.abort()

    def _drive(self) -> None:
        while not self._aborted and (fault := self._schedule.take(self._number)) is not None:
            began = time.time()
            try:
                result = self._open_lane(fault).run(fault)
            except LaneError as exc:
                if isinstance(exc, NoClusterError) and not self._run.broken:
                    raise
                seconds = time.time() - began
                result = Result(fault, {}, {}, str(exc), began=began, seconds=seconds)
                self._close()
            self._outcomes.put(result)
            if self._run.broken:
                self._close()

    def _open_lane(self, fault: Fault) -> Lane:
        if self._lane is None:
            log = BUILD / f"lane-{self._number}.log"
            self._lane = Lane(self._run, log, broken=fault.broken if self._run.broken else "")
            self._lane.wait_ready()
        return self._lane

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
