"""Runs `holdfast` with one thing broken on purpose, to prove that a row can fail.

HOLDFAST_BROKEN names the break; the wall clock is shifted as in `tests.e2e.wrong_clock`. The
product itself is unchanged: functions are replaced in this process before it starts.
"""

from __future__ import annotations

import inspect
import os
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

if os.environ.get("SECONDS_AHEAD"):
    import tests.e2e.wrong_clock  # noqa: F401 - shifts the clock for later imports

from tests.faults.breaks import controllers, fairness, servers

VARIABLE = "HOLDFAST_BROKEN"
SLOW = "HOLDFAST_SLOW"
"""Names a file with the seconds by which each request is delayed."""
BREAKS: Mapping[str, Callable[[], None]] = {
    name.replace("_", "-"): function
    for module in (controllers, fairness, servers)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not inspect.signature(function).parameters
}
"""Every function without parameters in these modules."""

if __name__ == "__main__":
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        BREAKS[chosen]()
    if slow := os.environ.get(SLOW, ""):
        servers.slow_down(Path(slow))
    runpy.run_module("holdfast.webhook", run_name="__main__", alter_sys=True)
