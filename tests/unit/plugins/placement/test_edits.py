"""The edits that rules make to a pod."""

from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model.edits import Edit, PreferNodes, SelectNodes, SetSchedulerName, Tolerate
from tests.support.config_cases import EDGE, SPACE, rule
from tests.unit.plugins.placement.placed import (
    EDGE_NODES,
    affine,
    mutate,
    only_warning,
    owned,
    space,
)

TOLERATION = {"key": "e", "value": "x", "effect": "NoExecute", "tolerationSeconds": 0}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([SPACE], [EDGE_NODES], id="require"),
        pytest.param(
            [rule(require=[], prefer=[{"weight": 7, "require": [EDGE]}])],
            [PreferNodes(7, EDGE_NODES.requirements)],
            id="prefer",
        ),
        pytest.param(
            [rule(require=[], nodeSelector={"a": "1", "b": "2"})],
            [SelectNodes("a", "1"), SelectNodes("b", "2")],
            id="nodeSelector",
        ),
        pytest.param(
            [rule(require=[], tolerations=[TOLERATION])],
            [Tolerate("e", "Equal", "x", "NoExecute", 0)],
            id="a toleration with all fields",
        ),
        pytest.param(
            [rule(require=[], schedulerName="default-scheduler")],
            [SetSchedulerName("default-scheduler")],
            id="schedulerName",
        ),
        pytest.param(
            [SPACE, rule(name="b", nodeSelector={"a": "1"}), rule(name="c", schedulerName="x")],
            [EDGE_NODES, EDGE_NODES, SelectNodes("a", "1"), EDGE_NODES, SetSchedulerName("x")],
            id="several rules, in order",
        ),
    ],
)
def test_edits(rules: list[Any], expected: list[Edit]) -> None:
    assert Result(Code.SUCCESS, tuple(expected), "", []) == mutate(space(), *rules)


NAME = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
NAMED, NOT_NAMED = {"matchFields": [NAME]}, {"matchFields": [NAME | {"operator": "NotIn"}]}
EXPRESSIONS = {"matchExpressions": [{"key": "arch", "operator": "Exists"}]}


def pinned(terms: list[Any], **owner: Any) -> Any:
    pod = owned(**({"apiVersion": "apps.kruise.io/v1alpha1"} | owner))
    pod["spec"] |= affine(*terms)
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pinned([NAMED, EXPRESSIONS]), id="one alternative of two"),
        pytest.param(pinned([NOT_NAMED]), id="any other node"),
        pytest.param(
            pinned([NAMED], apiVersion="kubevirt.io/v1", kind="VirtualMachineInstance"), id="VM"
        ),
    ],
)
def test_pod_that_may_run_on_several_nodes_is_placed(pod: Any) -> None:
    assert mutate(pod).edits == (EDGE_NODES,)


BOUND = "holdfast: not placed: spec.nodeName is already set: use a nodeSelector instead"
PINNED = "holdfast: not placed: its node affinity already names its node"
DAEMON = (
    "holdfast: not placed: the DaemonSet controller assigns its pods to nodes: set node affinity "
    "in its template instead"
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(space(nodeName="n1"), BOUND, id="bound"),
        pytest.param(owned(), DAEMON, id="of a DaemonSet"),
        pytest.param(pinned([NAMED]), PINNED, id="of a DaemonSet of another group"),
        pytest.param(pinned([NAMED, {**NAMED, **EXPRESSIONS}]), PINNED, id="two alternatives"),
    ],
)
def test_bound_or_pinned_pod_is_not_placed(pod: Any, expected: str) -> None:
    rejecting_rule = rule(onConflict="reject")

    assert only_warning(expected) == mutate(pod)
    assert only_warning(expected) == mutate(pod | {}, rejecting_rule)


@pytest.mark.parametrize(
    "replaced",
    [{"controller": False}, {"kind": "ReplicaSet"}, {"apiVersion": "x.io/v1"}],
    ids=["not the controller", "another kind", "another group"],
)
def test_owners_other_than_a_daemon_set_are_ignored(replaced: Any) -> None:
    assert mutate(owned(**replaced)).edits == (EDGE_NODES,)
