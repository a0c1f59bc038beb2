"""Uninstallation steps and their order."""

import pytest

from holdfast.webhook.cli import remnants
from holdfast.webhook.config import config
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, UID, make_pod, read_pod
from tests.support.fakes import apply_patch

OURS, OTHERS = "holdfast.dev/delay", "example.com/gate"


def test_patch_requires_an_unchanged_pod() -> None:
    operations = remnants.clearing(read_pod(gates=[OURS]), CREATED_MS)
    assert {op["path"]: op["value"] for op in operations if op["op"] == "test"} == {
        "/metadata/uid": UID,
        "/metadata/resourceVersion": "7",
        "/spec/schedulingGates/0": {"name": OURS},
    }


def test_cleared_pod_keeps_what_others_added_and_is_marked_as_released() -> None:
    original = make_pod(
        {"delay": "15"},
        gates=[OTHERS, OURS, "holdfast.dev/other"],
        finalizers=["holdfast.dev/sticky", "example.com/f"],
        labels={"holdfast.dev/held": "true", "app": "web"},
    )
    cleared = apply_patch(original, remnants.clearing(Pod.of(original), CREATED_MS))

    assert cleared["spec"]["schedulingGates"] == [{"name": OTHERS}]
    assert cleared["metadata"]["finalizers"] == ["example.com/f"]
    assert cleared["metadata"]["labels"] == {"app": "web"}
    assert cleared["metadata"]["annotations"]["holdfast.dev/released"] == "2026-03-01T12:00:00Z"


STICKY_KEYS = ["holdfast.dev/sticky-node", "holdfast.dev/sticky-node-uid"]
CONFIGURED = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- pluginConfig:
  - {name: delay, args: {annotations: [delay]}}
  - {name: sticky, args: {nodeAnnotation: example.com/sticky-node}}
- schedulerName: other
  pluginConfig:
  - {name: sticky, args: {nodeAnnotation: example.com/other-node, affinity: preferred}}
"""


@pytest.mark.parametrize(
    ("texts", "more"),
    [
        pytest.param([CONFIGURED.partition("profiles")[0]], [], id="defaults"),
        pytest.param(
            [CONFIGURED, CONFIGURED, CONFIGURED.replace("other-node", "third-node")],
            ["example.com/sticky-node", "example.com/other-node", "example.com/third-node"],
            id="several",
        ),
    ],
)
def test_records_are_removed_under_every_configured_key(texts: list[str], more: list[str]) -> None:
    configured = [config.parse(text.encode(), "holdfast.yaml") for text in texts]
    assert remnants.vm_keys(configured) == [*STICKY_KEYS, *more]


def test_bindings_precede_policies_then_namespace_and_releaser_role_is_last() -> None:
    paths = remnants.rest("holdfast-system")
    namespace = paths.index("/api/v1/namespaces/holdfast-system")
    kinds = [path.split("/")[-2] for path in paths]
    assert {kind for kind in kinds[:namespace] if "policies" in kind or "bindings" in kind} == {
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
    for path in paths:
        if "validatingadmissionpolicies" in path:
            binding = path.replace("policies", "policybindings")
            assert paths.index(binding) < paths.index(path)
    assert paths[-1].endswith("/clusterroles/holdfast-releaser")
    assert any(path.endswith("/clusterroles/holdfast-freezer") for path in paths)
