"""`holdfast explain` for pods that do not run as their users expect."""

from typing import Any

import msgspec
import pytest

from holdfast.webhook.cli import explain, nodes
from holdfast.webhook.report.obstacles import Template
from holdfast.webhook.report.pod_status import PodWithStatus
from tests.support.builders import held, make_pod
from tests.support.fakes import FakeApi
from tests.support.matching import required_affinity
from tests.support.vm_builders import make_launcher, owner_of
from tests.unit.report.explained import explained

ROLE = "kubernetes.io/role"


def requiring(pod: dict[str, Any], *values: tuple[str, str], field: str = "") -> dict[str, Any]:
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in values]
    fields = [
        {"key": "metadata.name", "operator": "In", "values": [name]} for name in field.split()
    ]
    term = {"matchExpressions": expressions, "matchFields": fields}
    pod["spec"]["affinity"] = required_affinity(term)
    return pod


def test_pod_conflicts_with_a_placement_rule() -> None:
    pod = make_pod({"type": "space", "holdfast.dev/placed": "space@82541989"})
    pod["spec"]["nodeSelector"] = {ROLE: "core"}
    report = explained(requiring(pod, (ROLE, "edge")))
    conflict = (
        f'no node can meet "{ROLE} In [core]" (nodeSelector) and "{ROLE} In [edge]" '
        "(placement rule space)"
    )

    assert report["Nodes"] == conflict
    advice = f"change one of the requirements that exclude each other: {conflict}"
    assert report["What to do"].startswith(advice)


def test_pod_conflicts_with_its_recorded_node() -> None:
    pod = requiring(make_launcher(finalizers=["holdfast.dev/sticky"]), field="node-1 node-2")

    assert explained(pod)["Nodes"].endswith(
        '"metadata.name In [node-2]" (the recorded node of the VM)'
    )


def test_satisfiable_requirements_are_not_reported() -> None:
    pod = make_pod({})
    pod["spec"]["nodeSelector"] = {ROLE: "edge"}

    assert "Nodes" not in explained(requiring(pod, (ROLE, "edge"), ("zone", "a")))


@pytest.mark.parametrize(
    ("template", "advice"),
    [
        pytest.param({"holdfast.dev/delay": "5s"}, 'apply holdfast.dev/delay "5s", d', id="other"),
        pytest.param({}, "apply holdfast.dev/delay (none), d", id="none"),
        pytest.param({"holdfast.dev/delay": "1h", "team": "a"}, "", id="another key"),
    ],
)
def test_template_annotation_that_differs_from_the_pod(
    template: dict[str, str], advice: str
) -> None:
    report = explained(
        held({"holdfast.dev/delay": "1h"}), template=Template("StatefulSet", "web", template)
    )
    expected = (
        f"the template of StatefulSet web has changed; to {advice}elete the pod: kubectl delete "
        "pod web-0 -n default"
    )

    assert (expected in report["What to do"]) is bool(advice)


@pytest.mark.parametrize("uid", ["u", "another"])
def test_template_is_read_only_from_the_pods_controller(uid: str) -> None:
    api, owner = FakeApi(), owner_of("StatefulSet", "web", "u", api_version="apps/v1")
    template = {"metadata": {"annotations": {"delay": "5s"}}}
    document = {"metadata": {"uid": uid}, "spec": {"template": template}}
    api.put("/apis/apps/v1/namespaces/default/statefulsets/web", document)
    pod = msgspec.convert(held({"delay": "1h"}, owners=[owner]), PodWithStatus)
    expected = Template("StatefulSet", "web", {"delay": "5s"}) if uid == "u" else None

    assert explain._template(api, pod) == expected


def test_deleted_pod_kept_by_a_holdfast_finalizer() -> None:
    pod = make_launcher(finalizers=["holdfast.dev/sticky"], node="node-1")
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    report = explained(pod)

    state = "is being deleted, and kept by Holdfast's finalizer holdfast.dev/sticky"
    assert report["Pod default"] == state
    advice = "the controller removes its finalizer; if it stays, run holdfast doctor"
    assert advice in report["What to do"]


def test_pod_on_a_not_ready_node() -> None:
    api = FakeApi()
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    api.put("/api/v1/nodes/node-1", {"metadata": {}, "status": {"conditions": [condition]}})
    api.put("/api/v1/nodes/node-2", {"metadata": {}})
    report = explained(make_pod({}, node="node-1"), nodes=[*nodes.bound(api, "node-1")])

    assert report["Nodes"] == "is bound to node-1: it is not ready (NodeStatusUnknown)"
    assert "kubectl describe node node-1" in report["What to do"]
    assert [*nodes.bound(api, "node-2")] == []
    assert [state.problem for state in nodes.bound(api, "x")] == ["the node does not exist"]
