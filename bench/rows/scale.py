"""Very many held pods: the controller's resource use, and how the cost of a release grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from bench import controllers
from bench.controllers import Controller, controlling
from bench.results import Outcome
from bench.size import Size
from bench.world import CLIENTS, Object, World, held_pod, small_pod
from holdfast.webhook.model import approvals, durations
from holdfast.webhook.model.annotations import DELAY_KEYS, DOMAIN, RELEASED_ANNOTATION

HELD, DUE = "held", "due"
PACE = f"{DOMAIN}/pace"
SLOWEST = "1/24h"
PART = 5_000
"""Pods created between two progress reports."""
SETTLE_SECONDS = 30.0
"""Seconds from startup until the controller is idle. Its hourly pod scan is over by then."""


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure with few held pods, then with many."""
    few, many = size.held
    world.namespace(HELD)
    world.post(f"/api/v1/namespaces/{HELD}/pods", started())
    with controlling(world.kubeconfig) as controller:
        empty = controller.rss_mb()
    _fill(world, few, step)
    step("releases with few held pods")
    with controlling(world.kubeconfig) as controller:
        few_cost = _release_cpu(world, f"{DUE}-few", controller, size.released)
    _fill(world, many, step)
    step("startup, idle time and releases with many held pods")
    began = time.monotonic()
    with controlling(world.kubeconfig) as controller:
        startup, startup_cpu = time.monotonic() - began, controller.cpu_seconds()
        time.sleep(min(SETTLE_SECONDS, 2 * size.idle_seconds))
        settling = controller.cpu_seconds() - startup_cpu
        cpu_before, idle_start = controller.cpu_seconds(), time.monotonic()
        time.sleep(size.idle_seconds)
        idle = (controller.cpu_seconds() - cpu_before) / (time.monotonic() - idle_start) * 100
        steady = controller.rss_mb()
        many_cost = _release_cpu(world, f"{DUE}-many", controller, size.released)
        peak = controller.peak_rss_mb()
    figures = {
        "scale_rss_mb": peak,
        "scale_cold_start_s": startup,
        "scale_idle_cpu_percent": idle,
        "scale_cpu_growth": many_cost / few_cost,
    }
    details = {
        "empty_rss_mb": empty,
        "steady_rss_mb": steady,
        "cold_start_cpu_s": startup_cpu,
        "hourly_cpu_s": settling,
        "release_cpu_us": {str(few): few_cost, str(many): many_cost},
    }
    return Outcome(figures, details=details)


def _fill(world: World, total: int, step: Callable[[str], None]) -> None:
    """Create held pods of all kinds until `total` of them exist."""
    kinds = held_of_each_kind()
    while (count := world.count(HELD) - 1) < total:  # not counting the started pod
        step(f"{count:,} of {total:,} held pods")
        number = min(PART, total - count)
        world.create(HELD, kinds, max(0, number - CLIENTS), connections=min(CLIENTS, number))


def held_of_each_kind() -> list[Object]:
    """Return a held pod for each plugin that holds pods. None is released during the run."""
    day = (datetime.now(UTC) + timedelta(days=3)).strftime("%a")
    kinds = {
        DELAY_KEYS[0]: "150h",
        f"{DOMAIN}/window": f"{day} 00:00-23:59",
        PACE: SLOWEST,
        f"{DOMAIN}/after": "job/never",
        approvals.KEY: "measured",
    }
    return [_held(name, value) for name, value in kinds.items()]


def _held(name: str, value: str) -> Object:
    pod = held_pod({name: value})
    pod["spec"]["schedulingGates"] = [{"name": name}]
    pod["metadata"]["labels"] = {PACE: "slowest"} if name == PACE else {}
    return pod


def started() -> Object:
    """Return a pod that the pace has just released, so the pace is used up for a day."""
    now = durations.canonical_instant(int(time.time() * 1_000))
    pod = small_pod({PACE: SLOWEST, RELEASED_ANNOTATION: now})
    pod["metadata"]["labels"] = {PACE: "slowest"}
    return pod


def _release_cpu(world: World, name: str, controller: Controller, number: int) -> float:
    """Return the controller's CPU per release in microseconds, including all related work."""
    world.namespace(name)
    held = controller.metric(controllers.HELD)
    due = world.hold(name, number, lambda: controller.metric(controllers.HELD))
    time.sleep(max(0.0, due - 0.5 - time.time()))
    cpu_before = controller.cpu_seconds()
    world.until(lambda: controller.metric(controllers.HELD) == held, step=controllers.LOOK_SECONDS)
    cpu = controller.cpu_seconds() - cpu_before
    world.clear(name)
    return cpu / number * 1e6
