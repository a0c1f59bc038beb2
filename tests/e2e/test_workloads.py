"""Every kind of pod, made by the real controllers of its kind."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.errors import ControlPlaneError
from tests.e2e.namespace import Namespace, Object, created, definition, gates, pod

GATE = "holdfast.dev/delay"
LABELS = {"made-by": "the-controller"}


def template(delay: str, **spec: Any) -> Object:
    return {
        "metadata": {"labels": LABELS, "annotations": {"delay": delay}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def workload(kind: str, delay: str = "2", **spec: Any) -> Object:
    group = "batch/v1" if kind in {"Job", "CronJob"} else "apps/v1"
    group = "v1" if kind == "ReplicationController" else group
    whole: Object = {"apiVersion": group, "kind": kind, "metadata": {"name": "it"}}
    if kind == "CronJob":
        job = {"template": template(delay, restartPolicy="Never"), **spec}
        return {**whole, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}}
    if kind == "Job":
        return {**whole, "spec": {"template": template(delay, restartPolicy="Never"), **spec}}
    selector: Object = LABELS if kind == "ReplicationController" else {"matchLabels": LABELS}
    return {**whole, "spec": {"selector": selector, "template": template(delay), **spec}}


def cron_job(labels: Object, annotations: Object) -> Object:
    """Make a CronJob with labels in its pod template, and annotations in that of its Jobs."""
    made = workload("CronJob")
    job = made["spec"]["jobTemplate"]
    job["metadata"] = {"annotations": annotations}
    job["spec"]["template"]["metadata"] = {"labels": labels}
    return made


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
    first = ns.eventually(lambda: ns.all("pods", "made-by=the-controller"), 90)[0]
    assert GATE in gates(first) or first["metadata"]["name"] in ns.releases()
    name = first["metadata"]["name"]
    ns.eventually(lambda: name in ns.releases())
    assert ns.releases()[name] - created(first) >= 2
    ns.eventually(lambda: ns.get("pod", name)["status"]["phase"] in {"Running", "Succeeded"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_value_is_refused_in_the_template(ns: Namespace, kind: str) -> None:
    message = ns.refusal(workload(kind, delay="soon"))
    assert f'{PATHS[kind]}: annotation delay: invalid value "soon"' in message


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
def test_a_bad_value_is_refused_in_any_template(
    ns: Namespace, api_version: str, kind: str, spec: Any, path: str
) -> None:
    group, _, version = api_version.partition("/")
    ns.apply(definition(group, version, kind))
    ns.eventually(lambda: kind in ns.kubectl("api-resources", f"--api-group={group}"))
    made = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": spec}
    assert f"{path}.metadata: annotation delay: invalid value" in ns.refusal(made)


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])  # one of each webhook for templates
def test_a_template_cannot_be_changed_to_a_bad_value(ns: Namespace, kind: str) -> None:
    ns.apply(workload(kind, delay="3600"))
    assert "invalid value" in ns.refusal(workload(kind, delay="soon"))


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
        (
            pod("past", {"holdfast.dev/not-before": "2020-01-01T00:00:00Z"}),
            "not held: annotation holdfast.dev/not-before: 2020-01-01T00:00:00Z is in the past",
        ),
    ],
    ids=[
        *("Deployment", "CronJob", "nodeName", "mistyped", "misplaced", "label", "other domain"),
        *("on the Job", "past"),
    ],
)
def test_warning_about_what_does_not_hold_as_meant(
    ns: Namespace, made: Object, warning: str
) -> None:
    assert f"Warning: holdfast: {warning}" in ns.warnings(made)
    assert ns.get(made["kind"], made["metadata"]["name"])


def test_warning_about_a_hold_that_comes_too_late(ns: Namespace) -> None:
    ns.apply(pod("exists"))
    late = "holdfast: annotation delay has no effect, because the pod was created without it"
    assert late in ns.warnings(pod("exists", {"delay": "15"}))


def test_a_pod_with_a_generated_name_is_held(ns: Namespace) -> None:
    manifest = pod("", {"delay": "1"})
    manifest["metadata"] = {"generateName": "made-", "annotations": {"delay": "1"}}
    name = ns.create(manifest)["metadata"]["name"]
    ns.eventually(lambda: name in ns.releases())


def test_no_other_user_can_add_our_finalizer(ns: Namespace) -> None:
    manifest = pod("forged")
    manifest["metadata"]["finalizers"] = ["holdfast.dev/sticky"]
    assert 'finalizer "holdfast.dev/sticky" is reserved for Holdfast' in ns.refusal(manifest)

    ns.apply(pod("plain"))
    patch = '{"metadata": {"finalizers": ["holdfast.dev/sticky"]}}'
    with pytest.raises(ControlPlaneError, match="is reserved for Holdfast: remove it"):
        ns.kubectl("patch", "pod", "plain", "--patch", patch)


def test_events_report_hold_and_release(ns: Namespace) -> None:
    ns.apply(pod("told", {"delay": "2"}), pod("changed", {"delay": "1000"}))
    ns.kubectl("annotate", "pod", "changed", "delay-")

    def story(name: str) -> dict[str, str]:
        return {
            event["reason"]: event["note"]
            for event in ns.all("events.events.k8s.io")
            if event["regarding"]["name"] == name
            and event["reportingController"] == "holdfast.dev/controller"
        }

    ns.eventually(lambda: {"Held", "Released"} == story("told").keys())
    assert "by holdfast.dev/delay" in story("told")["Held"]
    ns.eventually(lambda: "Released" in story("changed"))
    assert "no annotation asks for a hold" in story("changed")["Released"]


def test_of_pods_due_together_the_one_of_higher_priority_gets_the_room(ns: Namespace) -> None:
    """A node has room for one pod per host port; with one pair, the other order is luck."""
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
        return {one["metadata"]["name"] for one in ns.all("pods") if one["spec"].get("nodeName")}

    assert ns.eventually(lambda: len(seen := bound()) == len(ports) and seen) == {
        f"b-high-{port}" for port in ports
    }
