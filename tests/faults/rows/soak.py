"""All of it at random for long, then: is anything left over?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tests.faults.arena import CONTROLLERS
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
    reinvocation,
    scale,
)
from tests.faults.rows import webhook as servers
from tests.faults.scene import Fault, Scene
from webhook import asgi as serving
from webhook import controller as releasing
from webhook import recorder as recording

STEADY = [
    *api_server.FAULTS,
    *etcd.FAULTS,
    *reinvocation.FAULTS,
    *actors.FAULTS,
    *gitops.FAULTS,
    *certificates.FAULTS,
]
"""What no process of Holdfast ends of: one that leaks goes on growing."""
CHOICE = [
    *STEADY,
    *servers.FAULTS,
    *clients.FAULTS,
    *controller.FAULTS,
    *clocks.FAULTS,
    *namespaces.FAULTS,
]
HANDOVER = [fault for fault in controller.FAULTS if fault.name == "controller-stopped"]
"""What ends no process, and has another controller lead."""
REST = 3.0
"""Seconds between two of them."""
MINUTES, SHORT_MINUTES = (20.0, 3.0, 7.0), (2.0, 0.0, 1.0)
"""How long all of them come at least, then those that end no process, and, when each controller has
led, those again, from whose beginning to whose end no process may have grown."""
QUIET, SHORT_QUIET = 100.0, 10.0
"""Seconds of load alone before anything is counted: what is only kept for a while has gone."""
LOOK = 2.0
"""Seconds between two looks at the processes in that time, of which the least counts."""
GROWTH, SHORT_GROWTH = 16.0, 48.0
"""MB by which a process may have grown."""
FEW, SHORT_FEW = 8.0, 64.0
"""Threads, files or connections more than before that are no leak; in the short form the API
server's pool has not filled up to what is needed."""
COUNTED = ("MB", "threads", "files", "connections")
Figures = tuple[float, float, float, float]


def full(pools: int) -> Figures:
    """Give what a process may come to at any time that has so many threads in its pools.

    Whoever leads has all of them, as has a replica whose lookups took long, and a connection for
    each that was ever busy beside the others; it drops all that are idle when one fails, and has
    them again after the next second in which very many pods are due. Only what a process has
    beyond that counts as growth.
    """
    return 0.0, pools + 12.0, pools + 24.0, pools + 12.0


FULL = {
    "controller": full(releasing.WORKERS + recording.WORKERS),
    "replica": full(serving.POOL_SIZE),
}
"""By what the name of a process begins with."""


def soak(scene: Scene) -> None:
    """Let one thing after another happen, each in its short form."""
    full = not scene.short
    everything = [*CHOICE, *scale.FAULTS] if full else CHOICE  # those are large
    at_random, warming, counted = MINUTES if full else SHORT_MINUTES
    play(scene, everything, at_random, least=len(everything) if full else 0)
    play(scene, STEADY, warming)
    if full:  # whoever leads for the first time makes threads and connections: 10 MB, and no leak
        play(scene, HANDOVER, 0.0, least=CONTROLLERS)
    before = floor(scene)
    play(scene, STEADY, counted)
    after = floor(scene)
    scene.check("processes that ended meanwhile", len(before.keys() - after.keys()))
    for one in sorted(before.keys() & after.keys()):
        for name, had, has in zip(COUNTED, before[one], after[one], strict=True):
            scene.figures[f"{name} more in {one[0]}"] = round(has - had, 1)
    most = dict.fromkeys(COUNTED, scene.lasts(FEW, SHORT_FEW))
    most["MB"] = scene.lasts(GROWTH, SHORT_GROWTH)
    for number, name in enumerate(COUNTED):
        grown = [
            after[one][number] - max(before[one][number], FULL[one[0].partition("-")[0]][number])
            for one in before.keys() & after.keys()
        ]
        scene.check(f"{name} more than before", round(max([0.0, *grown]), 1), most[name])
        highest = max((each[number] for each in after.values()), default=0.0)
        scene.figures[f"{name} at the end, at most"] = round(highest, 1)


def play(scene: Scene, choice: Sequence[Fault], minutes: float, *, least: int = 0) -> None:
    """Let them come in a random order, all of them before any comes again.

    That goes on for so many minutes, and until so many have come.
    """
    end, count = time.monotonic() + 60 * minutes, 0
    left: list[Fault] = []
    while time.monotonic() < end or count < least:
        count += 1
        if not left:
            left = scene.source.sample(choice, len(choice))
        fault = left.pop()
        inner = scene.play(fault)
        for name, check in inner.checks.items():
            if not check.passed:
                scene.checks[f"{fault.name}: {name}"] = check
        scene.figures[fault.name] = scene.figures.get(fault.name, 0) + 1
        scene.go_on(REST)


def floor(scene: Scene) -> dict[tuple[str, int], Figures]:
    """Measure the least that each process needs while nothing but the load goes on.

    All begin without a connection to the API server: what a burst has left in a pool is no leak.
    """
    scene.arena.proxy.cut()
    found: dict[tuple[str, int], Figures] = {}
    end = time.monotonic() + scene.lasts(QUIET, SHORT_QUIET)
    while time.monotonic() < end:
        for name, process in scene.arena.processes().items():
            with suppress(psutil.NoSuchProcess):  # its place has been taken by another just now
                key, seen = (name, process.pid), figures(process)
                least = map(min, seen, found.get(key, seen))
                found[key] = next(least), next(least), next(least), next(least)
        scene.go_on(LOOK)
    return {key: found[key] for key in found if psutil.pid_exists(key[1])}


def figures(process: psutil.Process) -> Figures:
    """Measure a process: MB, threads, open files, connections."""
    return (
        process.memory_info().rss / 1e6,
        float(process.num_threads()),
        float(process.num_fds()),
        float(len(process.net_connections("tcp"))),
    )


FAULTS = [
    Fault(
        "soak",
        10,
        soak,
        minutes=36.0,
        alone=True,
        broken="leaks",
        caught_by="threads more than before",
        tested=True,
        means="Whatever comes, in whatever order: nothing early, nothing stuck, no VM astray, and "
        "no process has grown.",
    ),
]
