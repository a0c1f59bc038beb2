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


def measure(there: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Create pods with `delay: "15"`, and measure when they are bound."""
    there.namespace(NAME)
    config = there.certificate.folder / "scheduler.yaml"
    config.write_text(yaml.safe_dump(_configuration(there)))
    command = [str(build.binary(build.SCHEDULER)), f"--config={config}", "--secure-port=0"]
    log = (there.plane.logs / f"{NAME}.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            late = _late(there, size, step)
        finally:
            process.terminate()
    return Outcome(
        {"scheduler_plugin_lateness_s_p50": stats.percentile(late, 0.5)}, details={"late_s": late}
    )


def _late(there: World, size: Size, step: Callable[[str], None]) -> list[float]:
    """Return how many seconds after its due time each pod was bound."""
    pod = small_pod({"delay": str(DELAY_SECONDS)})
    pod["spec"]["schedulerName"] = NAME
    path = f"/api/v1/namespaces/{NAME}/pods"
    created = {}
    for _ in range(size.scheduled):
        made = there.post(path, pod)
        created[made["metadata"]["name"]] = time.time()
    step("waiting for kube-scheduler with the delay plugin")
    log = there.plane.audit_log
    there.until(lambda: len(audit.bindings(log, NAME)) >= size.scheduled, LONGEST_SECONDS, step=1.0)
    return [
        one.answered - created[one.object_ref.name] - DELAY_SECONDS
        for one in audit.bindings(log, NAME)
    ]


def _configuration(there: World) -> dict[str, object]:
    plugins = {"preFilter": {"enabled": [{"name": "Delay"}]}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(there.kubeconfig)},
        "profiles": [{"schedulerName": NAME, "plugins": plugins}],
    }
