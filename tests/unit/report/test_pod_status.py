from typing import Any

import msgspec
import pytest

from holdfast.webhook.model.nodes import Node
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.report import pod_status
from holdfast.webhook.report.pod_status import HOSTNAME, NodeState, Pin
from tests.support.matching import make_node, required_affinity

BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
BY_LABEL = {
    "matchExpressions": [
        {"key": "a", "operator": "Exists"},
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2", "node-3"]},
    ]
}
ANYWHERE = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}


def pod(*terms: Any, selector: dict[str, str] | None = None) -> Pod:
    affinity = required_affinity(*terms) if terms else None
    return Pod.of({"spec": {"affinity": affinity, "nodeSelector": selector}})


@pytest.mark.parametrize(
    ("pinned", "names", "labels"),
    [
        pytest.param(pod(), [], [], id="no constraints"),
        pytest.param(pod(BY_NAME), ["node-1"], [], id="by name"),
        pytest.param(pod(BY_NAME, BY_LABEL), ["node-1"], ["node-2", "node-3"], id="two terms"),
        pytest.param(pod(BY_NAME, ANYWHERE), [], [], id="a term that allows other nodes"),
        pytest.param(pod(selector={HOSTNAME: "n"}), [], ["n"], id="selector"),
        pytest.param(pod(ANYWHERE, selector={HOSTNAME: "n"}), [], ["n"], id="selector and terms"),
        pytest.param(pod(BY_NAME, selector={HOSTNAME: "n"}), ["node-1"], [], id="the name wins"),
        pytest.param(pod(selector={"disk": "fast"}), [], [], id="selector without a hostname"),
    ],
)
def test_pins(pinned: Pod, names: list[str], labels: list[str]) -> None:
    assert pod_status.pins(pinned) == [
        *(Pin(name) for name in names),
        *(Pin(label, by_label=True) for label in labels),
    ]


def node(*, cordoned: bool = False, ready: str = "True", **labels: str) -> Node:
    condition = {"type": "Ready", "status": ready, "reason": "KubeletNotReady"}
    source = {**make_node("n", labels), "status": {"conditions": [condition]}}
    return msgspec.convert({**source, "spec": {"unschedulable": cordoned}}, Node)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(node(a="1"), "", id="healthy"),
        pytest.param(Node(metadata=node(a="1").metadata), "", id="no status"),
        pytest.param(node(cordoned=True), "it is cordoned; run kubectl uncordon n", id="cordoned"),
        pytest.param(node(ready="False"), "it is not ready (KubeletNotReady)", id="not ready"),
        pytest.param(
            node(),
            'the node selector or affinity of the pod requires "a Exists"',
            id="excluded by the pod",
        ),
    ],
)
def test_node_state(found: Node, problem: str) -> None:
    excluded = "requires" in problem
    state = pod_status.node_state("n", found, pod(ANYWHERE))
    assert state == NodeState("n", problem, excluded=excluded)
    if excluded:
        assert pod_status.node_state("n", found) == NodeState("n")
