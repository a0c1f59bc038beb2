"""The manifests built by kustomize with components, and with the documented patches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.launcher import ControlPlane
from holdfast.webhook.policies import builder
from holdfast.webhook.policies import pods as pod_policies
from tests.e2e.accounts import MANIFESTS
from tests.e2e.manifests import built
from tests.e2e.namespace import Namespace
from tests.support.builders import make_profiles

PAGE = MANIFESTS.parent / "docs" / "how-to" / "install.md"


@pytest.mark.parametrize(
    "components",
    [
        pytest.param(["call-last", "cert-manager"], id="first"),
        pytest.param(["cert-manager", "call-last"], id="last"),
    ],
)
def test_components_rename_the_webhook_configurations_everywhere(
    components: list[str], tmp_path: Path
) -> None:
    found = built(tmp_path, components)
    for policy in pod_policies.policies(
        make_profiles(), builder.InstallationNames(configuration="zz-holdfast")
    ):
        assert policy in found
    written = [one for one in found if one["kind"].endswith("WebhookConfiguration")]
    assert {one["metadata"]["name"] for one in written} == {"zz-holdfast"}
    assert all("cert-manager.io/inject-ca-from" in str(one) for one in written)


@pytest.mark.parametrize("components", [[], ["high-availability", "kubevirt"]])
def test_pods_run_on_linux_only(components: list[str], tmp_path: Path) -> None:
    deployments = [one for one in built(tmp_path, components) if one["kind"] == "Deployment"]
    assert len(deployments) == 2
    for one in deployments:
        assert one["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


def patched(folder: Path, mark: str) -> dict[tuple[str, str], Any]:
    """Build the manifests with the documented patches that contain `mark`."""
    blocks = re.findall(r"```yaml\n(patches:.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (one for one in blocks if mark in one)
    found = built(folder, **yaml.safe_load(block))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_patches_for_a_private_gke_cluster(tmp_path: Path) -> None:
    found = patched(tmp_path, "10250")
    (container,) = found["Deployment", "holdfast-webhook"]["spec"]["template"]["spec"]["containers"]
    assert "--port=10250" in container["args"]
    assert container["ports"] == [{"name": "https", "containerPort": 10250}]
    assert found["Service", "holdfast-webhook"]["spec"]["ports"][0]["targetPort"] == "https"
    (inbound,) = found["NetworkPolicy", "holdfast-webhook"]["spec"]["ingress"]
    assert inbound == {"ports": [{"protocol": "TCP", "port": "https"}]}


def test_patches_for_host_network(plain_cluster: ControlPlane, tmp_path: Path) -> None:
    found = patched(tmp_path, "hostNetwork")
    webhook = found["Deployment", "holdfast-webhook"]["spec"]
    assert webhook["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    outbound = found["NetworkPolicy", "holdfast-controller"]["spec"]["egress"]
    assert outbound[1:] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]

    level = "pod-security.kubernetes.io/enforce"
    label = found["Namespace", "holdfast-system"]["metadata"]["labels"][level]
    ns = Namespace.create_new(plain_cluster, "nodes-network")
    plain_cluster.kubectl("label", "namespace", ns.namespace, f"{level}={label}")
    spec = webhook["template"]["spec"] | {"serviceAccountName": "default"}
    (made,) = ns.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "webhook"}, "spec": spec},
        dry_run=True,
    )
    assert made["spec"]["hostNetwork"]
    assert made["spec"]["containers"][0]["ports"][0]["hostPort"] == 8443
