"""Configuration files that are refused, and why: by `check-config`, and by the schema.

The tables are used by the tests of both; what follows the path in a message is its second column.
"""

from __future__ import annotations

from typing import Any

import pytest

from webhook import plugins, values

HEAD = "apiVersion: holdfast.dev/v1alpha1\nkind: HoldfastConfiguration\n"
SEE = "; docs/reference/configuration.md lists what is accepted"
BEGIN = "begin with 'apiVersion: holdfast.dev/v1alpha1', 'kind: HoldfastConfiguration'"
VALUE_CURE = "write at most 63 letters, digits, '-', '_' and '.', no '-', '_' or '.' at an end"
KEY_CURE = "write one such as example.com/kind"
ONE_TEST = "write exactly one of equals, in, and exists: true"

ROLE = "kubernetes.io/role"
EDGE = {"key": ROLE, "operator": "In", "values": ["edge"]}
SPACE: dict[str, Any] = {
    "name": "space",
    "when": {"annotation": "type", "equals": "space"},
    "require": [EDGE],
}


def rule(**fields: Any) -> dict[str, Any]:
    return SPACE | fields


def role(*values: str, operator: str = "In") -> Any:
    return {"key": ROLE, "operator": operator} | ({"values": list(values)} if values else {})


def of_delay(args: str) -> str:
    return f"profiles: [{{pluginConfig: [{{name: delay, args: {{{args}}}}}]}}]"


FILES: Any = [
    pytest.param("", f"h.yaml: is no mapping; {BEGIN}", id="empty"),
    pytest.param("- a", f"h.yaml: is no mapping; {BEGIN}", id="a list"),
    pytest.param(
        "kind: HoldfastConfiguration",
        "h.yaml: apiVersion: None is not supported; write holdfast.dev/v1alpha1",
        id="no apiVersion",
    ),
    pytest.param(
        "apiVersion: v1",
        "h.yaml: apiVersion: 'v1' is not supported; write holdfast.dev/v1alpha1",
        id="another apiVersion",
    ),
    pytest.param(
        "apiVersion: holdfast.dev/v1alpha1\nkind: Pod",
        "h.yaml: kind: 'Pod' is not supported; write HoldfastConfiguration",
        id="another kind",
    ),
    pytest.param(
        HEAD + "profile: []",
        "h.yaml: there is no field 'profile' here; did you mean profiles?",
        id="an unknown field",
    ),
    pytest.param(
        HEAD + "profiles: {}",
        "h.yaml: profiles: Expected `array`, got `object`" + SEE,
        id="a mapping for a list",
    ),
    pytest.param(
        HEAD + "profiles: []",
        "h.yaml: profiles: is empty; add one, or leave the key out",
        id="no profile",
    ),
    pytest.param(
        HEAD + "profiles: [{schedulerName: 5}]",
        "h.yaml: profiles[0].schedulerName: Expected `str`, got `int`" + SEE,
        id="a number for a name",
    ),
    pytest.param(
        HEAD + "profiles: [{schedulerName: ''}]",
        "h.yaml: profiles[0].schedulerName: is empty; name a scheduler, or write '*'",
        id="an empty name",
    ),
    pytest.param(
        HEAD + "profiles: [{}, {schedulerName: '*'}]",
        "h.yaml: profiles[1].schedulerName: '*' has a profile already; merge the two",
        id="a profile twice",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: dely}]}}]",
        "h.yaml: profiles[0].plugins.enabled[0].name: no plugin is named 'dely'; "
        "did you mean delay?",
        id="a misspelt plugin",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: delay}, {name: delay}]}}]",
        "h.yaml: profiles[0].plugins.enabled[1].name: 'delay' is enabled twice; enable it once",
        id="a plugin twice",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [delay]}}]",
        "h.yaml: profiles[0].plugins.enabled[0]: Expected `object`, got `str`" + SEE,
        id="a bare name",
    ),
    pytest.param(
        HEAD + "profiles: [{pluginConfig: [{name: Delay}]}]",
        "h.yaml: profiles[0].pluginConfig[0].name: no plugin is named 'Delay'; did you mean delay?",
        id="a configuration of no plugin",
    ),
    pytest.param(
        HEAD + "profiles: [{pluginConfig: [{name: delay}, {name: delay}]}]",
        "h.yaml: profiles[0].pluginConfig[1].name: 'delay' is configured twice; merge the two",
        id="a configuration twice",
    ),
    pytest.param(
        HEAD + of_delay("maxdelay: 1h"),
        "h.yaml: profiles[0].pluginConfig[0].args: there is no field 'maxdelay' here; "
        "did you mean maxDelay?",
        id="an unknown argument",
    ),
    pytest.param(
        HEAD + of_delay("maxDelay: 5"),
        "h.yaml: profiles[0].pluginConfig[0].args.maxDelay: Expected `str`, got `int`" + SEE,
        id="a number for a duration",
    ),
    pytest.param(
        HEAD + of_delay("maxDelay: 7d"),
        'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: "7d" is no duration; '
        + values.DELAY_ACCEPTED,
        id="an unreadable duration",
    ),
    pytest.param(
        HEAD + of_delay("onInvalid: refuse"),
        "h.yaml: profiles[0].pluginConfig[0].args.onInvalid: Invalid enum value 'refuse'" + SEE,
        id="an unknown choice",
    ),
    pytest.param(
        HEAD + of_delay("annotations: []"),
        "h.yaml: profiles[0].pluginConfig[0].args.annotations: is empty; "
        "name at least one annotation",
        id="no annotation",
    ),
    pytest.param(
        HEAD + of_delay("annotations: [a, a]"),
        "h.yaml: profiles[0].pluginConfig[0].args.annotations: a key is named twice; name it once",
        id="an annotation twice",
    ),
    pytest.param(
        HEAD + of_delay("annotations: [holdfast.dev/held]"),
        "h.yaml: profiles[0].pluginConfig[0].args.annotations: 'holdfast.dev/held' has another "
        "meaning; choose another",
        id="an annotation of ours",
    ),
    pytest.param(
        HEAD + of_delay("annotations: ['a b']"),
        'h.yaml: profiles[0].pluginConfig[0].args.annotations: "a b" is no annotation key; '
        "write one such as example.com/delay",
        id="an impossible annotation",
    ),
    pytest.param(
        HEAD + of_delay("annotations: [Example.com/delay]"),
        'h.yaml: profiles[0].pluginConfig[0].args.annotations: "Example.com/delay" is no '
        "annotation key; write one such as example.com/delay",
        id="an annotation whose domain is none",
    ),
    pytest.param(
        HEAD + of_delay("zzz: 1"),
        "h.yaml: profiles[0].pluginConfig[0].args: there is no field 'zzz' here" + SEE,
        id="an argument like no other",
    ),
    pytest.param(
        HEAD + "profiles: [{pluginConfig: [{nam: delay}]}]",
        "h.yaml: profiles[0].pluginConfig[0]: there is no field 'nam' here; did you mean name?",
        id="an unknown field within",
    ),
    pytest.param(
        HEAD + "profiles: [{schedulerNames: x}]",
        "h.yaml: profiles[0]: there is no field 'schedulerNames' here; did you mean schedulerName?",
        id="an unknown field of a profile",
    ),
    pytest.param(
        HEAD + "profiles: [{runAllFilters: 'no'}]",
        "h.yaml: profiles[0].runAllFilters: Expected `bool`, got `str`" + SEE,
        id="a word for a switch",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {disabled: [{name: dely}]}}]",
        "h.yaml: profiles[0].plugins.disabled[0].name: no plugin is named 'dely'; "
        "did you mean delay?",
        id="a misspelt plugin is disabled",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {disabled: [{name: '*'}, {name: '*'}]}}]",
        "h.yaml: profiles[0].plugins.disabled[1].name: '*' is disabled twice; disable it once",
        id="all plugins disabled twice",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: '*'}]}}]",
        "h.yaml: profiles[0].plugins.enabled[0].name: no plugin is named '*'; did you mean "
        f"{' or '.join(sorted(plugins.registry([])))}?",
        id="all plugins enabled",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {disabled: [{name: delay}]}, pluginConfig: "
        "[{name: delay, args: {maxDelay: 7d}}]}]",
        'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: "7d" is no duration; '
        + values.DELAY_ACCEPTED,
        id="arguments of a plugin that is not enabled",
    ),
    pytest.param(
        HEAD + "kind: Pod",
        "h.yaml: is no YAML: 'kind' stands here twice; keep one "
        'in "<byte string>", line 3, column 1: kind: Pod ^',
        id="a key twice",
    ),
    pytest.param(
        "a: &x 1\nb: *x",
        "h.yaml: is no YAML: aliases are not supported; write the value out "
        'in "<byte string>", line 2, column 4: b: *x ^',
        id="an alias",
    ),
    pytest.param(
        "? [a]\n: b",
        'h.yaml: is no YAML: while constructing a mapping in "<byte string>", line 1, '
        'column 1: ? [a] ^ found unhashable key in "<byte string>", line 1, column 3: ? [a] ^',
        id="a list for a key",
    ),
    pytest.param(
        "a: b: c",
        "h.yaml: is no YAML: mapping values are not allowed here "
        'in "<byte string>", line 1, column 5: a: b: c ^',
        id="broken YAML",
    ),
]

# what a rule's `when` cannot be; a message begins with `rules[0].when`
WHEN: Any = [
    pytest.param(
        {"equals": "x"},
        ": names neither annotation nor label; write one of them",
        id="neither",
    ),
    pytest.param(
        {"annotation": "a", "label": "b", "equals": "x"},
        ": names both annotation and label; keep one of them, or write two rules",
        id="both",
    ),
    pytest.param(
        {"annotation": "a b", "exists": True},
        f'.annotation: "a b" is no annotation key; {KEY_CURE}',
        id="an annotation that cannot be",
    ),
    pytest.param(
        {"label": "", "exists": True},
        f'.label: "" is no label key; {KEY_CURE}',
        id="an empty label",
    ),
    pytest.param({"annotation": "a"}, f": says nothing about the value; {ONE_TEST}", id="no test"),
    pytest.param(
        {"annotation": "a", "equals": "x", "in": ["x"]},
        f": has equals and in; {ONE_TEST}",
        id="two tests",
    ),
    pytest.param(
        {"annotation": "a", "equals": "x", "in": [], "exists": False},
        f": has equals and in and exists; {ONE_TEST}",
        id="three tests",
    ),
    pytest.param(
        {"annotation": "a", "exists": False},
        ".exists: can only be true; list the values with in",
        id="exists: false",
    ),
    pytest.param(
        {"annotation": "a", "in": []},
        ".in: is empty, so the rule can never match; name at least one value",
        id="in nothing",
    ),
    pytest.param(
        {"label": "a", "equals": "x y"},
        f'.equals: "x y" is no value of a label; {VALUE_CURE}',
        id="a value that no label has",
    ),
    pytest.param(
        {"label": "a", "in": ["x", "-"]},
        f'.in: "-" is no value of a label; {VALUE_CURE}',
        id="one of them",
    ),
    pytest.param(
        {"annotation": "a", "exists": True, "namespaces": []},
        ".namespaces: is empty, so the rule can never match; name at least one, or leave it out",
        id="in no namespace",
    ),
    pytest.param(
        {"annotation": "a", "exists": True, "namespaces": ["a", "B"]},
        '.namespaces: "B" is no namespace\'s name; write one such as default',
        id="a namespace that cannot be",
    ),
]

# fields with which a rule cannot be; a message begins with `rules[1]`
RULES: Any = [
    pytest.param(
        {"require": []},
        ": does nothing; write require, prefer, nodeSelector, tolerations or schedulerName",
        id="nothing",
    ),
    pytest.param(
        {"resolveAtRelease": True, "schedulerName": "x"},
        ".schedulerName: cannot be changed at release; move it to a rule of its own, without "
        "resolveAtRelease",
        id="schedulerName at release",
    ),
    pytest.param(
        {"resolveAtRelease": True, "tolerations": [{"operator": "Exists"}]},
        ".tolerations: cannot be added at release, where no policy on the creation of pods sees "
        "them; move them to a rule of their own, without resolveAtRelease",
        id="tolerations at release",
    ),
    pytest.param(
        {"require": [EDGE, {"key": "/x", "operator": "Exists"}]},
        f'.require[1].key: "/x" is no label key; {KEY_CURE}',
        id="a key that cannot be",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "In"}]},
        ".require[0].values: is empty; In needs at least one value",
        id="In nothing",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "NotIn", "values": []}]},
        ".require[0].values: is empty; NotIn needs at least one value",
        id="NotIn nothing",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "In", "values": ["a", "b c"]}]},
        f'.require[0].values: "b c" is no value of a label; {VALUE_CURE}',
        id="a value that no label has",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "Exists", "values": ["a"]}]},
        ".require[0].values: Exists takes none; leave values out",
        id="Exists with a value",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "DoesNotExist", "values": ["a"]}]},
        ".require[0].values: DoesNotExist takes none; leave values out",
        id="DoesNotExist with a value",
    ),
    *(
        pytest.param(
            {"require": [{"key": "x", "operator": operator, "values": values}]},
            f".require[0].values: {operator} needs exactly one whole number of 0 or more, "
            'such as ["8"]',
            id=f"{operator} {values}",
        )
        for operator, values in [
            ("Gt", []),
            ("Gt", ["1", "2"]),
            ("Lt", ["a"]),
            ("Lt", ["-1"]),
            ("Gt", ["9223372036854775808"]),
        ]
    ),
    pytest.param(
        {"require": [role("a"), role("b")]},
        f': no node can have "{ROLE} In [a]" and "{ROLE} In [b]"; mend or remove one',
        id="In, In",
    ),
    pytest.param(
        {"require": [role("a"), role("a", "b", operator="NotIn")]},
        f': no node can have "{ROLE} In [a]" and "{ROLE} NotIn [a, b]"; mend or remove one',
        id="NotIn covers In",
    ),
    pytest.param(
        {"require": [role(operator="Exists"), role(operator="DoesNotExist")]},
        f': no node can have "{ROLE} Exists" and "{ROLE} DoesNotExist"; mend or remove one',
        id="Exists, DoesNotExist",
    ),
    pytest.param(
        {"nodeSelector": {ROLE: "core"}},
        f': no node can have "{ROLE} In [edge]" and "{ROLE} In [core]"; mend or remove one',
        id="against its own nodeSelector",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "Lt", "values": ["0"]}]},
        ': no node can have "x Lt [0]"; mend or remove one',
        id="Lt 0",
    ),
    pytest.param(
        {"prefer": [{"weight": 1, "require": []}]},
        ".prefer[0].require: is empty; name at least one requirement",
        id="a preference of nothing",
    ),
    pytest.param(
        {"prefer": [{"weight": 1, "require": [role("a"), role("b")]}]},
        f'.prefer[0]: no node can have "{ROLE} In [a]" and "{ROLE} In [b]"; mend or remove one',
        id="a preference that cannot be",
    ),
    pytest.param(
        {"prefer": [{"weight": 1, "require": [{"key": "", "operator": "Exists"}]}]},
        f'.prefer[0].require[0].key: "" is no label key; {KEY_CURE}',
        id="a preference's key",
    ),
    pytest.param(
        {"nodeSelector": {"a b": "x"}},
        f'.nodeSelector: "a b" is no label key; {KEY_CURE}',
        id="nodeSelector's key",
    ),
    pytest.param(
        {"nodeSelector": {"a": "x y"}},
        f'.nodeSelector: "x y" is no value of a label; {VALUE_CURE}',
        id="nodeSelector's value",
    ),
    pytest.param(
        {"tolerations": [{"key": "a b"}]},
        f'.tolerations[0].key: "a b" is no taint key; {KEY_CURE}',
        id="a taint's key",
    ),
    pytest.param(
        {"tolerations": [{"value": "x"}]},
        ".tolerations[0].operator: must be Exists where there is no key",
        id="Equal without a key",
    ),
    pytest.param(
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
        ".tolerations[0].value: Exists takes none; leave value out",
        id="a taint that exists with a value",
    ),
    pytest.param(
        {"tolerations": [{"key": "a"}, {"key": "a", "value": "x y"}]},
        f'.tolerations[1].value: "x y" is no value of a label; {VALUE_CURE}',
        id="a taint's value",
    ),
    pytest.param(
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]},
        ".tolerations[0].tolerationSeconds: goes with effect NoExecute alone; leave it out, or "
        "write that effect",
        id="seconds without NoExecute",
    ),
]

# fields of another type
SHAPES: Any = [
    pytest.param(
        {"prefer": [{"weight": 0, "require": [EDGE]}]},
        "rules[0].prefer[0].weight: Expected `int` >= 1",
        id="no weight",
    ),
    pytest.param(
        {"prefer": [{"weight": 101, "require": [EDGE]}]},
        "rules[0].prefer[0].weight: Expected `int` <= 100",
        id="too heavy",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "in", "values": ["a"]}]},
        "rules[0].require[0].operator: Invalid enum value 'in'",
        id="an operator that is none",
    ),
    pytest.param(
        {"onConflict": "fail"},
        "rules[0].onConflict: Invalid enum value 'fail'",
        id="onConflict",
    ),
    pytest.param(
        {"when": {"annotation": "a", "equal": "x"}},
        "rules[0].when: there is no field 'equal' here; did you mean equals",
        id="a field that is none",
    ),
]

TWICE = "a schema compares no two profiles, arguments or rules by their names"
NODES = "which requirements contradict each other is beyond a schema"
CODE_ALONE = {
    "a profile twice": TWICE,
    "a configuration twice": TWICE,
    "an annotation of ours": "a list of reserved keys in the schema would be a second truth",
    "a value that no label has: when": "the value of an annotation may be anything",
    "one of them: when": "the value of an annotation may be anything",
    "In, In": NODES,
    "NotIn covers In": NODES,
    "Exists, DoesNotExist": NODES,
    "against its own nodeSelector": NODES,
    "Lt 0": NODES,
    "a preference that cannot be": NODES,
    "Gt ['9223372036854775808']": "a pattern counts digits, it does not compare numbers",
}
"""The cases, by their ids, that only a check in code can find, and why."""
