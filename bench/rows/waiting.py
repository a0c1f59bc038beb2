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


def pace(there: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure the share of time that starting pods occupy a pace's slots."""
    name = there.namespace("paced")
    with controlling(there.kubeconfig) as controller:
        step(f"{size.paced} pods, {SLOTS} at a time")
        there.create(name, [_paced()], size.paced, connections=1)
        number = there.count(name)  # a client creates one more to warm up
        limit = number * SLOWEST_SECONDS
        there.until(lambda: controller.metric(HELD) == 0, limit, step=1.0)
        log = there.plane.audit_log
        there.until(
            lambda: len(audit.statuses(log, name, "pods", "kwok")) == number, limit, step=1.0
        )
    since = {one.object_ref.name: one.received for one in reversed(audit.releases(log, name))}
    busy = utilisation(since, audit.statuses(log, name, "pods", "kwok"), slots=SLOTS)
    there.clear(name)
    return Outcome({"pace_utilisation": busy})


def utilisation(since: Mapping[str, float], until: Mapping[str, float], *, slots: int) -> float:
    """Return the share of slot time in use, until too few pods are left to fill the slots."""
    begin, end = min(since.values()), sorted(since.values())[-slots]
    busy = sum(min(until[name], end) - at for name, at in since.items() if at < end)
    return busy / (slots * (end - begin))


def after(there: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure from a Job's completion to the release of the pods that wait for it."""
    name = there.namespace("after")
    jobs = [f"job-{number}" for number in range(size.jobs)]
    with controlling(there.kubeconfig) as controller:
        for number, job in enumerate(jobs):
            step(f"pods that wait for {number + 1} of {size.jobs} Jobs")
            for _ in range(size.waiters):
                there.post(f"/api/v1/namespaces/{name}/pods", _held(AFTER, f"job/{job}"))
        total = size.jobs * size.waiters
        there.until(lambda: controller.metric(HELD) == total)
        step("completing the Jobs")
        for job in jobs:
            there.post(f"/apis/batch/v1/namespaces/{name}/jobs", _empty_job(job))
            time.sleep(STEP_SECONDS)
        there.until(lambda: controller.metric(HELD) == 0)
    log = there.plane.audit_log
    done = audit.statuses(log, name, "jobs", "kube-controller-manager")
    pods = there.get(f"/api/v1/namespaces/{name}/pods")["items"]
    wanted = {
        one["metadata"]["name"]: one["metadata"]["annotations"][AFTER].removeprefix("job/")
        for one in pods
    }
    late = [
        (one.received - done[wanted[one.object_ref.name]]) * 1e3
        for one in audit.releases(log, name)
    ]
    there.clear(name)
    figures = {"after_ms_p99": stats.percentile(late, 0.99)}
    return Outcome(figures, details={"p50": stats.percentile(late, 0.5), "min": min(late)})


def _held(key: str, value: str) -> Object:
    made = held_pod({key: value})
    made["spec"]["schedulingGates"] = [{"name": key}]
    return made


def _paced() -> Object:
    made = _held(PACE, str(SLOTS))
    made["metadata"]["labels"] = {PACE: "bench", "slow": "yes"}
    del made["spec"]["schedulerName"]
    return made


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
