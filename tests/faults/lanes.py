"""Several lanes side by side, until all rows have been run."""

import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from tests.faults.lane import Lane, LaneError, NoClusterError
from tests.faults.report import BUILD, Run
from tests.faults.scenario import Fault, Result
from tests.faults.schedule import Schedule

Found = SimpleQueue[Result | Exception | None]
"""Results of rows, errors that ended a lane, and None for each lane that has ended."""


def results(faults: Sequence[Fault], whole: Run, lanes: int) -> Iterator[Result]:
    """Run rows in so many lanes, and give what comes of them as it comes.

    A lane that ends has failed the row that it ran, and another takes its place. Raises
    NoClusterError where none comes up.
    """
    found: Found = SimpleQueue()
    schedule = Schedule(faults, lanes)
    drivers = [Driver(number, schedule, whole, found) for number in schedule.lanes]
    for each in drivers:
        each.start()
    try:
        left = len(drivers)
        while left:
            match found.get():
                case None:
                    left -= 1
                case Result() as result:
                    yield result
                case Exception() as exc:
                    raise exc
    finally:
        for each in drivers:
            each.break_off()
        for each in drivers:
            each.join()


class Driver(threading.Thread):
    """Has one lane run rows while there are any; builds broken on purpose have a cluster each."""

    def __init__(self, number: int, schedule: Schedule, whole: Run, found: Found) -> None:
        super().__init__(name=f"lane {number}")
        self._number = number
        self._schedule = schedule
        self._whole = whole
        self._found = found
        self._lane: Lane | None = None
        self._over = False

    def run(self) -> None:
        """Put into the queue what comes of each row."""
        try:
            self._drive()
        except Exception as exc:  # noqa: BLE001 - the reader of the queue raises it
            self._found.put(exc)
        finally:
            self._close()
            self._schedule.leave(self._number)
            self._found.put(None)

    def break_off(self) -> None:
        self._over = True
        if (lane := self._lane) is not None:
            lane.break_off()

    def _drive(self) -> None:
        while not self._over and (fault := self._schedule.take(self._number)) is not None:
            began = time.time()
            try:
                result = self._opened(fault).run(fault)
            except LaneError as exc:
                if isinstance(exc, NoClusterError) and not self._whole.broken:
                    raise
                took = {"until it broke off": round(time.time() - began, 1)}
                result = Result(fault, {}, {}, str(exc), began=began, took=took)
                self._close()
            self._found.put(result)
            if self._whole.broken:
                self._close()

    def _opened(self, fault: Fault) -> Lane:
        if self._lane is None:
            log = BUILD / f"lane-{self._number}.log"
            self._lane = Lane(self._whole, log, broken=fault.broken if self._whole.broken else "")
            self._lane.open()
        return self._lane

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
