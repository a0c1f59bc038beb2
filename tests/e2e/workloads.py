"""Workloads whose pods Holdfast delays, and a Job without pods."""

from __future__ import annotations

from typing import Any

from tests.e2e.namespace import Object, pod

EMPTY_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "completions": 0,
        "parallelism": 0,
        "template": {"spec": {**pod("")["spec"], "restartPolicy": "Never"}},
    },
}
"""A Job that completes as soon as it is created."""


LABELS = {"made-by": "the-controller"}


def template(delay: str, **spec: Any) -> Object:
    return {
        "metadata": {"labels": LABELS, "annotations": {"delay": delay}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def workload(kind: str, delay: str = "2", **spec: Any) -> Object:
    group = "batch/v1" if kind in {"Job", "CronJob"} else "apps/v1"
    group = "v1" if kind == "ReplicationController" else group
    manifest: Object = {"apiVersion": group, "kind": kind, "metadata": {"name": "it"}}
    if kind == "CronJob":
        job = {"template": template(delay, restartPolicy="Never"), **spec}
        return {**manifest, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}}
    if kind == "Job":
        return {**manifest, "spec": {"template": template(delay, restartPolicy="Never"), **spec}}
    selector: Object = LABELS if kind == "ReplicationController" else {"matchLabels": LABELS}
    return {**manifest, "spec": {"selector": selector, "template": template(delay), **spec}}
