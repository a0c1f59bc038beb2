"""`check-config` reports all problems in a file at once, with line numbers."""

from typing import Any

import pytest

from holdfast.webhook import plugins
from holdfast.webhook.config import config, problems
from holdfast.webhook.runtime import pipelines
from tests.support.builders import HEAD

FILE = """\
apiVersion: v1
kind: HoldfastConfiguration
profiles:
- plugins:
    enabled: [{name: dely}, {nam: pace}]
  pluginConfig:
  - name: delay
    args:
      onInvalid: rejct
      maxDelays: 24h
      maxDelay: 1d
  - name: placement
    args:
      rules:
      - {name: a b, when: {label: x, exists: true}, onConflict: x, tolerations: []}
      - when: {}
      - name: space
        when: {label: a, exists: true}
        require: [{key: b, operator: in}]
- permitTimeout: soon
"""


def find_problems(text: str) -> list[str]:
    def build(document: Any) -> None:
        configuration = config.read(document, "f.yaml")
        pipelines.build_profiles(configuration, plugins.registry([]), source="f.yaml")

    return problems.find(text.encode(), "f.yaml", build)


def test_problems_are_reported_in_line_order() -> None:
    args, rules = "profiles[0].pluginConfig[0].args", "profiles[0].pluginConfig[1].args.rules"
    expected = [
        (1, "apiVersion: 'v1' is not supported"),
        (5, "profiles[0].plugins.enabled[1]: unknown field 'nam': did you mean name?"),
        (5, "profiles[0].plugins.enabled[1]: Object missing required field `name`"),
        (5, "profiles[0].plugins.enabled[0].name: unknown plugin 'dely': did you mean delay?"),
        (9, f"{args}.onInvalid: Invalid enum value 'rejct': use ignore or reject"),
        (10, f"{args}: unknown field 'maxDelays': did you mean maxDelay?"),
        (11, f'{args}.maxDelay: invalid value "1d"'),
        (15, f"{rules}[0].onConflict: Invalid enum value 'x': use reject or warn"),
        (15, f'{rules}[0].name: "a b" is not a valid name'),
        (16, f"{rules}[1]: Object missing required field `name`"),
        (19, f"{rules}[2].require[0].operator: Invalid enum value 'in': use DoesNotExist or"),
        (20, "profiles[1].schedulerName: '*' has two profiles"),
    ]

    messages = find_problems(FILE)

    assert [f"f.yaml:{line}: {text}" for line, text in expected] == [
        message[: len(f"f.yaml:{line}: {text}")]
        for message, (line, text) in zip(messages, expected, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("a: [", "f.yaml:1: invalid YAML: expected the node", id="not YAML"),
        pytest.param("a: 1\na: 2", "f.yaml:2: invalid YAML: duplicate key 'a'", id="duplicate key"),
        pytest.param("", "f.yaml: not a mapping: begin with", id="empty"),
        pytest.param("- a", "f.yaml: not a mapping: begin with", id="a list"),
        pytest.param(f"{HEAD}profiles: []", "f.yaml:3: profiles:", id="no profiles"),
        pytest.param(
            "kind: HoldfastConfiguration",
            "f.yaml:1: apiVersion: is missing: add",
            id="missing apiVersion",
        ),
    ],
)
def test_single_problem(text: str, problem: str) -> None:
    (message,) = find_problems(text)

    assert message.startswith(problem)


def test_number_of_problems_is_limited() -> None:
    fields = "\n".join(f"x{number}: 1" for number in range(1_000))

    assert len(find_problems(HEAD + fields)) == problems.MOST
