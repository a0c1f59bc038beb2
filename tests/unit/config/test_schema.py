"""The published schema rejects what startup rejects, where a schema can, and nothing else."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from docs import generate
from holdfast.webhook import plugins
from holdfast.webhook.config import config, schema
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Plugin
from holdfast.webhook.model import syntax
from holdfast.webhook.runtime import pipelines
from tests.support import config_cases
from tests.support.config_cases import CODE_ALONE, HEAD, SPACE, rule
from tests.support.generated import rule_parts
from tests.support.mistakes import with_mistakes
from tests.support.scripted import Extra

ROOT = Path(generate.__file__).resolve().parent.parent
KNOWN = plugins.registry([])
WITH_OTHERS: dict[str, type[Plugin]] = {**KNOWN, "extra": Extra}
SCHEMA = schema.schema(KNOWN)
VALIDATOR = Draft202012Validator(SCHEMA)


def configuration(*rules: Any, **profile: Any) -> dict[str, Any]:
    """Build a configuration with these placement rules, or with these fields of a profile."""
    args = [{"name": "placement", "args": {"rules": list(rules)}}]
    profiles = [profile or {"pluginConfig": args}]
    return {"apiVersion": config.API_VERSION, "kind": config.KIND, "profiles": profiles}


def startup_error(document: Any, known: Any = KNOWN) -> str:
    """Return the startup error for a configuration, or an empty string if it is valid."""
    try:
        text = json.dumps(document).encode()
        pipelines.build_profiles(config.parse(text, "h.yaml"), known, source="h.yaml")
    except ConfigurationError as exc:
        return str(exc)
    return ""


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_schema_has_only_local_references() -> None:
    references = re.findall(r'"\$ref": "([^"]*)"', json.dumps(SCHEMA))

    assert references
    assert [reference for reference in references if not reference.startswith("#/$defs/")] == []
    assert {reference.removeprefix("#/$defs/") for reference in references} == set(SCHEMA["$defs"])


def test_every_type_and_field_has_a_description() -> None:
    definitions = {"": SCHEMA, **SCHEMA["$defs"]}
    undescribed = [
        name for name, definition in definitions.items() if not definition.get("description")
    ]
    undescribed += [
        f"{name}.{field}"
        for name, definition in definitions.items()
        for field, shape in definition["properties"].items()
        if not shape.get("description")
    ]
    assert undescribed == []


def test_class_without_source_has_no_descriptions() -> None:
    args_class = type("Made", (Extra.ExtraArgs,), {}, frozen=True)

    assert schema.field_docs(args_class) == {}


# --- rejected configurations -------------------------------------------------------------------

READABLE = [case for case in config_cases.FILES if "invalid YAML" not in case.values[1]]


def placed(case: Any, section: str) -> Any:
    fields = {"when": case.values[0]} if section == "when" else case.values[0]
    known_id = f"{case.id}: {section}" if f"{case.id}: {section}" in CODE_ALONE else case.id
    return pytest.param(configuration(rule(**fields)), known_id, id=f"{section}: {case.id}")


CASES = [
    *(pytest.param(yaml.safe_load(case.values[0]), case.id, id=case.id) for case in READABLE),
    *(placed(case, "when") for case in config_cases.WHEN),
    *(placed(case, "rule") for case in config_cases.RULES),
    *(placed(case, "shape") for case in config_cases.SHAPES),
]


@pytest.mark.parametrize(("document", "name"), CASES)
def test_schema_rejects_what_startup_rejects(document: Any, name: str) -> None:
    assert VALIDATOR.is_valid(document) == (name in CODE_ALONE)


def test_code_alone_lists_only_existing_cases() -> None:
    assert set(CODE_ALONE) <= {case.values[1] for case in CASES}


def test_schema_accepts_rules_with_the_same_name() -> None:
    assert VALIDATOR.is_valid(configuration(SPACE, SPACE))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"nodeAnnotation": "a b"}, "is not a valid annotation key"),
        ({"namespaces": ["Default"]}, "is not a valid namespace"),
        ({"account": ""}, "must not be empty"),
        ({"affinity": "hard"}, "Invalid enum value"),
    ],
    ids=["nodeAnnotation", "namespaces", "account", "affinity"],
)
def test_invalid_sticky_arguments_are_rejected(args: Any, message: str) -> None:
    document = configuration(pluginConfig=[{"name": "sticky", "args": args}])

    assert message in startup_error(document)
    assert not VALIDATOR.is_valid(document)


# --- accepted configurations -------------------------------------------------------------------


def examples() -> Iterator[Any]:
    """Yield the files in docs/, except for how-to/write-a-plugin.md, whose plugin is not ours."""
    for page in sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs/how-to/write-a-plugin.md"}):
        text = page.read_text(encoding="utf-8")
        for number, example in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            if f"kind: {config.KIND}" in example:
                yield pytest.param(example, id=f"{page.name} {number}")


@pytest.mark.parametrize(
    "text",
    [
        *examples(),
        pytest.param(HEAD, id="defaults"),
        pytest.param(HEAD + "profiles: [{schedulerName: a}, {}]", id="two profiles"),
        pytest.param(HEAD + config_cases.of_delay("maxDelay: 1.5h"), id="duration"),
        pytest.param(HEAD + config_cases.of_delay("annotations: [a.b/c, d]"), id="annotations"),
    ],
)
def test_schema_accepts_what_startup_accepts(text: str) -> None:
    document = yaml.safe_load(text)

    assert startup_error(document) == ""
    VALIDATOR.validate(document)


full_rules = st.builds(
    lambda requirement, fields: rule(**requirement, **fields),
    rule_parts,
    st.fixed_dictionaries(
        {},
        optional={
            "when": st.sampled_from(
                [
                    {"label": "a.b/c", "in": ["x", ""]},
                    {"annotation": "a", "exists": True, "namespaces": ["default"]},
                    {"label": "a", "equals": "x", "annotation": None, "exists": None},
                ]
            ),
            "schedulerName": st.sampled_from(["", "other"]),
            "tolerations": st.sampled_from(
                [
                    [{"operator": "Exists"}],
                    [{"key": "a", "value": "b", "effect": "NoSchedule"}],
                    [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 0}],
                ]
            ),
            "resolveAtRelease": st.booleans(),
            "onConflict": st.sampled_from(["warn", "reject"]),
        },
    ),
)
JUNK: list[Any] = [None, "", "x", "a b", "*", "Exists", "In", "1h", 0, -1, 1.5, True, [], ["x"], {}]


valid_configurations = st.builds(
    lambda placement_rule: configuration(
        schedulerName="a",
        plugins={"enabled": [{"name": "delay"}], "disabled": [{"name": "*"}]},
        pluginConfig=[
            {"name": "delay", "args": {"maxDelay": "1h", "annotations": ["a"]}},
            {"name": "placement", "args": {"rules": [placement_rule]}},
        ],
    ),
    full_rules,
)
configurations_with_mistakes = with_mistakes(
    valid_configurations, junk=JUNK, keys=["x", "label", "values", "name"]
)

BEYOND = (
    "no node can meet",
    "is listed twice",
    "has two profiles",
    "use a unique name",
    "is not a valid label value",
)
"""Errors at startup that a schema cannot express."""


@given(configurations_with_mistakes)
def test_startup_and_schema_agree_on_files_with_mistakes(document: Any) -> None:
    message = startup_error(document)
    valid = VALIDATOR.is_valid(document)

    assert message.isprintable()
    assert valid or message, "the schema rejects what startup accepts"
    assert not valid or not message or any(error in message for error in BEYOND), message


names = st.text("aZ09-_./ ", max_size=8) | st.text("a-._", min_size=60, max_size=66)


@given(names)
def test_schema_patterns_match_the_code(text: str) -> None:
    types: dict[Callable[[str], bool], Any] = {
        syntax.is_qualified_name: arg_types.Key,
        syntax.is_label_value: arg_types.LabelValue,
        syntax.is_namespace: arg_types.Namespace,
    }
    for check, kind in types.items():
        pattern = kind.__metadata__[0].extra_json_schema["pattern"]
        assert bool(re.search(pattern, text)) == check(text), check


# --- third-party plugins -----------------------------------------------------------------------


def configured(name: str, **args: Any) -> dict[str, Any]:
    return {"pluginConfig": [{"name": name, "args": args}]}


@pytest.mark.parametrize(
    ("profile", "accepted"),
    [
        pytest.param({"plugins": {"enabled": [{"name": "extra"}]}}, True, id="enabled"),
        pytest.param(configured("extra", must=5), True, id="configured"),
        pytest.param(configured("extra", must="x"), False, id="wrong type"),
        pytest.param(configured("extra"), False, id="missing argument"),
        pytest.param({"pluginConfig": [{"name": "extra"}]}, False, id="no arguments"),
        pytest.param(configured("delay", must=5), False, id="another plugin's argument"),
    ],
)
def test_third_party_plugins_extend_the_schema(profile: Any, accepted: bool) -> None:
    document = configuration(**profile)

    assert Draft202012Validator(schema.schema(WITH_OTHERS)).is_valid(document) == accepted
    assert not VALIDATOR.is_valid(document)
