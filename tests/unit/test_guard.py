from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from webhook import config, guard, plugins, vm_guard, workloads
from webhook.cli import cli
from webhook.pipeline import Pipeline
from webhook.policy import Installation, manifest
from webhook.registration import EXCLUDED_NAMESPACES

SHIPPED = Path(__file__).parents[2] / "manifests" / "guard" / "policies.yaml"

ODD_KEYS = b"""
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- plugins: {enabled: [{name: delay}]}
  pluginConfig: [{name: delay, args: {annotations: [example.com/wait]}}]
- schedulerName: other
  plugins: {enabled: [{name: delay}]}
  pluginConfig: [{name: delay, args: {annotations: [example.com/pause, example.com/wait]}}]
"""

LEGACY = b"""
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/sticky-node}}]
- schedulerName: other
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/sticky-node}}]
"""

WITHOUT_STICKY = b"""
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- plugins: {disabled: [{name: sticky}]}
"""
WITHOUT_DELAY = WITHOUT_STICKY.replace(b"sticky", b"delay")


def pipeline(text: bytes | None = None) -> Pipeline:
    configuration = config.parse(text, "test") if text else config.Configuration()
    return config.build_pipeline(
        configuration,
        plugins.registry(),
        source="test",
        timer=lambda: 0.0,
        observe=lambda **_: None,
    )


def policy(name: str, where: Installation | None = None) -> dict[str, Any]:
    made = guard.policies(pipeline(), where)
    (found,) = (each for each in made[::2] if each["metadata"]["name"] == name)
    return found


def test_the_manifest_that_ships_is_the_default_configurations() -> None:
    generated = manifest(guard.policies(pipeline()))
    assert SHIPPED.read_text() == generated, (
        "manifests/guard/policies.yaml is not what the default configuration makes; regenerate: "
        ".venv/bin/holdfast policies > manifests/guard/policies.yaml"
    )


def test_the_command_prints_what_the_configuration_makes(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_bytes(ODD_KEYS)
    result = CliRunner().invoke(cli, ["policies", "--config", str(file)])
    assert result.exit_code == 0
    assert list(yaml.safe_load_all(result.output)) == guard.policies(pipeline(ODD_KEYS))


def test_every_policy_is_bound_denies_and_fails_closed() -> None:
    made = guard.policies(pipeline())
    names = [
        "holdfast-hold",
        "holdfast-controller-pods",
        "holdfast-controller-vms",
        "holdfast-controller-webhooks",
    ]
    bodies, bindings = made[::2], made[1::2]
    assert [body["metadata"]["name"] for body in bodies] == names
    assert [body["spec"]["failurePolicy"] for body in bodies] == ["Fail"] * 4
    assert [binding["spec"] for binding in bindings] == [
        {"policyName": name, "validationActions": ["Deny"]} for name in names
    ]


def test_keys_of_every_profile_decide_with_the_hint_and_the_profile() -> None:
    assert guard.deciding_keys(pipeline(ODD_KEYS)) == [
        "example.com/wait",
        "holdfast.dev/not-before",
        "holdfast.dev/jitter",
        "example.com/pause",
        "holdfast.dev/delay",
        "delay",
        "holdfast.dev/held",
        "holdfast.dev/profile",
    ]


def test_pods_are_kept_held_whose_plugin_is_disabled_by_now() -> None:
    keys = guard.deciding_keys(pipeline(WITHOUT_DELAY))
    assert {"holdfast.dev/delay", "delay", "holdfast.dev/not-before", "holdfast.dev/jitter"} <= {
        *keys
    }


def test_keys_are_quoted_for_cel() -> None:
    (condition,) = guard.hold_policy(["it's"])["spec"]["matchConditions"]
    assert "'it\\'s'" in condition["expression"]


def test_the_policies_are_those_of_the_installation() -> None:
    where = Installation(
        namespace="elsewhere",
        service="ours",
        controller="system:serviceaccount:elsewhere:me",
        configurations=("one", "two"),
    )
    pods = str(policy(guard.CONTROLLER_PODS, where))
    machines = str(policy(vm_guard.CONTROLLER_VMS, where))
    webhooks = str(policy(guard.CONTROLLER_WEBHOOKS, where))
    for text in (pods, machines, webhooks):
        assert "'system:serviceaccount:elsewhere:me'" in text
        assert "holdfast-system" not in text
    assert "in ['one', 'two']" in webhooks
    assert "service.namespace == 'elsewhere'" in webhooks
    assert "service.name == 'ours'" in webhooks


def test_webhooks_leave_out_what_the_publisher_leaves_out() -> None:
    """Else the API server would refuse what it registers."""
    text = str(policy(guard.CONTROLLER_WEBHOOKS, Installation(namespace="elsewhere")))
    for name in (*EXCLUDED_NAMESPACES, "elsewhere"):
        assert f"'{name}'" in text


def test_webhooks_may_be_registered_for_every_workload_that_is_validated() -> None:
    text = str(policy(guard.CONTROLLER_WEBHOOKS))
    assert [each.name for each in workloads.RESOURCES if f"'{each.name}'" not in text] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, ["holdfast.dev/sticky-node"], id="by default"),
        pytest.param(LEGACY, ["example.com/sticky-node"], id="configured"),
        pytest.param(WITHOUT_STICKY, ["holdfast.dev/sticky-node"], id="without the plugin"),
    ],
)
def test_the_controller_may_write_the_record_of_a_vms_node(
    text: bytes | None, expected: list[str]
) -> None:
    assert guard.recording_keys(pipeline(text)) == [*expected, "holdfast.dev/sticky-node-uid"]


@pytest.mark.parametrize(
    "name",
    [guard.HOLD, guard.CONTROLLER_PODS, vm_guard.CONTROLLER_VMS, guard.CONTROLLER_WEBHOOKS],
)
def test_expressions_are_written_as_blocks_that_read_back_unchanged(name: str) -> None:
    made = policy(name)
    text = manifest([made])
    assert yaml.safe_load(text) == made
    assert "\\n" not in text
