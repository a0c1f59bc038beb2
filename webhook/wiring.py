"""Putting a process together: its pipeline, its connection to a cluster, its controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webhook import config, plugins
from webhook.framework import Handle
from webhook.lookup import ClusterLookup
from webhook.metrics import ControllerMetrics
from webhook.pipeline import Pipeline
from webhook.runner import Observe

if TYPE_CHECKING:
    from webhook.cluster import Cluster
    from webhook.controller import Controller


def pipeline(path: Path | None, observe: Observe, handle: Handle | None = None) -> Pipeline:
    """Make the pipeline of a configuration file, or of the defaults. Raises ConfigurationError."""
    return config.build_pipeline(
        config.load(path),
        plugins.registry(),
        source=str(path or "the default configuration"),
        timer=time.perf_counter,
        observe=observe,
        handle=handle,
    )


def connect(
    kubeconfig: Path | None,
    context: str | None,
    on_answer: Callable[[Any], None] | None = None,
) -> Cluster:
    """Connect to a cluster. Raises StartError."""
    from webhook.cluster import Cluster  # noqa: PLC0415 - the kubernetes client is slow to import

    return Cluster.connect(kubeconfig, context, on_answer=on_answer)


def controller(
    kubeconfig: Path | None,
    context: str | None,
    config_path: Path | None,
    metrics: ControllerMetrics,
) -> tuple[Cluster, Pipeline, Controller]:
    """Make a controller, with the pipeline that decides and the connection that it works by."""
    from webhook.clock import ServerClock  # noqa: PLC0415
    from webhook.cluster import boot_time  # noqa: PLC0415
    from webhook.controller import Controller  # noqa: PLC0415
    from webhook.events import Recorder  # noqa: PLC0415

    handle = Handle()
    decider = pipeline(config_path, unobserved, handle)
    clock = ServerClock()
    cluster = connect(
        kubeconfig,
        context,
        lambda timing: clock.observe(sent=timing.sent, received=timing.received, date=timing.date),
    )

    def server_ms() -> int:
        return int((clock.surely_passed(boot_time()) or time.time()) * 1_000)

    recorder = Recorder(cluster, now_ms=server_ms, on_dropped=metrics.events_dropped.inc)
    loop = Controller(cluster, decider, clock, metrics, told=recorder)
    handle.connect(lookup=ClusterLookup(lambda: cluster), held=loop, tell=loop.tell)
    return cluster, decider, loop


def unobserved(
    *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
) -> None:
    """Take a measurement that nobody reads."""
