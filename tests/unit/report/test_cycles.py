"""Pods in manifests that wait for each other."""

from itertools import pairwise
from typing import Any

import pytest

from holdfast.webhook.report import cycles


def workload(kind: str, name: str, after: Any = None, **metadata: Any) -> dict[str, Any]:
    annotations = {} if after is None else {"holdfast.dev/after": after}
    pod = {"annotations": annotations, "labels": {"app": name}}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": {"template": {"metadata": pod}},
    }


def service(name: str, selector: Any, **metadata: Any) -> dict[str, Any]:
    spec = {"selector": selector}
    metadata = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def pod(name: str, after: str) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {"holdfast.dev/after": after}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def job_set(name: str, *after: str) -> dict[str, Any]:
    jobs = [
        {"template": {"spec": workload("Job", "j", dependency)["spec"]}} for dependency in after
    ]
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {**document, "metadata": {"name": name}, "spec": {"replicatedJobs": jobs}}


WEB = workload("Deployment", "web", "service/db")
DB = workload("StatefulSet", "db", "job/migrate:Complete")


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        pytest.param(
            [WEB, DB, service("db", {"app": "db"}), workload("Job", "migrate")], [], id="a chain"
        ),
        pytest.param(
            [WEB, DB, service("db", {"app": "db"}), workload("Job", "migrate", "deployments/web")],
            ["deployment/web", "service/db", "statefulset/db", "job/migrate"],
            id="through a Service",
        ),
        pytest.param(
            [WEB, workload("Job", "db", "deployment/web"), service("db", {})],
            [],
            id="a Service without a selector",
        ),
        pytest.param(
            [WEB, workload("Job", "db", "deployment/web"), service("db", {"app": "d"})],
            [],
            id="a Service of other pods",
        ),
        pytest.param(
            [pod("a", "pod/b:Ready , job/x"), pod("b", " pods/a")], ["pod/a", "pod/b"], id="pods"
        ),
        pytest.param(
            [job_set("a", "job/x", "job/b"), workload("Job", "b", "jobset/a")],
            ["job/b", "jobset/a"],
            id="second template",
        ),
        pytest.param(
            [workload("Job", "a", "job/b", namespace="shop"), workload("Job", "b", "job/a")],
            [],
            id="another namespace",
        ),
        pytest.param(
            [
                workload("Job", "a", "job/b", namespace="shop"),
                workload("Job", "b", "job/a", namespace="shop"),
            ],
            ["job/a", "job/b"],
            id="the same namespace",
        ),
        pytest.param(
            [
                {"kind": "Pod", "apiVersion": "v1", "metadata": 7},
                {"kind": "Service", "spec": {"selector": "x"}},
                {"kind": "Service", "spec": None},
                workload("Deployment", "web", 15),
                workload("Deployment", "web", "//:,"),
            ],
            [],
            id="invalid objects",
        ),
    ],
)
def test_cycle_follows_dependency_order(
    documents: list[dict[str, Any]], expected: list[str]
) -> None:
    cycle = cycles.find(documents, "default")
    assert cycle[:1] == cycle[-1:]
    assert dict(pairwise(cycle)) == dict(pairwise([*expected, *expected[:1]]))
