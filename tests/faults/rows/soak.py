"""All of it at random for long, then: is anything left over?"""

from __future__ import annotations

import time

import psutil

from tests.faults.rows import (
    actors,
    api_server,
    certificates,
    clients,
    clocks,
    controller,
    etcd,
    gitops,
)
from tests.faults.rows import webhook as servers
from tests.faults.scene import Fault, Scene

CHOICE = [
    *servers.FAULTS,
    *clients.FAULTS,
    *controller.FAULTS,
    *api_server.FAULTS,
    *etcd.FAULTS,
    *clocks.FAULTS,
    *actors.FAULTS,
    *gitops.FAULTS,
    *certificates.FAULTS,
]
REST = 3.0
"""Seconds between two of them."""
GROWTH, GROWTH_SHARE = 32e6, 0.25
"""By how much a process may have grown: bytes, and a share of what it had."""
FEW = 64
"""Threads, files or connections more than before that are no leak: the API server's pool and ours
fill up to what is needed. A leak of one a pod makes thousands."""


def soak(scene: Scene) -> None:
    """Let one thing after another happen, each in its short form."""
    full = not scene.short
    before = figures(scene)
    end = time.monotonic() + scene.lasts(30 * 60, 3 * 60)
    left: list[Fault] = []
    scene.short = True
    while time.monotonic() < end:
        if not left:
            left = scene.source.sample(CHOICE, len(CHOICE))
        fault = left.pop()
        inner = Scene(scene.arena, scene.world, scene.load, scene.source, short=True)
        inner.act(fault)
        scene.arena.proxy.turn()
        scene.halted += inner.halted
        failed = [name for name, check in inner.checks.items() if not check.passed]
        for name in failed:
            scene.checks[f"{fault.name}: {name}"] = inner.checks[name]
        scene.figures[fault.name] = scene.figures.get(fault.name, 0) + 1
        scene.go_on(REST)
    if full:
        scene.check(
            "faults that never came", sum(not scene.figures.get(one.name) for one in CHOICE)
        )
    scene.short = not full
    scene.go_on(20, 10)
    grown = dict.fromkeys(("MB", "threads", "files", "connections"), 0.0)
    after = figures(scene)
    for process, (rss, *counts) in after.items():
        known_rss, *known = before.get(process, (rss, *counts))
        grown["MB"] = max(grown["MB"], (rss - known_rss * (1 + GROWTH_SHARE)) / 1e6)
        for name, now, then in zip(("threads", "files", "connections"), counts, known, strict=True):
            grown[name] = max(grown[name], now - then)
    scene.check("MB that a process has grown beyond a quarter", grown["MB"], GROWTH / 1e6)
    for name in ("threads", "files", "connections"):
        scene.check(f"{name} more than before", grown[name], FEW)


def figures(scene: Scene) -> dict[str, tuple[float, float, float, float]]:
    """Measure each process: bytes, threads, open files, connections."""
    found = {}
    for name, process in scene.arena.processes().items():
        try:
            found[name] = (
                float(process.memory_info().rss),
                float(process.num_threads()),
                float(process.num_fds()),
                float(len(process.net_connections("tcp"))),
            )
        except psutil.NoSuchProcess:  # its place has been taken by another just now
            continue
    return found


FAULTS = [
    Fault(
        "soak",
        10,
        soak,
        broken="leaks",
        outage=True,
        refuses=True,
        means="Whatever comes, in whatever order: nothing early, nothing stuck, no VM astray, and "
        "no process has grown.",
    ),
]
