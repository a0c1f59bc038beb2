"""Invalid configuration files, with the messages of `check-config` and of the schema.

Each row has the file, and what the message says after the path of the field.
"""

from typing import Any

import pytest

from holdfast.webhook import plugins
from holdfast.webhook.model import durations

HEAD = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"
SEE = ": see docs/reference/configuration.md"
BEGIN = "begin with 'apiVersion: holdfast.dev/v1beta1', 'kind: HoldfastConfiguration'"
VALUE_FIX = "use up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
KEY_FIX = "use one like example.com/kind"
ONE_TEST = "use exactly one of equals, in, and exists: true"

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
    pytest.param("", f"h.yaml: not a mapping: {BEGIN}", id="empty"),
    pytest.param("- a", f"h.yaml: not a mapping: {BEGIN}", id="a list"),
    pytest.param(
        "apiVersion: v1",
        "h.yaml: apiVersion: 'v1' is not supported: use holdfast.dev/v1beta1",
        id="another apiVersion",
    ),
    pytest.param(
        "apiVersion: holdfast.dev/v1beta1\nkind: Pod",
        "h.yaml: kind: 'Pod' is not supported: use HoldfastConfiguration",
        id="another kind",
    ),
    pytest.param(
        HEAD + "profile: []",
        "h.yaml: unknown field 'profile': did you mean profiles?",
        id="an unknown field",
    ),
    pytest.param(
        HEAD + "profiles: []",
        "h.yaml: profiles: must not be empty: add a profile, or remove the key",
        id="no profile",
    ),
    pytest.param(
        HEAD + "profiles: [{schedulerName: 5}]",
        "h.yaml: profiles[0].schedulerName: Expected `str`, got `int`" + SEE,
        id="a number for a name",
    ),
    pytest.param(
        HEAD + "profiles: [{schedulerName: ''}]",
        "h.yaml: profiles[0].schedulerName: must not be empty: use a scheduler or '*'",
        id="an empty name",
    ),
    pytest.param(
        HEAD + "profiles: [{}, {schedulerName: '*'}]",
        "h.yaml: profiles[1].schedulerName: '*' has two profiles: merge them",
        id="a profile twice",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: dely}]}}]",
        "h.yaml: profiles[0].plugins.enabled[0].name: unknown plugin 'dely': did you mean delay?",
        id="a misspelt plugin",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: delay}, {name: delay}]}}]",
        "h.yaml: profiles[0].plugins.enabled[1].name: 'delay' is listed twice: remove one",
        id="a plugin twice",
    ),
    pytest.param(
        HEAD + "profiles: [{pluginConfig: [{name: delay}, {name: delay}]}]",
        "h.yaml: profiles[0].pluginConfig[1].name: 'delay' is listed twice: remove one",
        id="a configuration twice",
    ),
    pytest.param(
        HEAD + of_delay("maxdelay: 1h"),
        "h.yaml: profiles[0].pluginConfig[0].args: unknown field 'maxdelay': did you mean "
        "maxDelay?",
        id="an unknown argument",
    ),
    pytest.param(
        HEAD + of_delay("maxDelay: 7d"),
        'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: invalid value "7d": '
        'the units are h, m, s and ms ("168h"); ' + durations.DELAY_ACCEPTED,
        id="an unreadable duration",
    ),
    pytest.param(
        HEAD + of_delay("onInvalid: refuse"),
        "h.yaml: profiles[0].pluginConfig[0].args.onInvalid: Invalid enum value 'refuse': "
        "use ignore or reject",
        id="an unknown choice",
    ),
    pytest.param(
        HEAD + of_delay("annotations: []"),
        "h.yaml: profiles[0].pluginConfig[0].args.annotations: must not be empty: name at "
        "least one annotation",
        id="no annotation",
    ),
    pytest.param(
        HEAD + of_delay("annotations: [a, a]"),
        ("h.yaml: profiles[0].pluginConfig[0].args.annotations: duplicate key: name each key once"),
        id="an annotation twice",
    ),
    pytest.param(
        HEAD + of_delay("annotations: [holdfast.dev/held]"),
        "h.yaml: profiles[0].pluginConfig[0].args.annotations: 'holdfast.dev/held' is "
        "reserved: use another key",
        id="an annotation of ours",
    ),
    pytest.param(
        HEAD + of_delay("annotations: ['a b']"),
        'h.yaml: profiles[0].pluginConfig[0].args.annotations: "a b" is not a valid '
        "annotation key: use one like example.com/delay",
        id="an impossible annotation",
    ),
    pytest.param(
        HEAD + of_delay("zzz: 1"),
        "h.yaml: profiles[0].pluginConfig[0].args: unknown field 'zzz': use annotations, "
        "maxDelay, onInvalid, schedulerName",
        id="an argument like no other",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {enabled: [{name: '*'}]}}]",
        "h.yaml: profiles[0].plugins.enabled[0].name: unknown plugin '*': did you mean "
        f"{' or '.join(sorted(plugins.registry([])))}?",
        id="all plugins enabled",
    ),
    pytest.param(
        HEAD + "profiles: [{plugins: {disabled: [{name: delay}]}, pluginConfig: "
        "[{name: delay, args: {maxDelay: soon}}]}]",
        'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: invalid value "soon": '
        + durations.DELAY_ACCEPTED,
        id="arguments of a plugin that is not enabled",
    ),
    pytest.param(
        HEAD + "kind: Pod",
        "h.yaml: invalid YAML: duplicate key 'kind': remove one in \"<byte string>\", line "
        "3, column 1: kind: Pod ^",
        id="a key twice",
    ),
    pytest.param(
        "? [a]\n: b",
        'h.yaml: invalid YAML: while constructing a mapping in "<byte string>", line 1, '
        'column 1: ? [a] ^ found unhashable key in "<byte string>", line 1, column 3: ? '
        "[a] ^",
        id="a list for a key",
    ),
    pytest.param(
        "a: b: c",
        'h.yaml: invalid YAML: mapping values are not allowed here in "<byte string>", '
        "line 1, column 5: a: b: c ^",
        id="broken YAML",
    ),
]

# what a rule's `when` cannot be; a message begins with `rules[0].when`
WHEN: Any = [
    pytest.param({"equals": "x"}, ": must have either annotation or label: add one", id="neither"),
    pytest.param(
        {"annotation": "a", "label": "b", "equals": "x"},
        ": must not have both annotation and label: remove one, or write two rules",
        id="both",
    ),
    pytest.param(
        {"annotation": "a b", "exists": True},
        f'.annotation: "a b" is not a valid annotation key: {KEY_FIX}',
        id="an annotation that cannot be",
    ),
    pytest.param({"annotation": "a"}, f": has no test of the value: {ONE_TEST}", id="no test"),
    pytest.param(
        {"annotation": "a", "equals": "x", "in": ["x"]},
        f": has equals and in: {ONE_TEST}",
        id="two tests",
    ),
    pytest.param(
        {"annotation": "a", "exists": False},
        ".exists: must be true: to select values, use in",
        id="exists: false",
    ),
    pytest.param(
        {"annotation": "a", "in": []}, ".in: must not be empty: add a value", id="in nothing"
    ),
    pytest.param(
        {"label": "a", "equals": "x y"},
        f'.equals: "x y" is not a valid label value: {VALUE_FIX}',
        id="a value that no label has",
    ),
    pytest.param(
        {"label": "a", "in": ["x", "-"]},
        f'.in: "-" is not a valid label value: {VALUE_FIX}',
        id="one of them",
    ),
    pytest.param(
        {"annotation": "a", "exists": True, "namespaces": []},
        ".namespaces: must not be empty: add a namespace, or remove the key",
        id="in no namespace",
    ),
    pytest.param(
        {"annotation": "a", "exists": True, "namespaces": ["a", "B"]},
        '.namespaces: "B" is not a valid namespace: use a name like default',
        id="a namespace that cannot be",
    ),
]

# fields with which a rule cannot be; a message begins with `rules[1]`
RULES: Any = [
    pytest.param(
        {"require": []},
        ": has no effect: add require, prefer, nodeSelector, tolerations or schedulerName",
        id="nothing",
    ),
    pytest.param(
        {"resolveAtRelease": True, "schedulerName": "x"},
        ".schedulerName: cannot be changed at release: move it to a rule without resolveAtRelease",
        id="schedulerName at release",
    ),
    pytest.param(
        {"resolveAtRelease": True, "tolerations": [{"operator": "Exists"}]},
        ".tolerations: cannot be added at release, because admission policies for new pods "
        "would not see them: move them to a rule without resolveAtRelease",
        id="tolerations at release",
    ),
    pytest.param(
        {"require": [EDGE, {"key": "/x", "operator": "Exists"}]},
        f'.require[1].key: "/x" is not a valid label key: {KEY_FIX}',
        id="a key that cannot be",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "In"}]},
        ".require[0].values: must not be empty: In needs a value",
        id="In nothing",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "In", "values": ["a", "b c"]}]},
        f'.require[0].values: "b c" is not a valid label value: {VALUE_FIX}',
        id="a value that no label has",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "Exists", "values": ["a"]}]},
        ".require[0].values: Exists takes no values: remove the key",
        id="Exists with a value",
    ),
    *(
        pytest.param(
            {"require": [{"key": "x", "operator": operator, "values": values}]},
            f".require[0].values: {operator} needs exactly one whole number of 0 or more: use a "
            'list like ["8"]',
            id=f"{operator} {values}",
        )
        for operator, values in [
            ("Gt", ["1", "2"]),
            ("Lt", ["-1"]),
            ("Gt", ["9223372036854775808"]),
        ]
    ),
    pytest.param(
        {"require": [role("a"), role("b")]},
        f': no node can meet "{ROLE} In [a]" and "{ROLE} In [b]": change or remove one',
        id="In, In",
    ),
    pytest.param(
        {"nodeSelector": {ROLE: "core"}},
        f': no node can meet "{ROLE} In [edge]" and "{ROLE} In [core]": change or remove one',
        id="against its own nodeSelector",
    ),
    pytest.param(
        {"require": [{"key": "x", "operator": "Lt", "values": ["0"]}]},
        ': no node can meet "x Lt [0]": change or remove one',
        id="Lt 0",
    ),
    pytest.param(
        {"prefer": [{"weight": 1, "require": []}]},
        ".prefer[0].require: must not be empty: add a requirement",
        id="a preference of nothing",
    ),
    pytest.param(
        {"prefer": [{"weight": 1, "require": [role("a"), role("b")]}]},
        f'.prefer[0]: no node can meet "{ROLE} In [a]" and "{ROLE} In [b]": change or remove one',
        id="a preference that cannot be",
    ),
    pytest.param(
        {"nodeSelector": {"a b": "x"}},
        f'.nodeSelector: "a b" is not a valid label key: {KEY_FIX}',
        id="nodeSelector's key",
    ),
    pytest.param(
        {"tolerations": [{"key": "a b"}]},
        f'.tolerations[0].key: "a b" is not a valid taint key: {KEY_FIX}',
        id="a taint's key",
    ),
    pytest.param(
        {"tolerations": [{"value": "x"}]},
        ".tolerations[0].operator: must be Exists if there is no key: change it, or add a key",
        id="Equal without a key",
    ),
    pytest.param(
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
        ".tolerations[0].value: Exists takes no value: remove the key",
        id="a taint that exists with a value",
    ),
    pytest.param(
        {"tolerations": [{"key": "a"}, {"key": "a", "value": "x y"}]},
        f'.tolerations[1].value: "x y" is not a valid label value: {VALUE_FIX}',
        id="a taint's value",
    ),
    pytest.param(
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]},
        ".tolerations[0].tolerationSeconds: needs effect NoExecute: set it, or remove the key",
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
        {"when": {"annotation": "a", "equal": "x"}},
        "rules[0].when: unknown field 'equal': did you mean equals",
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
    "against its own nodeSelector": NODES,
    "Lt 0": NODES,
    "a preference that cannot be": NODES,
    "Gt ['9223372036854775808']": "a pattern counts digits, it does not compare numbers",
}
"""The cases, by their ids, that only a check in code can find, and why."""
