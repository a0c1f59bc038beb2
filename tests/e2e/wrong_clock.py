"""Runs `holdfast` with a wall clock that is ahead by the number of seconds in a file.

All functions that read the wall clock are shifted before any of our modules is imported.
"""

from __future__ import annotations

import os
import runpy
import time

_file = os.open(os.environ["SECONDS_AHEAD"], os.O_RDONLY)  # kept open: descriptors may run out
_time, _time_ns, _clock_gettime = time.time, time.time_ns, time.clock_gettime


def _ahead() -> float:
    return float(os.pread(_file, 64, 0) or 0)


def _shifted_gettime(clock: int) -> float:
    return _clock_gettime(clock) + (_ahead() if clock == time.CLOCK_REALTIME else 0)


time.time = lambda: _time() + _ahead()
time.time_ns = lambda: _time_ns() + int(_ahead() * 1_000_000_000)
time.clock_gettime = _shifted_gettime

if __name__ == "__main__":
    runpy.run_module("holdfast.webhook", run_name="__main__", alter_sys=True)
