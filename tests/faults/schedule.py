"""Which row comes next, where several clusters take rows at the same time."""

import threading
from collections.abc import Iterable

from tests.faults.scenario import Fault


class Schedule:
    """The rows that are left, and the lanes that take them: clusters that run side by side.

    The longest rows come first, so that all lanes end at about the same time. Rows that need
    the machine for themselves come at last: the lane that is still there when all others have left
    has them, those that fill its cluster after the others. Safe for several threads.
    """

    def __init__(self, faults: Iterable[Fault], lanes: int) -> None:
        left = sorted(faults, key=lambda fault: -fault.minutes)
        self._shared = [fault for fault in left if not fault.alone]
        self._alone = [fault for fault in reversed(left) if fault.alone]
        self._alone.sort(key=lambda fault: fault.fills)
        needed = max(1, min(lanes, len(self._shared)))
        self.lanes = range(needed if left else 0)
        """Their numbers: no more than there are rows for."""
        self._taking, self._there = set(self.lanes), set(self.lanes)
        self._changed = threading.Condition()

    def take(self, lane: int) -> Fault | None:
        """Give a lane its next row; none where it is to leave.

        A row that runs alone waits until all other lanes have left.
        """
        with self._changed:
            if self._shared:
                return self._shared.pop(0)
            if self._taking == {lane} and self._alone:
                self._changed.wait_for(lambda: self._there == {lane})
                return self._alone.pop(0)
            self._taking.discard(lane)
            return None

    def leave(self, lane: int) -> None:
        with self._changed:
            self._taking.discard(lane)
            self._there.discard(lane)
            self._changed.notify_all()
