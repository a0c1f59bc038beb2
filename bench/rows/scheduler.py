"""The delay scheduler plugin, measured once: how late kube-scheduler itself binds a pod."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import yaml

from bench import audit, stats
from bench.peers import build
from bench.results import Outcome
from bench.size import Size
from bench.world import World, small_pod

NAME, DELAY_SECONDS = "delay-scheduler", 15
LONGEST_SECONDS = 400.0
"""Timeout in seconds. kube-scheduler retries every pending pod after five minutes."""


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Create pods with `delay: "15"`, and measure when they are bound."""
    world.namespace(NAME)
    config = world.certificate.folder / "scheduler.yaml"
    config.write_text(yaml.safe_dump(_configuration(world)))
    command = [str(build.binary(build.SCHEDULER)), f"--config={config}", "--secure-port=0"]
    log = (world.plane.logs / f"{NAME}.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            delays = _late(world, size, step)
        finally:
            process.terminate()
    return Outcome(
        {"scheduler_plugin_lateness_s_p50": stats.percentile(delays, 0.5)},
        details={"late_s": delays},
    )


def _late(world: World, size: Size, step: Callable[[str], None]) -> list[float]:
    """Return how many seconds after its due time each pod was bound."""
    template = small_pod({"delay": str(DELAY_SECONDS)})
    template["spec"]["schedulerName"] = NAME
    path = f"/api/v1/namespaces/{NAME}/pods"
    created = {}
    for _ in range(size.scheduled):
        pod = world.post(path, template)
        created[pod["metadata"]["name"]] = time.time()
    step("waiting for kube-scheduler with the delay plugin")
    log = world.plane.audit_log
    world.until(lambda: len(audit.bindings(log, NAME)) >= size.scheduled, LONGEST_SECONDS, step=1.0)
    return [
        event.answered - created[event.object_ref.name] - DELAY_SECONDS
        for event in audit.bindings(log, NAME)
    ]


def _configuration(world: World) -> dict[str, object]:
    plugins = {"preFilter": {"enabled": [{"name": "Delay"}]}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(world.kubeconfig)},
        "profiles": [{"schedulerName": NAME, "plugins": plugins}],
    }
