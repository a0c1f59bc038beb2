"""Pods of every workload kind, created by the real controllers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.namespace import Namespace, Object, created, definition, gates, pod
from tests.e2e.workloads import template, workload

GATE = "holdfast.dev/delay"


def cron_job(labels: Object, annotations: Object) -> Object:
    """Make a CronJob with labels in its pod template, and annotations in its Job template."""
    manifest = workload("CronJob")
    job = manifest["spec"]["jobTemplate"]
    job["metadata"] = {"annotations": annotations}
    job["spec"]["template"]["metadata"] = {"labels": labels}
    return manifest


KINDS = [
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "ReplicationController",
]
PATHS = dict.fromkeys(KINDS, "spec.template.metadata") | {
    "CronJob": "spec.jobTemplate.spec.template.metadata"
}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_every_controller_are_held_and_released(ns: Namespace, kind: str) -> None:
    ns.apply(workload(kind))
    if kind == "CronJob":  # its controller would wait for the next minute
        ns.kubectl("create", "job", "now", "--from=cronjob/it")
    first_pod = ns.eventually(lambda: ns.all("pods", "made-by=the-controller"), 90)[0]
    assert GATE in gates(first_pod) or first_pod["metadata"]["name"] in ns.releases()
    name = first_pod["metadata"]["name"]
    ns.eventually(lambda: name in ns.releases())
    assert ns.releases()[name] - created(first_pod) >= 2
    ns.eventually(lambda: ns.get("pod", name)["status"]["phase"] in {"Running", "Succeeded"})


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_value_in_a_template_is_rejected(ns: Namespace, kind: str) -> None:
    message = f'{PATHS[kind]}: annotation delay: invalid value "soon"'
    assert message in ns.refusal(workload(kind, delay="soon"))
    if kind in {"Deployment", "CronJob"}:  # one of each webhook for templates
        ns.apply(workload(kind, delay="3600"))
        assert message in ns.refusal(workload(kind, delay="soon"))


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "path"),
    [
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": name, "template": {"spec": {"template": template(delay)}}}
                    for name, delay in (("a", "15"), ("b", "soon"))
                ]
            },
            "spec.replicatedJobs[1].template.spec.template",
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {
                "leaderWorkerTemplate": {
                    "workerTemplate": template("15"),
                    "leaderTemplate": template("soon"),
                }
            },
            "spec.leaderWorkerTemplate.leaderTemplate",
        ),
    ],
    ids=["JobSet", "LeaderWorkerSet"],
)
def test_invalid_value_in_a_nested_template_is_rejected(
    ns: Namespace, api_version: str, kind: str, spec: Any, path: str
) -> None:
    group, _, version = api_version.partition("/")
    ns.apply(definition(group, version, kind))
    ns.eventually(lambda: kind in ns.kubectl("api-resources", f"--api-group={group}"))
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}
    assert f"{path}.metadata: annotation delay: invalid value" in ns.refusal(manifest)


@pytest.mark.parametrize(
    ("made", "warning"),
    [
        (
            workload("Deployment", delay="20m"),
            "spec.progressDeadlineSeconds=600 expires while pods are held for 20m",
        ),
        (
            workload("CronJob", delay="60", activeDeadlineSeconds=30),
            "spec.jobTemplate.spec.activeDeadlineSeconds=30 expires while pods are held for 1m",
        ),
        (
            pod("fixed", {"delay": "15"}, nodeName="node-1"),
            "not held: spec.nodeName is already set",
        ),
        (
            pod("mistyped", {"holdfast.dev/delai": "15"}),
            (
                'unknown annotation "holdfast.dev/delai" has no effect: did you mean '
                "holdfast.dev/delay?"
            ),
        ),
        (
            workload("StatefulSet", delay="0")
            | {"metadata": {"name": "it", "annotations": {"delay": "15"}}},
            (
                "metadata: annotation delay has no effect here: move it to "
                "spec.template.metadata.annotations"
            ),
        ),
        (
            cron_job({"holdfast.dev/delay": "15"}, {}),
            (
                'spec.jobTemplate.spec.template.metadata: label "holdfast.dev/delay" has no '
                "effect: set annotation holdfast.dev/delay instead"
            ),
        ),
        (
            cron_job({}, {"holdfast.io/delay": "15"}),
            (
                'spec.jobTemplate.metadata: unknown annotation "holdfast.io/delay" has no effect: '
                "did you mean holdfast.dev/delay?"
            ),
        ),
        (
            cron_job({}, {"holdfast.dev/delay": "15"}),
            (
                "spec.jobTemplate.metadata: annotation holdfast.dev/delay has no effect here: move "
                "it to spec.jobTemplate.spec.template.metadata.annotations"
            ),
        ),
    ],
    ids=[
        *("Deployment", "CronJob", "nodeName", "mistyped", "misplaced", "label", "other domain"),
        "on the Job",
    ],
)
def test_ineffective_setting_causes_a_warning(ns: Namespace, made: Object, warning: str) -> None:
    assert f"Warning: holdfast: {warning}" in ns.warnings(made)
    assert ns.get(made["kind"], made["metadata"]["name"])


def test_delay_added_to_an_existing_pod_causes_a_warning(ns: Namespace) -> None:
    ns.apply(pod("exists"))
    message = "holdfast: annotation delay has no effect, because the pod was created without it"
    assert message in ns.warnings(pod("exists", {"delay": "15"}))


def test_events_report_hold_and_release(ns: Namespace) -> None:
    ns.apply(pod("held", {"delay": "2"}), pod("changed", {"delay": "1000"}))
    ns.kubectl("annotate", "pod", "changed", "delay-")

    ns.eventually(lambda: {"Held", "Released"} == ns.notes("held").keys())
    assert "by holdfast.dev/delay" in ns.notes("held")["Held"]
    ns.eventually(lambda: "Released" in ns.notes("changed"))
    assert "no annotation asks for a hold" in ns.notes("changed")["Released"]


def test_pods_due_together_are_released_in_priority_order(ns: Namespace) -> None:
    """A node fits one pod per host port; with a single port, the order could be luck."""
    priorities = {"a-low": 1, "b-high": 1_000}
    for name, value in priorities.items():
        ns.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": f"{ns.namespace}-{name}"},
                "value": value,
                "preemptionPolicy": "Never",
            }
        )
    due = datetime.fromtimestamp(time.time() + 8, UTC).isoformat(timespec="seconds")
    ports = range(30_100, 30_110)
    ns.create_pods(
        pod(
            f"{name}-{port}",
            {"holdfast.dev/not-before": due},
            priorityClassName=f"{ns.namespace}-{name}",
            nodeSelector={"kubernetes.io/hostname": "node-1"},
            containers=[
                {
                    "name": "main",
                    "image": "busybox",
                    "ports": [{"containerPort": port, "hostPort": port}],
                }
            ],
        )
        for name in priorities
        for port in ports
    )

    def bound() -> set[str]:
        return {
            manifest["metadata"]["name"]
            for manifest in ns.all("pods")
            if manifest["spec"].get("nodeName")
        }

    assert ns.eventually(lambda: len(names := bound()) == len(ports) and names) == {
        f"b-high-{port}" for port in ports
    }
