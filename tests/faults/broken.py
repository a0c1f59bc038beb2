"""Runs `holdfast` with one thing broken on purpose, to prove that a row can fail.

HOLDFAST_BROKEN names the break; the wall clock is shifted as in `tests.e2e.wrong_clock`. The
product itself is unchanged: functions are replaced in this process before it starts.
"""

from __future__ import annotations

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
    function.__name__.replace("_", "-"): function
    for function in (
        controllers.early,
        controllers.wall_clock,
        controllers.gives_up,
        controllers.hurries,
        controllers.forgets_to_list,
        controllers.trusts_silence,
        controllers.dies_of_gone,
        controllers.writes_blindly,
        controllers.goes_by_names,
        controllers.always_leads,
        controllers.leaves_the_lease,
        controllers.dies_of_errors,
        controllers.slow_hand,
        controllers.one_lane,
        fairness.largest_crowd_first,
        fairness.goes_by_labels,
        fairness.asks_everybody,
        controllers.leaks,
        controllers.never_repairs,
        controllers.never_forgets,
        controllers.forgets_who_starts,
        controllers.dies_of_values,
        controllers.forgets_freezes,
        servers.lets_through,
        servers.fails_open,
        servers.serves_too_soon,
        servers.one_at_a_time,
        servers.dies_of_a_full_disk,
        servers.dies_without_descriptors,
        servers.adds_again,
        servers.guesses,
        servers.waits_for_ever,
        servers.reads_on,
        servers.leaves_the_dead,
    )
}

if __name__ == "__main__":
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        BREAKS[chosen]()
    if slow := os.environ.get(SLOW, ""):
        servers.slow_down(Path(slow))
    runpy.run_module("holdfast.webhook", run_name="__main__", alter_sys=True)
