"""Requirements that no node can meet."""

from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Code, Context, Result
from holdfast.webhook.model import review
from tests.support.builders import CREATED_MS, read_review
from tests.support.config_cases import EDGE, ROLE, SPACE, role, rule
from tests.support.counting import counted
from tests.unit.plugins.placement.placed import (
    EDGE_NODES,
    IN_EDGE,
    affine,
    mutate,
    only_warning,
    place,
    release,
    requiring,
    space,
    stored,
    validate_template,
)

IN_CORE = f'"{ROLE} In [core]"'


@pytest.mark.parametrize(
    ("spec", "opposed"),
    [
        pytest.param({"nodeSelector": {ROLE: "core"}}, f"nodeSelector {IN_CORE}", id="selector"),
        pytest.param(requiring(role("core")), f"node affinity {IN_CORE}", id="a term"),
        pytest.param(
            affine(
                {},
                {"matchExpressions": [role("core")]},
                {"matchExpressions": [role(operator="DoesNotExist")]},
            ),
            f"node affinity {IN_CORE}",
            id="every term, ignoring an empty one",
        ),
        pytest.param(
            {"nodeSelector": {ROLE: "a\n\u202e" + "b" * 200}},
            f'nodeSelector "{ROLE} In [a\\n\\u202e{"b" * 28}…" (227 characters)',
            id="hostile value is escaped",
        ),
    ],
)
def test_contradiction(spec: Any, opposed: str) -> None:
    pod, expected = space(**spec), f"rule space: {IN_EDGE} contradicts {opposed}"
    warning_result = Result(Code.SUCCESS, (EDGE_NODES,), "", [f"holdfast: {expected}"])
    rejection = Result(Code.REJECT, (), expected)

    assert warning_result == mutate(pod)
    assert rejection == mutate(pod, rule(onConflict="reject"))
    assert only_warning(f"holdfast: {expected}") == validate_template(pod)
    assert rejection == validate_template(pod, rule(onConflict="reject"))


def test_two_requirements_contradict_only_together() -> None:
    bounded = {"key": "size", "operator": "In", "values": ["2", "9"]}
    spec = requiring({"key": "size", "operator": "Gt", "values": ["5"]})
    below = {"key": "size", "operator": "Lt", "values": ["9"]}

    (warning,) = mutate(space(**spec), rule(require=[bounded, below])).warnings

    assert warning == (
        'holdfast: rule space: "size In [2, 9]" and "size Lt [9]" contradict node affinity "size '
        'Gt [5]"'
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeSelector": {ROLE: "edge"}}, id="requires the same"),
        pytest.param(
            affine({"matchExpressions": [role("core")]}, {"matchExpressions": [role("edge")]}),
            id="one satisfiable term",
        ),
        pytest.param(affine({}), id="already unsatisfiable: empty term"),
        pytest.param(requiring(role("a"), role("b")), id="already unsatisfiable"),
    ],
)
def test_no_contradiction(spec: Any) -> None:
    assert Result(Code.SUCCESS, (EDGE_NODES,), "", []) == mutate(
        space(**spec), rule(onConflict="reject")
    )


def test_two_rules_that_contradict_each_other() -> None:
    core = rule(name="core", require=[role("core")])
    text = f"rule core: {IN_CORE} contradicts rule space {IN_EDGE}"

    assert list(mutate(space(), SPACE, core).warnings) == [f"holdfast: {text}"]
    assert mutate(space(), SPACE, core | {"onConflict": "reject"}).reason == text


def test_only_the_first_conflicting_label_is_reported() -> None:
    spec = {"nodeSelector": {"zone": "a", ROLE: "core"}}
    zoned_rule = rule(require=[EDGE], nodeSelector={"zone": "b"})

    assert list(mutate(space(**spec), zoned_rule).warnings) == [
        f'holdfast: rule space: {IN_EDGE} contradicts nodeSelector "{ROLE} In [core]"'
    ]


@pytest.mark.timeout(60)
def test_hostile_pod_is_reviewed_quickly() -> None:
    """With pairwise comparisons, each pod would take minutes."""
    labels = {str(number): "x" for number in range(20_000)}
    any_term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    requirements = [role(f"core-{number}") for number in range(20_000)]

    assert mutate(space(nodeSelector=labels, **affine(*[any_term] * 300))).warnings == []
    assert len(mutate(space(**affine({"matchExpressions": requirements}))).warnings) == 0
    assert len(mutate(space(**requiring(*[role("core")] * 20_000))).warnings) == 1


def labelled(count: int) -> list[Any]:
    """Return rules for the same pods, each of which requires a different label."""
    requirements = [{"key": f"l{number}", "operator": "Exists"} for number in range(count)]
    return [
        rule(name=f"r{number}", require=[requirement])
        for number, requirement in enumerate(requirements)
    ]


def alternatives(count: int) -> Any:
    return affine(*({"matchExpressions": [role(f"x{number}")]} for number in range(count)))


@pytest.mark.parametrize("last", [[], [rule(name="late")]], ids=["no conflict", "a conflict"])
def test_work_grows_linearly_with_the_rules(last: list[Any]) -> None:
    pod_review = read_review(space(**alternatives(100)))

    def work(count: int) -> int:
        plugin = place(*labelled(count), *last)
        with counted() as steps:
            result = plugin.mutate(pod_review.pod, Context(pod_review, "*", CREATED_MS))
            assert len(result.warnings) == len(last)
            plugin.validate(pod_review.pod, Context(pod_review, "*", CREATED_MS))
        return steps[0]

    assert work(32) <= 4 * work(8)


def test_too_many_added_requirements_are_rejected() -> None:
    reason = (
        "the placement rules add 10,010 requirements to the 1,001 terms of "
        "spec.affinity.nodeAffinity, more than the limit of 10,000: remove terms"
    )
    rules = labelled(10)
    late_rules = [fields | {"resolveAtRelease": True} for fields in rules]
    pod = space(**alternatives(1_001))

    assert Result(Code.REJECT, (), reason) == mutate(pod, *rules)
    assert Result(Code.REJECT, (), reason) == mutate(pod, *late_rules, held=True)
    assert Result(Code.REJECT, (), reason) == validate_template(pod, *rules)
    assert Result(Code.REJECT, (), reason) == release(pod, *late_rules)
    for allowed_pod in (space(**alternatives(1_000)), space(**affine(*[{}] * 2_000))):
        assert mutate(allowed_pod, *rules).code is Code.SUCCESS
        assert release(allowed_pod, *late_rules).code is Code.SUCCESS


@pytest.mark.parametrize(
    ("own", "warned"),
    [
        pytest.param({"tolerationSeconds": 6}, "6 s", id="shorter"),
        pytest.param({"key": "", "tolerationSeconds": 6}, "6 s", id="all taints"),
        pytest.param({"tolerationSeconds": 300}, "", id="the default, which is replaced"),
        pytest.param({"tolerationSeconds": 7200}, "", id="longer"),
        pytest.param({}, "", id="without limit"),
        pytest.param({"key": "other", "tolerationSeconds": 6}, "", id="another taint"),
        pytest.param({"operator": "Equal", "value": "x", "tolerationSeconds": 6}, "", id="a value"),
    ],
)
def test_pod_with_a_shorter_toleration_gets_a_warning(own: dict[str, Any], warned: str) -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    rules = [rule(require=[], tolerations=[{**taint, "tolerationSeconds": 3600}])]
    pod = space(tolerations=[{**taint, **own}])
    warning = (
        "holdfast: rule space: the pod's own toleration of "
        f'"node.kubernetes.io/unreachable" lasts {warned} and comes first: it counts instead of '
        "the rule's (3600 s)"
    )
    expected = [warning] if warned else []
    assert expected == list(mutate(pod, *rules).warnings)
    assert expected == list(mutate(stored(pod, *rules), *rules).warnings)


def test_warnings_are_short() -> None:
    longest_rule = rule(name="n" * 20, require=[role("e" * 60)])
    (warning,) = mutate(space(nodeSelector={ROLE: "c" * 60}), longest_rule).warnings

    assert len(mutate(space(nodeSelector={ROLE: "core"})).warnings[0]) <= 120
    assert len(warning) <= review.WARNING_LENGTH
