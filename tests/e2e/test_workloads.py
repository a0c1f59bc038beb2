"""Every kind of pod, made by the real controllers of its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.errors import ControlPlaneError
from demo.command import Command
from tests.e2e.world import Object, World, created, gates, pod

GATE = "holdfast.dev/delay"
LABELS = {"made-by": "the-controller"}


def template(delay: str, **spec: Any) -> Object:
    return {
        "metadata": {"labels": LABELS, "annotations": {"delay": delay}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def workload(kind: str, delay: str = "2", **spec: Any) -> Object:
    group = "batch/v1" if kind in {"Job", "CronJob"} else "apps/v1"
    whole: Object = {"apiVersion": group, "kind": kind, "metadata": {"name": "it"}}
    if kind == "CronJob":
        job = {"template": template(delay, restartPolicy="Never"), **spec}
        return {**whole, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}}
    if kind == "Job":
        return {**whole, "spec": {"template": template(delay, restartPolicy="Never"), **spec}}
    selector = {"matchLabels": LABELS}
    return {**whole, "spec": {"selector": selector, "template": template(delay), **spec}}


KINDS = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"]
PATHS = dict.fromkeys(KINDS, "spec.template.metadata") | {
    "CronJob": "spec.jobTemplate.spec.template.metadata"
}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_every_controller_are_held_and_released(world: World, kind: str) -> None:
    world.apply(workload(kind))
    first = world.eventually(lambda: world.all("pods", "made-by=the-controller"), 90)[0]
    assert GATE in gates(first) or first["metadata"]["name"] in world.releases()
    name = first["metadata"]["name"]
    world.eventually(lambda: name in world.releases())
    assert world.releases()[name] - created(first) >= 2
    world.eventually(lambda: world.get("pod", name)["status"]["phase"] in {"Running", "Succeeded"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_value_is_refused_in_the_template(world: World, kind: str) -> None:
    message = world.refusal(workload(kind, delay="soon"))
    assert f'{PATHS[kind]}: annotation delay: "soon" is no duration' in message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Job"])  # a Job's is immutable
def test_a_template_cannot_be_changed_to_a_bad_value(world: World, kind: str) -> None:
    world.apply(workload(kind, delay="3600"))
    assert "is no duration" in world.refusal(workload(kind, delay="soon"))


@pytest.mark.parametrize(
    ("made", "warning"),
    [
        (
            workload("Deployment", delay="20m"),
            "spec.progressDeadlineSeconds=600 runs on while pods are held for 20m",
        ),
        (
            workload("Job", delay="60", activeDeadlineSeconds=60),
            "spec.activeDeadlineSeconds=60 runs on while pods are held for 1m",
        ),
        (
            workload("CronJob", delay="60", activeDeadlineSeconds=30),
            "spec.jobTemplate.spec.activeDeadlineSeconds=30 runs on while pods are held for 1m",
        ),
        (
            workload("StatefulSet", delay="1h", replicas=3),
            "3 pods start one after the other, each held for 1h",
        ),
        (
            pod("fixed", {"delay": "15"}, nodeName="node-1"),
            "not held: spec.nodeName is set already",
        ),
    ],
    ids=["Deployment", "Job", "CronJob", "StatefulSet", "nodeName"],
)
def test_what_will_suffer_is_warned_of_and_stored(world: World, made: Object, warning: str) -> None:
    assert f"Warning: holdfast: {warning}" in world.warnings(made)
    assert world.get(made["kind"], made["metadata"]["name"])


@pytest.mark.parametrize(
    "made",
    [
        workload("Deployment", delay="9m"),
        workload("Job", delay="59", activeDeadlineSeconds=60),
        workload("StatefulSet", delay="1h", replicas=3, podManagementPolicy="Parallel"),
        workload("StatefulSet", delay="1h", replicas=1),
    ],
    ids=["Deployment", "Job", "parallel StatefulSet", "StatefulSet of one"],
)
def test_what_will_not_suffer_is_not_warned_of(world: World, made: Object) -> None:
    assert world.warnings(made) == ""


@pytest.mark.parametrize(
    "annotations",
    [{}, {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"}],
    ids=["nodeName", "mirror pod"],
)
def test_a_pod_that_has_its_node_is_admitted_unheld(
    world: World, annotations: dict[str, str]
) -> None:
    (made,) = world.apply(pod("fixed", {"delay": "15", **annotations}, nodeName="node-1"))
    assert gates(made) == []


def test_a_pod_with_a_generated_name_is_held(world: World) -> None:
    manifest = pod("", {"delay": "1"})
    manifest["metadata"] = {"generateName": "made-", "annotations": {"delay": "1"}}
    name = world.create(manifest)["metadata"]["name"]
    world.eventually(lambda: name in world.releases())


def test_a_finalizer_of_ours_is_nobody_elses_to_add(world: World) -> None:
    manifest = pod("forged")
    manifest["metadata"]["finalizers"] = ["holdfast.dev/sticky"]
    assert 'finalizer "holdfast.dev/sticky" is Holdfast\'s own' in world.refusal(manifest)

    world.apply(pod("plain"))
    patch = '{"metadata": {"finalizers": ["holdfast.dev/sticky"]}}'
    with pytest.raises(ControlPlaneError, match="is Holdfast's own; leave it out"):
        world.kubectl("patch", "pod", "plain", "--patch", patch)


def test_events_tell_a_pods_story(world: World) -> None:
    world.apply(pod("told", {"delay": "2"}), pod("changed", {"delay": "1000"}))
    world.kubectl("annotate", "pod", "changed", "delay-")

    def story(name: str) -> dict[str, str]:
        return {
            event["reason"]: event["note"]
            for event in world.all("events.events.k8s.io")
            if event["regarding"]["name"] == name
            and event["reportingController"] == "holdfast.dev/controller"
        }

    world.eventually(lambda: {"Held", "Released"} == story("told").keys())
    assert "by holdfast.dev/delay" in story("told")["Held"]
    world.eventually(lambda: "Released" in story("changed"))
    assert "no annotation says how long to hold it" in story("changed")["Released"]


VIRTUAL_MACHINES: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "virtualmachines.kubevirt.io"},
    "spec": {
        "group": "kubevirt.io",
        "scope": "Namespaced",
        "names": {"kind": "VirtualMachine", "plural": "virtualmachines", "singular": "vm"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def test_a_bad_value_is_refused_in_a_virtual_machines_template(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    world.apply(VIRTUAL_MACHINES)
    wait = ("wait", "--for=condition=Established", "crd/virtualmachines.kubevirt.io")
    world.kubectl(*wait, "--timeout=60s")
    machine: Object = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "it"},
        "spec": {"template": {"metadata": {"annotations": {"delay": "soon"}}, "spec": {}}},
    }
    with Command("dev", "--kubeconfig", str(world.plane.kubeconfig), log=log):
        refusal = world.eventually(lambda: refused(world, machine))
        assert 'spec.template.metadata: annotation delay: "soon" is no duration' in refusal
        machine["spec"]["template"] = {}
        world.apply(machine)


def refused(world: World, manifest: Object) -> str:
    """Try to apply; the refusal, or nothing. The API server takes a moment to know a new kind."""
    try:
        world.apply(manifest)
    except ControlPlaneError as exc:
        return str(exc) if "denied the request" in str(exc) else ""
    world.kubectl("delete", manifest["kind"], manifest["metadata"]["name"])
    return ""
