"""All of it at random for long, then: is anything left over?"""

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

FAULTS = Table(10)

STEADY = [
    *api_server.FAULTS,
    *etcd.FAULTS,
    *reinvocation.FAULTS,
    *actors.FAULTS,
    *gitops.FAULTS,
    *certificates.FAULTS,
]
"""Faults that end no process of Holdfast, so that a leak goes on growing."""
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
REST = 3.0
"""Seconds between two faults."""
MINUTES, SHORT_MINUTES = (4.0, 3.0, 7.0), (1.0, 0.0, 0.5)
"""The least duration of three parts: all faults at random; those that end no process; and, after
each controller has led, the latter again. No process may grow from the beginning to the end of the
last part."""
QUIET, SHORT_QUIET = 100.0, 10.0
"""Seconds of load alone before anything is counted: what is only kept for a while has gone."""
LOOK = 2.0
"""Seconds between two looks at the processes in that time, of which the least counts."""
GROWTH, SHORT_GROWTH = 16.0, 48.0
"""MB by which a process may have grown."""
FEW, SHORT_FEW = 8.0, 64.0
"""Extra threads, files or connections that do not count as a leak; in the short form the pool of
the API server is not full yet."""
COUNTED = ("MB", "threads", "files", "connections")
Figures = tuple[float, float, float, float]


def at_most(pools: int) -> Figures:
    """Return the figures that a process with so many threads in its pools may reach at any time.

    The leader uses all these threads, and so does a replica whose lookups took long. Each thread
    that was busy alongside the others has a connection. When one connection fails, all idle ones
    are closed; they are opened again as soon as very many pods are due within a second. Only what
    exceeds these figures counts as growth.
    """
    return 0.0, pools + 12.0, pools + 24.0, pools + 12.0


AT_MOST = {
    "controller": at_most(releasing.WORKERS + recording.WORKERS),
    "replica": at_most(serving.POOL_SIZE),
}
"""By the prefix of the process name."""


@FAULTS.row(
    "soak",
    minutes=20.0,
    alone=True,
    broken="leaks",
    caught_by="threads more than before",
    tested=True,
)
def soak(scenario: Scenario) -> None:
    """Run one fault after another in its short form, then check that nothing is left over."""
    full = not scenario.short
    everything = [*CHOICE, *scale.FAULTS] if full else CHOICE  # those are large
    at_random, warming, counted = MINUTES if full else SHORT_MINUTES
    play(scenario, everything, at_random)
    play(scenario, STEADY, warming)
    if full:
        # The first term as leader creates threads and connections of 10 MB, which is not a leak.
        play(scenario, HANDOVER, 0.0, least=CONTROLLERS)
    before = floor(scenario)
    play(scenario, STEADY, counted)
    after = floor(scenario)
    scenario.check("processes that ended meanwhile", len(before.keys() - after.keys()))
    for one in sorted(before.keys() & after.keys()):
        for name, had, has in zip(COUNTED, before[one], after[one], strict=True):
            scenario.figures[f"{name} more in {one[0]}"] = round(has - had, 1)
    most = dict.fromkeys(COUNTED, scenario.lasts(FEW, SHORT_FEW))
    most["MB"] = scenario.lasts(GROWTH, SHORT_GROWTH)
    for number, name in enumerate(COUNTED):
        grown = [
            after[one][number] - max(before[one][number], AT_MOST[one[0].partition("-")[0]][number])
            for one in before.keys() & after.keys()
        ]
        scenario.check(f"{name} more than before", round(max([0.0, *grown]), 1), most[name])
        highest = max((each[number] for each in after.values()), default=0.0)
        scenario.figures[f"{name} at the end, at most"] = round(highest, 1)


def play(scenario: Scenario, choice: Sequence[Fault], minutes: float, *, least: int = 0) -> None:
    """Run faults in a random order, each of them once before any is repeated.

    This goes on for `minutes` at least, and until `least` faults have been run.
    """
    end, count = time.monotonic() + 60 * minutes, 0
    left: list[Fault] = []
    while time.monotonic() < end or count < least:
        count += 1
        if not left:
            left = scenario.source.sample(choice, len(choice))
        fault = left.pop()
        inner = scenario.run(fault)
        for name, check in inner.checks.items():
            if not check.passed:
                scenario.checks[f"{fault.name}: {name}"] = check
        scenario.figures[fault.name] = scenario.figures.get(fault.name, 0) + 1
        scenario.go_on(REST)


def floor(scenario: Scenario) -> dict[tuple[str, int], Figures]:
    """Measure the least that each process needs while nothing but the load goes on.

    All start without connections to the API server, since pooled ones of a burst are not a leak.
    """
    scenario.testbed.proxy.cut()
    found: dict[tuple[str, int], Figures] = {}
    end = time.monotonic() + scenario.lasts(QUIET, SHORT_QUIET)
    while time.monotonic() < end:
        for name, process in scenario.testbed.processes().items():
            with suppress(psutil.NoSuchProcess):  # its place has been taken by another just now
                key, seen = (name, process.pid), figures(process)
                least = map(min, seen, found.get(key, seen))
                found[key] = next(least), next(least), next(least), next(least)
        scenario.go_on(LOOK)
    return {key: found[key] for key in found if psutil.pid_exists(key[1])}


def figures(process: psutil.Process) -> Figures:
    """Measure a process: MB, threads, open files, connections."""
    return (
        process.memory_info().rss / 1e6,
        float(process.num_threads()),
        float(process.num_fds()),
        float(len(process.net_connections("tcp"))),
    )
