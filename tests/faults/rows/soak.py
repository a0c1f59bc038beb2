"""All faults in random order for a long time, then a check for leaks."""

import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from holdfast.webhook.controller import controller as releasing
from holdfast.webhook.server import offload as serving
from holdfast.webhook.sticky import controller as recording
from tests.faults.rows import (
    actors,
    api_server,
    certificates,
    clients,
    clocks,
    controller,
    etcd,
    gitops,
    namespaces,
    neighbours,
    reinvocation,
    scale,
)
from tests.faults.rows import webhook as servers
from tests.faults.scenario import Fault, Scenario, Table
from tests.faults.testbed import CONTROLLERS

FAULTS = Table()

STEADY = [
    *api_server.FAULTS,
    *etcd.FAULTS,
    *reinvocation.FAULTS,
    *actors.FAULTS,
    *gitops.FAULTS,
    *certificates.FAULTS,
]
"""Faults that end no process of Holdfast, so that leaks accumulate."""
CHOICE = [
    *STEADY,
    *servers.FAULTS,
    *clients.FAULTS,
    *controller.FAULTS,
    *clocks.FAULTS,
    *namespaces.FAULTS,
    *neighbours.FAULTS,
]
HANDOVER = [fault for fault in controller.FAULTS if fault.name == "controller-stopped"]
"""A fault that ends no process and makes another controller lead."""
PAUSE = 3.0
"""Seconds between two faults."""
MINUTES, SHORT_MINUTES = (4.0, 3.0, 7.0), (1.0, 0.0, 0.5)
"""Minimum minutes of three parts: all faults; those that end no process; and, after each controller
has been the leader, the latter again. No process may grow during the last part."""
QUIET, SHORT_QUIET = 100.0, 10.0
"""Seconds of a measurement during load without faults, in which temporary memory is freed."""
INTERVAL = 2.0
"""Seconds between two measurements in that time; the lowest values count."""
GROWTH, SHORT_GROWTH = 16.0, 48.0
"""MB by which a process may have grown."""
FEW, SHORT_FEW = 8.0, 64.0
"""Extra threads, files or connections that do not count as a leak. In the short form, the pool of
API connections is not full yet."""
COUNTED = ("MB", "threads", "files", "connections")
Figures = tuple[float, float, float, float]


def expected_maximum(pools: int) -> Figures:
    """Return the figures that a process with this many pool threads may reach without a leak.

    A leader uses all these threads, and so does a replica with slow lookups. Each thread that is
    busy at the same time as the others opens a connection. If a connection fails, all idle ones are
    closed, and they are opened again when many pods are due within a second. Only values above
    these figures count as growth.
    """
    return 0.0, pools + 12.0, pools + 24.0, pools + 12.0


EXPECTED = {
    "controller": expected_maximum(releasing.WORKERS + recording.WORKERS),
    "replica": expected_maximum(serving.POOL_SIZE),
}
"""By the prefix of the process name."""


@FAULTS.row(
    "soak",
    minutes=20.0,
    alone=True,
    broken="leaks",
    caught_by="growth in threads",
    tested=True,
)
def soak(scenario: Scenario) -> None:
    """Run one fault after another in its short form, then check that no process has grown."""
    full = not scenario.short
    faults = [*CHOICE, *scale.FAULTS] if full else CHOICE  # the rows of scale are large
    random_minutes, warmup_minutes, measured_minutes = MINUTES if full else SHORT_MINUTES
    run_faults(scenario, faults, random_minutes)
    run_faults(scenario, STEADY, warmup_minutes)
    if full:
        # A first term as leader adds 10 MB of threads and connections, which is not a leak.
        run_faults(scenario, HANDOVER, 0.0, least=CONTROLLERS)
    figures_before = measure_minimum(scenario)
    run_faults(scenario, STEADY, measured_minutes)
    figures_after = measure_minimum(scenario)
    scenario.check("processes that ended", len(figures_before.keys() - figures_after.keys()))
    for key in sorted(figures_before.keys() & figures_after.keys()):
        for name, old, new in zip(COUNTED, figures_before[key], figures_after[key], strict=True):
            scenario.figures[f"growth in {name} of {key[0]}"] = round(new - old, 1)
    limits = dict.fromkeys(COUNTED, scenario.long_or_short(FEW, SHORT_FEW))
    limits["MB"] = scenario.long_or_short(GROWTH, SHORT_GROWTH)
    for number, name in enumerate(COUNTED):
        growths = [
            figures_after[key][number]
            - max(figures_before[key][number], EXPECTED[key[0].partition("-")[0]][number])
            for key in figures_before.keys() & figures_after.keys()
        ]
        scenario.check(f"growth in {name}", round(max([0.0, *growths]), 1), limits[name])


def run_faults(
    scenario: Scenario, choice: Sequence[Fault], minutes: float, *, least: int = 0
) -> None:
    """Run faults in random order, each of them once before any is repeated.

    Stop after `minutes`, but not before `least` faults have run.
    """
    end, count = time.monotonic() + 60 * minutes, 0
    queue: list[Fault] = []
    while time.monotonic() < end or count < least:
        count += 1
        if not queue:
            queue = scenario.rng.sample(choice, len(choice))
        fault = queue.pop()
        inner = scenario.run(fault)
        for name, check in inner.checks.items():
            if not check.passed:
                scenario.checks[f"{fault.name}: {name}"] = check
        scenario.wait(PAUSE)


def measure_minimum(scenario: Scenario) -> dict[tuple[str, int], Figures]:
    """Measure the lowest figures of each process during load without faults.

    Connections to the API server are closed first: those that a burst opened are not a leak.
    """
    scenario.testbed.proxy.cut()
    minimums: dict[tuple[str, int], Figures] = {}
    end = time.monotonic() + scenario.long_or_short(QUIET, SHORT_QUIET)
    while time.monotonic() < end:
        for name, process in scenario.testbed.processes().items():
            with suppress(psutil.NoSuchProcess):  # it has just been replaced
                key, current_figures = (name, process.pid), figures(process)
                least = map(min, current_figures, minimums.get(key, current_figures))
                minimums[key] = next(least), next(least), next(least), next(least)
        scenario.wait(INTERVAL)
    return {key: minimums[key] for key in minimums if psutil.pid_exists(key[1])}


def figures(process: psutil.Process) -> Figures:
    """Measure a process: MB, threads, open files, connections."""
    return (
        process.memory_info().rss / 1e6,
        float(process.num_threads()),
        float(process.num_fds()),
        float(len(process.net_connections("tcp"))),
    )
