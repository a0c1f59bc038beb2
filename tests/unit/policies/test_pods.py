from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from holdfast.webhook import plugins
from holdfast.webhook.cli.main import cli
from holdfast.webhook.config import config
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model import workloads
from holdfast.webhook.model.annotations import RELEASED_ANNOTATION
from holdfast.webhook.plugins.pace.args import KEY
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies import vms
from holdfast.webhook.policies.builder import InstallationNames, manifest
from holdfast.webhook.policies.secrets import CONTROLLER_SECRETS
from holdfast.webhook.registration.configurations import EXCLUDED_NAMESPACES
from holdfast.webhook.runtime import pipelines

SHIPPED = Path(__file__).parents[3] / "manifests" / "guard" / "policies.yaml"

CUSTOM_KEYS = b"""
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- plugins: {enabled: [{name: delay}]}
  pluginConfig: [{name: delay, args: {annotations: [example.com/wait]}}]
- schedulerName: other
  plugins: {enabled: [{name: delay}]}
  pluginConfig: [{name: delay, args: {annotations: [example.com/pause, example.com/wait]}}]
"""

LEGACY = b"""
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/sticky-node}}]
- schedulerName: other
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/sticky-node}}]
"""

WITHOUT_STICKY = b"""
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- plugins: {disabled: [{name: sticky}]}
"""
WITHOUT_DELAY = WITHOUT_STICKY.replace(b"sticky", b"delay")


def profiles(text: bytes | None = None) -> Profiles:
    configuration = config.parse(text, "test") if text else config.Configuration()
    return pipelines.build_profiles(configuration, plugins.registry(), source="test")


def policy(name: str, installation: InstallationNames | None = None) -> dict[str, Any]:
    documents = pod_policies.policies(profiles(), installation)
    (document,) = (
        candidate for candidate in documents[::2] if candidate["metadata"]["name"] == name
    )
    return document


def test_shipped_manifest_matches_the_default_configuration() -> None:
    generated = manifest(pod_policies.policies(profiles()))
    assert SHIPPED.read_text() == generated, (
        "manifests/guard/policies.yaml differs from the default configuration; regenerate it: "
        ".venv/bin/holdfast policies > manifests/guard/policies.yaml"
    )


def test_command_prints_the_policies_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_bytes(CUSTOM_KEYS)
    result = CliRunner().invoke(cli, ["policies", "--config", str(file)])
    assert result.exit_code == 0
    assert list(yaml.safe_load_all(result.output)) == pod_policies.policies(profiles(CUSTOM_KEYS))


def test_every_policy_is_bound_and_fails_closed() -> None:
    documents = pod_policies.policies(profiles())
    names = [
        "holdfast-hold",
        "holdfast-pace",
        "holdfast-approval",
        "holdfast-own-fields",
        "holdfast-freeze",
        "holdfast-freeze-roles",
        "holdfast-controller-pods",
        "holdfast-controller-vms",
        "holdfast-controller-webhooks",
        "holdfast-controller-secrets",
    ]
    bodies, bindings = documents[::2], documents[1::2]
    assert [body["metadata"]["name"] for body in bodies] == names == [*pod_policies.POLICIES]
    assert [body["spec"]["failurePolicy"] for body in bodies] == ["Fail"] * len(names)
    assert [binding["spec"] for binding in bindings] == [
        {"policyName": name, "validationActions": ["Deny"]} for name in names
    ]


def test_deciding_keys_cover_every_profile() -> None:
    assert pod_policies.deciding_keys(profiles(CUSTOM_KEYS)) == [
        "example.com/wait",
        "holdfast.dev/not-before",
        "holdfast.dev/jitter",
        "holdfast.dev/delay-from",
        "holdfast.dev/window",
        "holdfast.dev/after",
        "holdfast.dev/pace",
        "holdfast.dev/approval",
        "example.com/pause",
        "holdfast.dev/delay",
        "delay",
        "holdfast.dev/held",
        "holdfast.dev/profile",
        "holdfast.dev/allowed",
    ]


def test_deciding_keys_include_disabled_plugins() -> None:
    keys = pod_policies.deciding_keys(profiles(WITHOUT_DELAY))
    assert {"holdfast.dev/delay", "delay", "holdfast.dev/not-before", "holdfast.dev/jitter"} <= {
        *keys
    }


def test_policies_use_the_installation_names() -> None:
    installation = InstallationNames(
        namespace="elsewhere",
        account="me",
        configuration="one",
    )
    pods = str(policy(pod_policies.CONTROLLER_PODS, installation))
    machines = str(policy(vms.CONTROLLER_VMS, installation))
    webhooks = str(policy(pod_policies.CONTROLLER_WEBHOOKS, installation))
    secrets = str(policy(CONTROLLER_SECRETS, installation))
    for text in (pods, machines, webhooks, secrets):
        assert "'system:serviceaccount:elsewhere:me'" in text
        assert "holdfast-system" not in text
    assert "'system:serviceaccount:elsewhere:holdfast-uninstall'" in pods
    assert "== 'one'" in webhooks
    assert "service.namespace == 'elsewhere'" in webhooks


def test_pace_key_and_released_annotation_are_protected() -> None:
    (condition,) = policy(pod_policies.PACE)["spec"]["matchConditions"]
    for key in (KEY, RELEASED_ANNOTATION):
        assert f"'{key}'" in condition["expression"]
    assert f"oldObject.metadata.?labels[?'{KEY}'].hasValue()" in condition["expression"]
    assert "request.operation == 'CREATE'\n" in condition["expression"]
    assert condition["expression"].endswith(".check('release').allowed()")


def test_containers_of_an_approved_held_pod_are_protected() -> None:
    spec = policy(pod_policies.APPROVAL)["spec"]
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert "pods/ephemeralcontainers" in rule["resources"]
    (condition,) = spec["matchConditions"]
    expression = condition["expression"]
    assert "oldObject.metadata.?annotations[?'holdfast.dev/approved-by'].hasValue()" in expression
    assert "gate.name == 'holdfast.dev/approval'" in expression
    for field in ("containers", "?initContainers", "?ephemeralContainers"):
        assert f"object.spec.{field} == oldObject.spec.{field}" in expression


def test_webhook_policy_lists_the_excluded_namespaces() -> None:
    """Otherwise, the policy would reject what the controller registers."""
    text = str(policy(pod_policies.CONTROLLER_WEBHOOKS, InstallationNames(namespace="elsewhere")))
    for name in (*EXCLUDED_NAMESPACES, "elsewhere"):
        assert f"'{name}'" in text


def test_webhook_policy_lists_every_validated_workload() -> None:
    text = str(policy(pod_policies.CONTROLLER_WEBHOOKS))
    assert [
        resource.name for resource in workloads.RESOURCES if f"'{resource.name}'" not in text
    ] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, ["holdfast.dev/sticky-node"], id="by default"),
        pytest.param(LEGACY, ["example.com/sticky-node"], id="configured"),
        pytest.param(WITHOUT_STICKY, ["holdfast.dev/sticky-node"], id="without the plugin"),
    ],
)
def test_recording_keys_follow_the_sticky_configuration(
    text: bytes | None, expected: list[str]
) -> None:
    assert pod_policies.recording_keys(profiles(text)) == [
        *expected,
        "holdfast.dev/sticky-node-uid",
    ]


@pytest.mark.parametrize("name", pod_policies.POLICIES)
def test_expressions_round_trip_as_yaml_blocks(name: str) -> None:
    document = policy(name)
    text = manifest([document])
    assert yaml.safe_load(text) == document
    assert "\\n" not in text
