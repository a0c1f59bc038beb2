"""Pods that wait for others: utilisation of a pace's slots, and release delay after Jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bench import audit, stats
from bench.controllers import HELD, controlling
from bench.results import Outcome
from bench.size import Size
from bench.world import Object, World, held_pod
from holdfast.webhook.model.annotations import DOMAIN

PACE, AFTER = f"{DOMAIN}/pace", f"{DOMAIN}/after"
SLOTS = 4
SLOWEST_SECONDS = 5.0
"""Longest time until a pod is ready."""
STEP_SECONDS = 0.2
"""Seconds between the creation of two Jobs."""


def pace(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure the share of time that starting pods occupy a pace's slots."""
    name = world.namespace("paced")
    with controlling(world.kubeconfig) as controller:
        step(f"{size.paced} pods, {SLOTS} at a time")
        world.create(name, [_paced()], size.paced, connections=1)
        number = world.count(name)  # a client creates one more to warm up
        limit = number * SLOWEST_SECONDS
        world.until(lambda: controller.metric(HELD) == 0, limit, step=1.0)
        log = world.plane.audit_log
        world.until(
            lambda: len(audit.statuses(log, name, "pods", "kwok")) == number, limit, step=1.0
        )
    start_times = {
        event.object_ref.name: event.received for event in reversed(audit.releases(log, name))
    }
    share = utilisation(start_times, audit.statuses(log, name, "pods", "kwok"), slots=SLOTS)
    world.clear(name)
    return Outcome({"pace_utilisation": share})


def utilisation(since: Mapping[str, float], until: Mapping[str, float], *, slots: int) -> float:
    """Return the share of slot time in use, until too few pods are left to fill the slots."""
    begin, end = min(since.values()), sorted(since.values())[-slots]
    busy = sum(min(until[name], end) - start for name, start in since.items() if start < end)
    return busy / (slots * (end - begin))


def after(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure from a Job's completion to the release of the pods that wait for it."""
    name = world.namespace("after")
    jobs = [f"job-{number}" for number in range(size.jobs)]
    with controlling(world.kubeconfig) as controller:
        for number, job in enumerate(jobs):
            step(f"pods that wait for {number + 1} of {size.jobs} Jobs")
            for _ in range(size.waiters):
                world.post(f"/api/v1/namespaces/{name}/pods", _held(AFTER, f"job/{job}"))
        total = size.jobs * size.waiters
        world.until(lambda: controller.metric(HELD) == total)
        step("completing the Jobs")
        for job in jobs:
            world.post(f"/apis/batch/v1/namespaces/{name}/jobs", _empty_job(job))
            time.sleep(STEP_SECONDS)
        world.until(lambda: controller.metric(HELD) == 0)
    log = world.plane.audit_log
    completions = audit.statuses(log, name, "jobs", "kube-controller-manager")
    pods = world.get(f"/api/v1/namespaces/{name}/pods")["items"]
    job_names = {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][AFTER].removeprefix("job/")
        for pod in pods
    }
    delays = [
        (event.received - completions[job_names[event.object_ref.name]]) * 1e3
        for event in audit.releases(log, name)
    ]
    world.clear(name)
    figures = {"after_ms_p99": stats.percentile(delays, 0.99)}
    return Outcome(figures, details={"p50": stats.percentile(delays, 0.5), "min": min(delays)})


def _held(key: str, value: str) -> Object:
    pod = held_pod({key: value})
    pod["spec"]["schedulingGates"] = [{"name": key}]
    return pod


def _paced() -> Object:
    pod = _held(PACE, str(SLOTS))
    pod["metadata"]["labels"] = {PACE: "bench", "slow": "yes"}
    del pod["spec"]["schedulerName"]
    return pod


def _empty_job(name: str) -> Object:
    """Return a Job that completes as soon as it is created."""
    template = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox"}],
        }
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"completions": 0, "parallelism": 0, "template": template},
    }
