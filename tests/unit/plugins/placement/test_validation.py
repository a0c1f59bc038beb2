"""Rejections and warnings, for pods and for templates of workloads."""

from typing import Any

import pytest

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model import messages
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.placement import PLACED
from tests.support.builders import make_pod
from tests.support.config_cases import EDGE, ROLE, SPACE, role, rule
from tests.support.fakes import apply_patch
from tests.unit.plugins.placement.placed import (
    IN_EDGE,
    LATE,
    SPACE_POD,
    affine,
    gated,
    only_warning,
    owned,
    place,
    requiring,
    space,
    stored,
    validate,
    validate_template,
)


def missing(requirement: str = IN_EDGE) -> Result:
    return Result(
        Code.REJECT,
        (),
        f"rule space: the pod lacks the node requirement {requirement}: another mutating webhook "
        f"removed it, or made the rule match after Holdfast ran: {messages.CALL_LAST}",
    )


@pytest.mark.parametrize(
    ("pod", "rules", "expected"),
    [
        pytest.param(make_pod(), [SPACE], Result(Code.SKIP), id="no matching rule"),
        pytest.param(space(), [SPACE], missing(), id="nothing required"),
        pytest.param(
            space(**affine({}, {"matchExpressions": [EDGE]})), [SPACE], Result(), id="empty term"
        ),
        pytest.param(space(**affine({})), [SPACE], Result(), id="only an empty term"),
        pytest.param(
            space(**affine({"matchExpressions": [EDGE]}, {"matchExpressions": [role("core")]})),
            [SPACE],
            missing(),
            id="one term without it",
        ),
        pytest.param(space(nodeSelector={ROLE: "edge"}), [SPACE], Result(), id="in nodeSelector"),
        pytest.param(
            space(),
            [rule(nodeSelector={"zone": "a"})],
            missing(f'{IN_EDGE} and "zone In [a]"'),
            id="both",
        ),
        pytest.param(owned(), [SPACE], Result(Code.SKIP), id="of a DaemonSet"),
        pytest.param(gated(), [rule(resolveAtRelease=True)], Result(), id="deferred to release"),
        pytest.param(space(), [rule(resolveAtRelease=True)], missing(), id="not held"),
        pytest.param(
            space(), [rule(require=[], schedulerName="x")], Result(), id="schedulerName is a hint"
        ),
        pytest.param(
            space(nodeSelector={ROLE: "core"}, **requiring(EDGE)),
            [rule(onConflict="reject")],
            Result(),
            id="contradictions are left to mutate",
        ),
    ],
)
def test_validate(pod: Any, rules: list[Any], expected: Result) -> None:
    assert expected == validate(pod, *rules)


def record(pod: Any) -> list[str]:
    return [entry.partition("@")[0] for entry in pod["metadata"]["annotations"][PLACED].split(",")]


def test_rules_that_placed_a_pod_are_recorded() -> None:
    pod = stored(gated(), SPACE, LATE)
    stripped_pod = {**pod, "spec": space()["spec"]}
    released_pod = apply_patch(pod, patch(Pod.of(pod), place(LATE).at_release(Pod.of(pod)).edits))

    assert record(pod) == ["space"]
    assert record(released_pod) == ["space", "late"]
    assert validate(pod, SPACE, LATE) == Result()
    assert validate(stripped_pod, SPACE) == missing()


def test_forged_record_is_discarded() -> None:
    annotations = SPACE_POD | {PLACED: "space@00000000,other@00000000"}
    held_pod = stored(gated(annotations=annotations), LATE)

    assert record(stored(space(annotations), SPACE)) == ["space"]
    assert PLACED not in held_pod["metadata"]["annotations"]


def test_pod_placed_by_another_version_of_a_rule_is_admitted() -> None:
    """During a rollout, replicas with old and new rules serve at the same time."""
    old_rule, new_rule = SPACE, rule(require=[role("edge", "far-edge")])
    warning = "holdfast: rule space is being changed: the pod was placed by another version of it"

    assert validate(stored(space(), old_rule), new_rule) == Result(warnings=(warning,))
    assert validate(stored(space(), new_rule), old_rule) == Result(warnings=(warning,))
    assert validate(stored(space(), rule(name="other")), new_rule) == missing(
        f'"{ROLE} In [edge, far-edge]"'
    )


def test_updates_are_skipped() -> None:
    assert Result(Code.SKIP) == validate(space(), operation="UPDATE", old=space())


@pytest.mark.parametrize(
    ("pod", "kind", "expected"),
    [
        pytest.param({"metadata": {}}, "Deployment", Result(Code.SKIP), id="no matching rule"),
        pytest.param(
            {"metadata": {"annotations": SPACE_POD}},
            "DaemonSet",
            only_warning(
                "holdfast: the pods will not be placed: the DaemonSet controller assigns its pods "
                "to nodes: set node affinity in its template instead"
            ),
            id="of a DaemonSet",
        ),
        pytest.param(
            {"metadata": {"annotations": SPACE_POD}, "spec": {"nodeName": "n1"}},
            "Deployment",
            only_warning(
                "holdfast: the pods will not be placed: spec.nodeName is already set: use a "
                "nodeSelector instead"
            ),
            id="bound",
        ),
    ],
)
def test_validate_template(pod: Any, kind: str, expected: Result) -> None:
    assert expected == validate_template(pod, kind=kind)
    assert expected == validate_template(pod, kind=kind, operation="UPDATE")
