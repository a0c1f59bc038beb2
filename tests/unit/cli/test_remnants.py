"""Uninstallation steps and their order."""

from typing import Any

import msgspec
import pytest

from holdfast.webhook.cli import remnants
from holdfast.webhook.config import config
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS
from tests.support.fakes import apply_patch

OURS, OTHERS = "holdfast.dev/delay", "example.com/gate"
STICKY = "holdfast.dev/sticky"
NOW_MS = CREATED_MS


def document(
    gates: tuple[str, ...] = (), finalizers: tuple[str, ...] = (), node: str = "", name: str = "p"
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": "7"}
    return {
        "metadata": {**metadata, "finalizers": list(finalizers)},
        "spec": {"schedulingGates": [{"name": gate} for gate in gates], "nodeName": node},
    }


def pod(*args: Any, **kwargs: Any) -> Pod:
    return msgspec.convert(document(*args, **kwargs), Pod)


def test_only_holdfast_gates_and_finalizers_are_removed() -> None:
    original = document((OTHERS, OURS, "holdfast.dev/other"), (STICKY, "example.com/f"))
    cleared = apply_patch(original, remnants.clearing(msgspec.convert(original, Pod), NOW_MS))
    assert cleared["spec"]["schedulingGates"] == [{"name": OTHERS}]
    assert cleared["metadata"]["finalizers"] == ["example.com/f"]


def test_patch_requires_an_unchanged_pod() -> None:
    tests = [op for op in remnants.clearing(pod((OURS,)), NOW_MS) if op["op"] == "test"]
    assert {test["path"]: test["value"] for test in tests} == {
        "/metadata/uid": "u-p",
        "/metadata/resourceVersion": "7",
        "/spec/schedulingGates/0": {"name": OURS},
    }


def test_cleared_pod_is_marked_as_released() -> None:
    original = document((OURS,), (STICKY,))
    original["metadata"]["annotations"] = {"delay": "15"}
    original["metadata"]["labels"] = {"holdfast.dev/held": "true", "app": "web"}
    cleared = apply_patch(original, remnants.clearing(msgspec.convert(original, Pod), NOW_MS))

    assert cleared["metadata"]["labels"] == {"app": "web"}
    assert cleared["metadata"]["annotations"]["holdfast.dev/released"] == "2026-03-01T12:00:00Z"
    assert cleared["metadata"]["finalizers"] == []


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
        pytest.param([], [], id="none"),
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


def test_policies_precede_namespace_and_releaser_role_is_last() -> None:
    paths = remnants.rest("holdfast-system")
    namespace = paths.index("/api/v1/namespaces/holdfast-system")
    kinds = [path.split("/")[-2] for path in paths]
    assert {kind for kind in kinds[:namespace] if "policies" in kind or "bindings" in kind} == {
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
    assert paths[-1].endswith("/clusterroles/holdfast-releaser")
    assert any(path.endswith("/clusterroles/holdfast-freezer") for path in paths)


def test_binding_is_deleted_before_its_policy() -> None:
    paths = remnants.rest("holdfast-system")
    for path in paths:
        if "validatingadmissionpolicies" in path:
            binding = path.replace("policies", "policybindings")
            assert paths.index(binding) < paths.index(path)


def test_long_list_of_pods_is_abbreviated() -> None:
    pods = [pod(name=f"p{number}") for number in range(5)]
    assert remnants.named(pods) == "n/p0, n/p1, n/p2 and 2 more"
