"""Rules that are rejected at startup."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.placement import Placement, PlacementArgs
from tests.support import config_cases
from tests.support.builders import make_profiles
from tests.support.config_cases import SPACE, rule
from tests.unit.plugins.placement.placed import KNOWN, space


def startup_error(*rules: Any) -> str:
    """Return the error at startup for these rules."""
    args = {"name": "placement", "args": {"rules": list(rules)}}
    profile = {"pluginConfig": [args], "plugins": {"enabled": [{"name": "placement"}]}}
    with pytest.raises(ConfigurationError) as caught:
        make_profiles(f"profiles: [{json.dumps(profile)}]", known=KNOWN)
    return str(caught.value).removeprefix("test.yaml: profiles[0].pluginConfig[0].args.")


@pytest.mark.parametrize(("when", "expected"), config_cases.WHEN)
def test_invalid_when(when: Any, expected: str) -> None:
    assert f"rules[0].when{expected}" == startup_error(rule(when=when))


def test_duplicate_rule_name_is_rejected() -> None:
    other_rule = rule(name="other")

    assert startup_error(SPACE, other_rule, SPACE) == (
        'rules[2].name: "space" is also the name of rules[0]: use a unique name'
    )


@pytest.mark.parametrize("name", ["", "a b", "x" * 64], ids=["empty", "blank", "long"])
def test_invalid_rule_name(name: str) -> None:
    assert "is not a valid name: use a short one like space" in startup_error(rule(name=name))


@pytest.mark.parametrize(("fields", "expected"), config_cases.RULES)
def test_invalid_rule(fields: Any, expected: str) -> None:
    assert f"rules[1]{expected}" == startup_error(rule(name="first"), rule(**fields))


@pytest.mark.parametrize(("fields", "expected"), config_cases.SHAPES)
def test_malformed_rule(fields: Any, expected: str) -> None:
    assert startup_error(rule(**fields)).startswith(expected)


def test_default_rule_is_for_space_workloads() -> None:
    assert msgspec.convert({"rules": [SPACE]}, PlacementArgs) == PlacementArgs()


def test_no_rules() -> None:
    plugin = Placement(PlacementArgs(rules=()))

    assert plugin.match("object") == "false"
    assert not plugin.concerns(Pod.of(space()))
