"""The controller's memory and CPU with more held pods than a real API server can store here."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from bench.controllers import HELD, LOOK_SECONDS, controlling
from bench.recorded import RecordedApi, serving
from bench.results import Outcome
from bench.rows import scale
from bench.size import Size
from bench.world import Object, World, held_pod
from holdfast.webhook.model.annotations import NOT_BEFORE

NAMESPACE = "recorded"
LEAD_SECONDS = 10.0
"""Seconds from the first new pod to the due time of all new pods."""


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare few pods with many, generated from pods that a real API server has stored."""
    world.namespace(NAMESPACE)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    kinds = [world.post(path, pod) for pod in scale.held_of_each_kind()]
    started = world.post(path, scale.started())
    due = world.post(path, held_pod({NOT_BEFORE: _instant(time.time())}))
    world.clear(NAMESPACE)
    cpu, peak = {}, 0.0
    for number in size.streamed:
        step(f"{number:,} pods")
        cpu[number], peak = _release(world, RecordedApi(kinds, number, started), due, size.released)
    few, many = size.streamed
    figures = {"scale_500k_rss_mb": peak, "scale_500k_growth": cpu[many] / cpu[few]}
    return Outcome(figures, details={"release_cpu_us": {str(key): cpu[key] for key in cpu}})


def _release(world: World, api: RecordedApi, due: Object, number: int) -> tuple[float, float]:
    """Return the controller's CPU per release in microseconds, and its peak memory in MiB."""
    with (
        serving(api, world.certificate.folder) as kubeconfig,
        controlling(kubeconfig) as controller,
    ):
        due_time = time.time() + LEAD_SECONDS
        annotations = {**due["metadata"]["annotations"], NOT_BEFORE: _instant(due_time)}
        pod = {**due, "metadata": {**due["metadata"], "annotations": annotations}}
        api.add(pod, [f"due-{index}" for index in range(number)])
        world.until(lambda: controller.metric(HELD) == api.number + number)
        time.sleep(max(0.0, due_time - 0.5 - time.time()))
        cpu_before = controller.cpu_seconds()
        world.until(lambda: controller.metric(HELD) == api.number, step=LOOK_SECONDS)
        return (controller.cpu_seconds() - cpu_before) / number * 1e6, controller.peak_rss_mb()


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
