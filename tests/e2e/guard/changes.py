"""Changes of pods, namespaces and VMs, each with a part of the message that rejects it."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.webhook.model.objects import KUEUE_GROUP, REVISION_LABEL
from holdfast.webhook.policies import pods as pod_policies
from tests.e2e.kubectl_user import Operation

Row = tuple[Sequence[Operation], str]
"""A JSON patch, and a part of the rejection message."""


def annotation(key: str, value: str | None) -> Operation:
    path = f"/metadata/annotations/{key.replace('/', '~1')}"
    return remove(path) if value is None else write(path, value)


def write(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    return {"op": "remove", "path": path}


def rows(changes: Mapping[str, Mapping[str, Sequence[Operation]]]) -> Mapping[str, Row]:
    """Map the name of each change to the change and its message."""
    return {
        name: (operations, message)
        for message, group in changes.items()
        for name, operations in group.items()
    }


STRIP = remove("/spec/schedulingGates/0")
FINALIZER = "/metadata/finalizers/-"
TOLERATION = write("/spec/tolerations/-", {"key": "a", "operator": "Exists"})
OTHER_OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}
OWNER = write("/metadata/ownerReferences", [OTHER_OWNER])
OWNED = {**OTHER_OWNER, "controller": True}
NOT_BEFORE = annotation("holdfast.dev/not-before", "2020-01-01T00:00:00Z")
HOLD_CHANGES = rows(
    {
        "release it": {"gate removed": [STRIP]},
        "change delay": {
            "delay 0": [annotation("delay", "0")],
            "delay removed": [annotation("delay", None)],
        },
        "change holdfast.dev/delay": {
            "second delay annotation": [annotation("holdfast.dev/delay", "0")]
        },
        "change holdfast.dev/not-before": {"not-before added": [NOT_BEFORE]},
        "change holdfast.dev/jitter": {"jitter added": [annotation("holdfast.dev/jitter", "1h")]},
        "change holdfast.dev/held": {
            "hint changed": [annotation("holdfast.dev/held", "delay=1s")],
            "hint removed": [annotation("holdfast.dev/held", None)],
        },
        "change holdfast.dev/profile": {
            "profile changed": [annotation("holdfast.dev/profile", "x")]
        },
        "change delay, holdfast.dev/held, holdfast.dev/profile": {
            "all annotations removed": [remove("/metadata/annotations")]
        },
        pod_policies.MOVED: {
            "another controlling owner": [write("/metadata/ownerReferences", [OWNED])],
            "group label": [write("/metadata/labels", {KUEUE_GROUP: "g1"})],
            "revision label": [write("/metadata/labels", {REVISION_LABEL: "web-1"})],
        },
        "release it or change delay": {"both": [STRIP, annotation("delay", "0")]},
    }
)
LEVEL = write("/metadata/labels/pod-security.kubernetes.io~1enforce", "privileged")
NO_OWNER = {"apiVersion": "v1", "kind": "PersistentVolume", "name": "gone", "uid": "gone"}
FREEZER_MAY_NOT = rows(
    {
        "annotations other than": {
            "node selector of PodNodeSelector": [
                annotation("scheduler.alpha.kubernetes.io/node-selector", "a=b")
            ],
            "unrelated annotation": [annotation("team", "b")],
            "all annotations": [remove("/metadata/annotations")],
            "other Holdfast annotation": [annotation("holdfast.dev/delay", "1h")],
        },
        "metadata.labels": {
            "Pod Security level": [LEVEL],
            "label removed": [remove("/metadata/labels/team")],
        },
        "metadata.ownerReferences": {
            "owner that does not exist": [write("/metadata/ownerReferences", [NO_OWNER])]
        },
        "metadata.finalizers": {"finalizer": [write("/metadata/finalizers", ["example.com/mine"])]},
    }
)
CONTROLLER_MAY_NOT = rows(
    {
        "spec.containers": {"image": [write("/spec/containers/0/image", "evil")]},
        "spec.initContainers": {
            "image of an init container": [write("/spec/initContainers/0/image", "evil")]
        },
        "spec.activeDeadlineSeconds": {
            "active deadline": [write("/spec/activeDeadlineSeconds", 1)]
        },
        "spec.tolerations": {
            "toleration": [TOLERATION],
            "toleration of every taint": [write("/spec/tolerations/-", {"operator": "Exists"})],
            "toleration with the release": [TOLERATION, STRIP],
        },
        "metadata.labels": {
            "label": [write("/metadata/labels/app", "other")],
            "label added": [write("/metadata/labels/new", "one")],
            "labels removed": [remove("/metadata/labels")],
            "Holdfast label changed": [write("/metadata/labels/holdfast.dev~1held", "no")],
        },
        "annotations outside holdfast.dev/": {
            "unrelated annotation": [annotation("team", "b")],
            "unrelated annotation added": [annotation("example.com/new", "b")],
            "unrelated annotation removed": [annotation("team", None)],
            "the user's delay": [annotation("delay", "0")],
        },
        "metadata.ownerReferences": {"owner": [OWNER]},
        "spec.schedulingGates": {
            "foreign gate": [remove("/spec/schedulingGates/1")],
            "all gates": [remove("/spec/schedulingGates")],
        },
        "metadata.finalizers": {
            "foreign finalizer": [remove("/metadata/finalizers/1")],
            "all finalizers": [remove("/metadata/finalizers")],
            "finalizer added": [write(FINALIZER, "example.com/new")],
            "Holdfast finalizer added": [write(FINALIZER, "holdfast.dev/new")],
        },
    }
)
VM_TEMPLATE = "/spec/template/metadata/annotations"
MACHINE_MAY_NOT = rows(
    {
        "spec": {
            "run strategy": [write("/spec/runStrategy", "Always")],
            "template": [write(VM_TEMPLATE, {"holdfast.dev/delay": "1h"})],
        },
        "metadata.labels": {"label": [write("/metadata/labels/app", "other")]},
        "metadata.finalizers": {
            "finalizers": [remove("/metadata/finalizers")],
            "Holdfast finalizer": [write(FINALIZER, "holdfast.dev/sticky")],
        },
        "metadata.ownerReferences": {"owner": [OWNER]},
        "annotations of a VirtualMachine other than": {
            "unrelated annotation": [annotation("team", "b")],
            "unrelated annotation removed": [annotation("team", None)],
            "the user's choice": [annotation("holdfast.dev/sticky", "false")],
            "other Holdfast annotation": [annotation("holdfast.dev/new", "a")],
        },
    }
)
