"""Rules that apply at release."""

from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model.edits import Edit, SelectNodes
from holdfast.webhook.model.objects import Pod
from tests.support.config_cases import SPACE
from tests.unit.plugins.placement.placed import (
    EDGE_NODES,
    LATE,
    gated,
    mutate,
    place,
    release,
    space,
)

LATE_EDITS = (EDGE_NODES, SelectNodes("zone", "a"))


@pytest.mark.parametrize(
    ("pod", "held", "expected"),
    [
        pytest.param(space(), True, (EDGE_NODES,), id="held by a plugin"),
        pytest.param(gated(), False, (EDGE_NODES,), id="has a Holdfast gate"),
        pytest.param(
            space(schedulingGates=[{"name": "a.io/b"}]),
            False,
            (EDGE_NODES, *LATE_EDITS),
            id="has a third-party gate",
        ),
        pytest.param(space(), False, (EDGE_NODES, *LATE_EDITS), id="not held"),
    ],
)
def test_late_rules_are_deferred_while_the_pod_is_held(
    pod: Any, held: bool, expected: tuple[Edit, ...]
) -> None:
    assert Result(Code.SUCCESS, expected, "", []) == mutate(pod, SPACE, LATE, held=held)


def test_contradiction_of_a_deferred_rule_is_reported_at_creation() -> None:
    pod = gated(nodeSelector={"zone": "b"})
    text = 'rule late: "zone In [a]" contradicts nodeSelector "zone In [b]"'

    assert Result(Code.SUCCESS, (), "", [f"holdfast: {text}"]) == mutate(pod, LATE)
    assert Result(Code.REJECT, (), text) == mutate(pod, LATE | {"onConflict": "reject"})
    assert Result(Code.SUCCESS, LATE_EDITS, "", [text]) == release(pod, LATE)


ELSEWHERE = {"annotation": "type", "exists": True, "namespaces": ["other"]}


@pytest.mark.parametrize(
    ("pod", "rules", "expected"),
    [
        pytest.param(gated(), [SPACE, LATE], LATE_EDITS, id="only the deferred rule"),
        pytest.param(gated(), [SPACE], None, id="no deferred rule"),
        pytest.param(gated(annotations={"type": "ground"}), [LATE], None, id="no longer matches"),
        pytest.param(gated(), [LATE | {"when": ELSEWHERE}], None, id="another namespace"),
        pytest.param(gated(nodeName="n1"), [LATE], None, id="bound"),
    ],
)
def test_at_release(pod: Any, rules: list[Any], expected: tuple[Edit, ...] | None) -> None:
    assert place(*rules).concerns_at_release(Pod.of(pod)) or expected is None
    assert release(pod, *rules) == (
        Result(Code.SKIP) if expected is None else Result(edits=expected, warnings=[])
    )
