from __future__ import annotations

from typing import Any

import msgspec
import pytest

from webhook import inspection
from webhook.inspection import Node, NodeState
from webhook.objects import Pod

BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
BY_LABEL = {
    "matchExpressions": [
        {"key": "a", "operator": "Exists"},
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2", "node-3"]},
    ]
}
ANYWHERE = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}


def pod(*terms: Any, selector: dict[str, str] | None = None) -> Pod:
    required = {"nodeSelectorTerms": list(terms)}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return Pod.of({"spec": {"affinity": affinity if terms else None, "nodeSelector": selector}})


@pytest.mark.parametrize(
    ("of", "nodes"),
    [
        pytest.param(pod(), [], id="nothing"),
        pytest.param(pod(BY_NAME), ["node-1"], id="by name"),
        pytest.param(pod(BY_NAME, BY_LABEL), ["node-1", "node-2", "node-3"], id="two terms"),
        pytest.param(pod(BY_NAME, ANYWHERE), [], id="a term that takes others"),
        pytest.param(pod(selector={"kubernetes.io/hostname": "n"}), ["n"], id="selector"),
        pytest.param(pod(selector={"disk": "fast"}), [], id="selector of something else"),
    ],
)
def test_pinned_nodes(of: Pod, nodes: list[str]) -> None:
    assert inspection.pinned_nodes(of) == nodes


def node(*, cordoned: bool = False, ready: str = "True") -> Node:
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletNotReady"}]
    source = {"spec": {"unschedulable": cordoned}, "status": {"conditions": conditions}}
    return msgspec.convert(source, Node)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(node(), "", id="well"),
        pytest.param(Node(), "", id="says nothing"),
        pytest.param(node(cordoned=True), "it is cordoned; kubectl uncordon n", id="cordoned"),
        pytest.param(node(ready="False"), "it is not ready (KubeletNotReady)", id="not ready"),
    ],
)
def test_node_state(found: Node, problem: str) -> None:
    assert inspection.node_state("n", found) == NodeState("n", problem)


def test_a_node_that_is_not_there() -> None:
    assert inspection.node_state("n", None) == NodeState("n", "there is no such node", missing=True)
