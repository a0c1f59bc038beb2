"""Which pods a rule applies to, and how that is registered."""

import json
from typing import Any

import pytest

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.registration import configurations
from tests.support.builders import make_pod, make_profiles
from tests.support.config_cases import SPACE, rule
from tests.support.scripted import profiles_of
from tests.unit.plugins.placement.placed import SPACE_POD, mutate, place


def test_match_of_one_rule() -> None:
    when = {"annotation": "a", "equals": "it's", "namespaces": ["x", "y"]}

    assert place(rule(when=when)).match("object.spec.template") == (
        "object.?spec.?template.?metadata.?annotations.optMap(entries, 'a' in entries && "
        "(entries['a'] in ['it\\'s'] && request.namespace in ['x', 'y'])).orValue(false)"
    )


def test_match_merges_rules_with_the_same_key() -> None:
    whens: list[Any] = [
        {"annotation": "type", "in": ["a", "space"]},
        {"annotation": "type", "exists": True, "namespaces": ["x"]},
        {"annotation": "type", "equals": "b", "namespaces": ["x"]},
        {"label": "c", "exists": True},
        {"label": "c", "equals": "d"},
        {"annotation": "e", "equals": ""},
    ]
    plugin = place(SPACE, *(rule(name=f"r{index}", when=when) for index, when in enumerate(whens)))

    assert plugin.match("object") == (
        "object.?metadata.?annotations.optMap(entries, 'type' in entries && "
        "(entries['type'] in ['space', 'a'] || request.namespace in ['x']) || "
        "'e' in entries && (entries['e'] in [''])).orValue(false) || "
        "object.?metadata.?labels.optMap(entries, 'c' in entries && (true)).orValue(false)"
    )


def test_match_of_many_keys_uses_lookup_tables() -> None:
    """API servers need quadratic time to compile one comparison per key."""
    whens: list[Any] = [{"annotation": f"k{index}", "equals": "v"} for index in range(19)]
    whens.append({"annotation": "k0", "equals": "w", "namespaces": ["x", "y"]})
    whens.append({"annotation": "k1", "exists": True, "namespaces": ["y"]})
    expression = place(
        *(rule(name=f"r{index}", when=when) for index, when in enumerate(whens))
    ).match("object")

    entries = ", ".join(f"'k{index}': ['v']" for index in range(19))
    test = (
        "exists(key, key in entries && key in tables[at] && "
        "(tables[at][key] == [] || entries[key] in tables[at][key]))"
    )
    assert expression == (
        "object.?metadata.?annotations.optMap(entries, "
        f"[[{{{entries}}}, {{'k0': ['w']}}, {{'k1': []}}]].exists(tables, "
        "([0] + {'x': [1], 'y': [1, 2]}[?request.namespace].orValue([])).exists(at, "
        f"size(entries) < size(tables[at]) ? entries.{test} : tables[at].{test}))).orValue(false)"
    )


LIMIT = configurations.MAX_EXPRESSION_CHARACTERS


@pytest.mark.parametrize(
    ("rules", "keys", "namespaces", "longest"),
    [
        pytest.param(500, 1, 0, LIMIT / 4, id="500 rules for one key"),
        pytest.param(38, 1, 50, LIMIT * 2 / 3, id="38 rules with 50 namespaces each"),
        pytest.param(1_000, 1_000, 0, LIMIT / 3, id="1,000 rules for different keys"),
        pytest.param(1_000, 1, 1, LIMIT * 2 / 3, id="1,000 rules for different namespaces"),
    ],
)
def test_match_conditions_stay_below_the_limit(
    rules: int, keys: int, namespaces: int, longest: float
) -> None:
    whens: list[Any] = [
        {"annotation": f"type-{index % keys}", "equals": f"kind-{index}"} for index in range(rules)
    ]
    for index, when in enumerate(whens if namespaces else ()):
        when["namespaces"] = [f"namespace-{index}-{number}" for number in range(namespaces)]
    plugin = place(*(rule(name=f"r{index}", when=when) for index, when in enumerate(whens)))

    expressions = configurations.expressions(profiles_of(plugin))
    assert max(map(len, expressions.values())) < longest


def test_rules_with_too_long_match_conditions_are_rejected() -> None:
    values = [f"{number:060}" for number in range(2_000)]
    rules = [
        rule(name=f"r{index}", when={"label": "a", "in": values[index::40]}) for index in range(40)
    ]
    profile = {"pluginConfig": [{"name": "placement", "args": {"rules": rules}}]}
    with pytest.raises(ConfigurationError) as error:
        make_profiles(f"profiles: [{json.dumps(profile)}]")

    assert str(error.value).startswith(
        "test.yaml: profiles: 40 placement rules make the match condition of webhook "
    )
    assert str(error.value).endswith(
        " characters long, but API servers accept 100,000: use fewer rules, values and namespaces, "
        "or let rules share keys and lists of namespaces"
    )


@pytest.mark.parametrize(
    ("when", "annotations", "labels", "expected"),
    [
        pytest.param({"annotation": "a", "equals": "x"}, {"a": "x"}, {}, True, id="equals"),
        pytest.param({"annotation": "a", "equals": ""}, {"a": ""}, {}, True, id="empty"),
        pytest.param({"annotation": "a", "equals": ""}, {}, {}, False, id="empty is not absent"),
        pytest.param({"annotation": "a", "equals": "x"}, {}, {"a": "x"}, False, id="a label only"),
        pytest.param({"label": "a", "in": ["x", "y"]}, {}, {"a": "y"}, True, id="in"),
        pytest.param({"label": "a", "exists": True}, {}, {"a": ""}, True, id="exists"),
        pytest.param({"label": "a", "exists": True}, {}, {"b": ""}, False, id="does not exist"),
    ],
)
def test_concerns(when: Any, annotations: Any, labels: Any, expected: bool) -> None:
    plugin = place(rule(when=when))

    assert plugin.concerns(Pod.of(make_pod(annotations, labels=labels))) is expected


@pytest.mark.parametrize(
    ("own", "requested", "concerned", "placed"),
    [
        pytest.param("space", "space", True, True, id="matching"),
        pytest.param("", "space", True, True, id="matching, from the request"),
        pytest.param("default", "default", False, False, id="other"),
        pytest.param("", "default", True, False, id="other, from the request"),
    ],
)
def test_namespaces(own: str, requested: str, concerned: bool, placed: bool) -> None:
    limited_rule = rule(when={"annotation": "type", "exists": True, "namespaces": ["space"]})
    pod = make_pod(SPACE_POD, namespace=own)

    assert place(limited_rule).concerns(Pod.of(pod)) is concerned
    assert (mutate(pod, limited_rule, namespace=requested).code is Code.SUCCESS) is placed
