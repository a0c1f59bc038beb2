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


def measure(there: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare the release rates of Holdfast and client-go, in alternating rounds."""
    rounds: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
    for turn in range(size.rounds):
        sides = [(OURS, _ours), (PEER, _peer)]
        for name, release in sides if turn % 2 else reversed(sides):
            step(f"round {turn + 1} of {size.rounds}: {name}")
            rounds[name].append(_turn(there, f"{name}-{turn}", size, release))
    rates = {name: [one["per_second"] for one in found] for name, found in rounds.items()}
    pair = rates[OURS], rates[PEER]
    key = "burst_rate_vs_client_go"
    details: dict[str, Any] = {"rounds": rounds}
    details["medians"] = {name: statistics.median(rates[name]) for name in rates}
    interval = stats.interval(stats.median_ratio, *pair)
    cpu = statistics.median(one["cpu_us"] for one in rounds[OURS])
    figures = {key: stats.median_ratio(*pair), "burst_cpu_us_per_release": cpu}
    return Outcome(figures, {key: interval}, details)


def _turn(
    there: World, name: str, size: Size, release: Callable[[World, str, int], float]
) -> dict[str, float]:
    """Release a namespace of pods, and return the rate by the API server's audit log."""
    there.namespace(name)
    cpu_us = release(there, name, size.burst)
    found = audit.releases(there.plane.audit_log, name)
    there.clear(name)
    time.sleep(QUIET_SECONDS)
    span = max(one.answered for one in found) - min(one.received for one in found)
    return {"per_second": len(found) / span, "cpu_us": cpu_us, "released": len(found)}


def _ours(there: World, name: str, number: int) -> float:
    """Return the controller's CPU per release in microseconds, for pods due together."""
    with controlling(there.kubeconfig) as controller:
        time.sleep(QUIET_SECONDS)
        others = controller.metric(HELD)
        due = there.hold(name, number, lambda: controller.metric(HELD))
        time.sleep(max(0.0, due - 0.5 - time.time()))
        before = controller.cpu_seconds()
        there.until(lambda: controller.metric(HELD) == others, step=LOOK_SECONDS)
        return (controller.cpu_seconds() - before) / number * 1e6


def _peer(there: World, name: str, number: int) -> float:
    """Return the client-go program's CPU per release, in microseconds."""
    there.create(name, [held_pod(FAR)], number - CLIENTS)
    time.sleep(QUIET_SECONDS)
    at = f"-at={int((time.time() + LIST_SECONDS) * 1e3)}"
    command = [str(build.binary(build.CLIENT_GO)), f"-kubeconfig={there.kubeconfig}", at]
    before = _children_cpu()
    subprocess.run([*command, f"-namespace={name}"], check=True, timeout=PATIENCE)
    return (_children_cpu() - before) / number * 1e6


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
