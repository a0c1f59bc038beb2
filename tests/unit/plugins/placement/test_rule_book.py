"""A rule book finds the same rules, in the same order, as checking each one would."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.placement_rules import NodeRequirement, Rule, RuleBook, When
from tests.support.builders import make_pod

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
    pod = Pod.of(make_pod(annotations, labels=labels))

    expected = [rule for rule in rules if rule.when.matches(pod, namespace)]
    assert RuleBook(rules).matching(pod, namespace) == expected


def test_rules_for_any_value_keep_their_position() -> None:
    whens = [When(annotation="type", equals="a"), When(annotation="type", exists=True)]
    whens += [When(annotation="type", one_of=("a", "b")), When(annotation="type", equals="c")]
    rules = [
        Rule(name=f"rule-{number}", when=when, require=REQUIRE) for number, when in enumerate(whens)
    ]

    def names(value: str) -> list[str]:
        matches = RuleBook(rules).matching(Pod.of(make_pod({"type": value})), "default")
        return [rule.name for rule in matches]

    assert names("a") == ["rule-0", "rule-1", "rule-2"]
    assert names("b") == ["rule-1", "rule-2"]
    assert names("d") == ["rule-1"]
