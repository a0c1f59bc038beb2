"""The order of rows if several clusters run rows at the same time."""

import threading
from collections.abc import Iterable

from tests.faults.scenario import Fault


class Schedule:
    """The remaining rows, and the lanes that take them: clusters that run in parallel.

    The longest rows start first, so that all lanes end at about the same time. Rows that need the
    machine for themselves are last: the last active lane runs them, and among them those that fill
    the cluster at the end. This class is thread-safe.
    """

    def __init__(self, faults: Iterable[Fault], lanes: int) -> None:
        longest_first = sorted(faults, key=lambda fault: -fault.minutes)
        self._shared = [fault for fault in longest_first if not fault.alone]
        self._alone = [fault for fault in reversed(longest_first) if fault.alone]
        self._alone.sort(key=lambda fault: fault.fills)
        lane_count = max(1, min(lanes, len(self._shared)))
        self.lanes = range(lane_count if longest_first else 0)
        """Lane numbers: no more lanes than shared rows."""
        self._taking, self._active = set(self.lanes), set(self.lanes)
        self._changed = threading.Condition()

    def take(self, lane: int) -> Fault | None:
        """Return the next row of a lane; None if there is none left for it.

        A row that runs alone waits until all other lanes have left.
        """
        with self._changed:
            if self._shared:
                return self._shared.pop(0)
            if self._taking == {lane} and self._alone:
                self._changed.wait_for(lambda: self._active == {lane})
                return self._alone.pop(0)
            self._taking.discard(lane)
            return None

    def leave(self, lane: int) -> None:
        with self._changed:
            self._taking.discard(lane)
            self._active.discard(lane)
            self._changed.notify_all()
