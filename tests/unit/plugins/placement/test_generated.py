"""Generated rules, pods and nodes."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import placement
from holdfast.webhook.plugins.placement_rules import NodeRequirement, Rule, RuleBook, When
from tests.support.builders import make_pod
from tests.support.config_cases import rule
from tests.support.fakes import apply_patch
from tests.support.generated import affinities, rule_parts
from tests.support.generated import nodes as node_lists
from tests.support.generated import pods as generated_pods
from tests.support.matching import admits, is_tightening, meets
from tests.unit.plugins.placement.placed import SPACE_POD, gated, mutate, release, validate

rule_lists = st.lists(rule_parts, min_size=1, max_size=2)


def named(parts: list[Any]) -> list[Any]:
    return [rule(**part, name=f"r{index}") for index, part in enumerate(parts)]


def allowed_by(rules: list[Any], node: Any) -> bool:
    labels = node["metadata"]["labels"]
    return all(
        all(meets(labels, requirement) for requirement in fields["require"])
        and all(labels.get(key) == value for key, value in fields.get("nodeSelector", {}).items())
        for fields in rules
    )


@given(generated_pods, rule_lists, node_lists)
def test_placed_pod_fits_exactly_the_nodes_that_pod_and_rules_allow(
    pod: Any, parts: list[Any], nodes: list[Any]
) -> None:
    rules = named(parts)
    pod["metadata"]["annotations"] = SPACE_POD
    try:
        result = mutate(pod, *rules)
    except ConfigurationError:
        assert not any(allowed_by(rules, node) for node in nodes)
        return
    patched = apply_patch(pod, patch(Pod.of(pod), result.edits))

    admitted = [admits(patched, node) for node in nodes]
    if placement._is_pinned(Pod.of(pod)):
        assert patched == pod
        return
    assert [admits(pod, node) and allowed_by(rules, node) for node in nodes] == admitted
    assert not (result.warnings and any(admitted))
    assert patch(Pod.of(patched), mutate(patched, *rules).edits) == []
    assert is_tightening(pod, patched)
    assert validate(patched, *rules).code is Code.SUCCESS


@given(generated_pods, st.lists(rule_parts, min_size=1, max_size=6))
def test_warning_names_the_first_rule_that_leaves_no_alternative(
    pod: Any, parts: list[Any]
) -> None:
    pod["metadata"]["annotations"] = SPACE_POD
    rules = named(parts)
    try:
        warning_lists = [
            list(mutate(pod, *rules[: count + 1]).warnings) for count in range(len(rules))
        ]
    except ConfigurationError:
        assume(False)
    if placement._is_pinned(Pod.of(pod)):
        return
    first = next((count for count, warnings in enumerate(warning_lists) if warnings), len(rules))

    assert warning_lists[first:] == warning_lists[first : first + 1] * (len(rules) - first)
    for (warning,) in warning_lists[first:]:
        assert warning.startswith(f"holdfast: rule r{first}: ")


@given(affinities, rule_parts, node_lists)
def test_release_and_creation_write_the_same_edits(
    affinity: Any, part: Any, nodes: list[Any]
) -> None:
    pod = gated(affinity=affinity)
    early_rule, late_rule = rule(**part), rule(**part, resolveAtRelease=True)
    try:
        at_creation = mutate(pod, early_rule).edits
    except ConfigurationError:
        assume(False)
    at_release = release(pod, late_rule).edits

    assert list(at_creation) == list(at_release)
    assert mutate(pod, late_rule).edits == ()


WORDS = st.sampled_from(["a", "b", "c", ""])
KEYS = st.sampled_from(["type", "kind"])
VALUES = st.fixed_dictionaries({}, optional={"equals": WORDS}) | st.fixed_dictionaries(
    {}, optional={"one_of": st.lists(WORDS, min_size=1, max_size=3).map(tuple)}
)
WHENS = st.builds(
    lambda field, key, value, namespaces: When(**{field: key}, **value, namespaces=namespaces),
    st.sampled_from(["annotation", "label"]),
    KEYS,
    VALUES,
    st.none() | st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2).map(tuple),
)
REQUIRE = (NodeRequirement(key="k", operator="Exists"),)
RULES = st.lists(WHENS, max_size=8).map(
    lambda whens: [
        Rule(name=f"rule-{number}", when=when, require=REQUIRE) for number, when in enumerate(whens)
    ]
)
ENTRIES = st.dictionaries(KEYS, WORDS, max_size=2)


@given(RULES, ENTRIES, ENTRIES, st.sampled_from(["", "x", "z"]))
def test_matching_rules_are_found_in_order(
    rules: list[Rule], annotations: dict[str, str], labels: dict[str, str], namespace: str
) -> None:
    """A rule book finds the same rules as checking each one would."""
    pod = Pod.of(make_pod(annotations, labels=labels))

    expected = [rule for rule in rules if rule.when.matches(pod, namespace)]
    assert RuleBook(rules).matching(pod, namespace) == expected
