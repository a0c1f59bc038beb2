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


def measure(there: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure with few held pods, then with many."""
    few, many = size.held
    there.namespace(HELD)
    there.post(f"/api/v1/namespaces/{HELD}/pods", started())
    with controlling(there.kubeconfig) as controller:
        empty = controller.rss_mb()
    _fill(there, few, step)
    step("releases with few held pods")
    with controlling(there.kubeconfig) as controller:
        among_few = _release_cpu(there, f"{DUE}-few", controller, size.released)
    _fill(there, many, step)
    step("startup, idle time and releases with many held pods")
    began = time.monotonic()
    with controlling(there.kubeconfig) as controller:
        start, known = time.monotonic() - began, controller.cpu_seconds()
        time.sleep(min(SETTLE_SECONDS, 2 * size.idle_seconds))
        settling = controller.cpu_seconds() - known
        before, looked = controller.cpu_seconds(), time.monotonic()
        time.sleep(size.idle_seconds)
        idle = (controller.cpu_seconds() - before) / (time.monotonic() - looked) * 100
        steady = controller.rss_mb()
        among_many = _release_cpu(there, f"{DUE}-many", controller, size.released)
        peak = controller.peak_rss_mb()
    figures = {
        "scale_rss_mb": peak,
        "scale_cold_start_s": start,
        "scale_idle_cpu_percent": idle,
        "scale_cpu_growth": among_many / among_few,
    }
    details = {
        "empty_rss_mb": empty,
        "steady_rss_mb": steady,
        "cold_start_cpu_s": known,
        "hourly_cpu_s": settling,
        "release_cpu_us": {str(few): among_few, str(many): among_many},
    }
    return Outcome(figures, details=details)


def _fill(there: World, wanted: int, step: Callable[[str], None]) -> None:
    """Create held pods of all kinds until `wanted` of them exist."""
    kinds = held_of_each_kind()
    while (there_are := there.count(HELD) - 1) < wanted:  # not counting the started pod
        step(f"{there_are:,} of {wanted:,} held pods")
        number = min(PART, wanted - there_are)
        there.create(HELD, kinds, max(0, number - CLIENTS), connections=min(CLIENTS, number))


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
    made = held_pod({name: value})
    made["spec"]["schedulingGates"] = [{"name": name}]
    made["metadata"]["labels"] = {PACE: "slowest"} if name == PACE else {}
    return made


def started() -> Object:
    """Return a pod that the pace has just released, so the pace is used up for a day."""
    now = durations.canonical_instant(int(time.time() * 1_000))
    made = small_pod({PACE: SLOWEST, RELEASED_ANNOTATION: now})
    made["metadata"]["labels"] = {PACE: "slowest"}
    return made


def _release_cpu(there: World, name: str, controller: Controller, number: int) -> float:
    """Return the controller's CPU per release in microseconds, including all related work."""
    there.namespace(name)
    held = controller.metric(controllers.HELD)
    due = there.hold(name, number, lambda: controller.metric(controllers.HELD))
    time.sleep(max(0.0, due - 0.5 - time.time()))
    before = controller.cpu_seconds()
    there.until(lambda: controller.metric(controllers.HELD) == held, step=controllers.LOOK_SECONDS)
    used = controller.cpu_seconds() - before
    there.clear(name)
    return used / number * 1e6
