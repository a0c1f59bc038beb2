"""A burst: the release rate when all pods are due in the same second."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from bench import audit, stats
from bench.controllers import HELD, LOOK_SECONDS, controlling
from bench.peers import build
from bench.results import Outcome
from bench.size import Size
from bench.world import CLIENTS, PATIENCE, World, held_pod
from holdfast.webhook.model.annotations import DELAY_KEYS

OURS, PEER = "holdfast", "client-go"
FAR = {DELAY_KEYS[0]: "24h"}
LIST_SECONDS = 5.0
"""Seconds for the peer to list its pods before the burst."""
QUIET_SECONDS = 2.0
"""Seconds until the cluster is idle after a start or a deletion."""


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare the release rates of Holdfast and client-go, in alternating rounds."""
    rounds: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
    for turn in range(size.rounds):
        sides = [(OURS, _ours), (PEER, _peer)]
        for name, release in sides if turn % 2 else reversed(sides):
            step(f"round {turn + 1} of {size.rounds}: {name}")
            rounds[name].append(_turn(world, f"{name}-{turn}", size, release))
    rates = {name: [sample["per_second"] for sample in samples] for name, samples in rounds.items()}
    pair = rates[OURS], rates[PEER]
    key = "burst_rate_vs_client_go"
    details: dict[str, Any] = {"rounds": rounds}
    details["medians"] = {name: statistics.median(rates[name]) for name in rates}
    interval = stats.interval(stats.median_ratio, *pair)
    cpu = statistics.median(sample["cpu_us"] for sample in rounds[OURS])
    figures = {key: stats.median_ratio(*pair), "burst_cpu_us_per_release": cpu}
    return Outcome(figures, {key: interval}, details)


def _turn(
    world: World, name: str, size: Size, release: Callable[[World, str, int], float]
) -> dict[str, float]:
    """Release a namespace of pods, and return the rate by the API server's audit log."""
    world.namespace(name)
    cpu_us = release(world, name, size.burst)
    events = audit.releases(world.plane.audit_log, name)
    world.clear(name)
    time.sleep(QUIET_SECONDS)
    span = max(event.answered for event in events) - min(event.received for event in events)
    return {"per_second": len(events) / span, "cpu_us": cpu_us, "released": len(events)}


def _ours(world: World, name: str, number: int) -> float:
    """Return the controller's CPU per release in microseconds, for pods due together."""
    with controlling(world.kubeconfig) as controller:
        time.sleep(QUIET_SECONDS)
        held = controller.metric(HELD)
        due = world.hold(name, number, lambda: controller.metric(HELD))
        time.sleep(max(0.0, due - 0.5 - time.time()))
        cpu_before = controller.cpu_seconds()
        world.until(lambda: controller.metric(HELD) == held, step=LOOK_SECONDS)
        return (controller.cpu_seconds() - cpu_before) / number * 1e6


def _peer(world: World, name: str, number: int) -> float:
    """Return the client-go program's CPU per release, in microseconds."""
    world.create(name, [held_pod(FAR)], number - CLIENTS)
    time.sleep(QUIET_SECONDS)
    flag = f"-at={int((time.time() + LIST_SECONDS) * 1e3)}"
    command = [str(build.binary(build.CLIENT_GO)), f"-kubeconfig={world.kubeconfig}", flag]
    cpu_before = _children_cpu()
    subprocess.run([*command, f"-namespace={name}"], check=True, timeout=PATIENCE)
    return (_children_cpu() - cpu_before) / number * 1e6


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
