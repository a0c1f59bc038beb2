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
    manifests = built(tmp_path, components)
    for policy in pod_policies.policies(
        make_profiles(), builder.InstallationNames(configuration="zz-holdfast")
    ):
        assert policy in manifests
    configurations = [
        manifest for manifest in manifests if manifest["kind"].endswith("WebhookConfiguration")
    ]
    assert {manifest["metadata"]["name"] for manifest in configurations} == {"zz-holdfast"}
    assert all("cert-manager.io/inject-ca-from" in str(manifest) for manifest in configurations)


def test_pods_run_on_linux_only(tmp_path: Path) -> None:
    manifests = built(tmp_path, ["high-availability", "kubevirt"])
    deployments = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        assert deployment["spec"]["template"]["spec"]["nodeSelector"] == {
            "kubernetes.io/os": "linux"
        }


def patched(folder: Path, mark: str) -> dict[tuple[str, str], Any]:
    """Build the manifests with the documented patches that contain `mark`."""
    blocks = re.findall(r"```yaml\n(patches:.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (text for text in blocks if mark in text)
    manifests = built(folder, **yaml.safe_load(block))
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def test_patches_for_a_private_gke_cluster(tmp_path: Path) -> None:
    manifests = patched(tmp_path, "10250")
    (container,) = manifests["Deployment", "holdfast-webhook"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--port=10250" in container["args"]
    assert container["ports"] == [{"name": "https", "containerPort": 10250}]
    assert manifests["Service", "holdfast-webhook"]["spec"]["ports"][0]["targetPort"] == "https"
    (inbound,) = manifests["NetworkPolicy", "holdfast-webhook"]["spec"]["ingress"]
    assert inbound == {"ports": [{"protocol": "TCP", "port": "https"}]}


def test_patches_for_host_network(plain_cluster: ControlPlane, tmp_path: Path) -> None:
    manifests = patched(tmp_path, "hostNetwork")
    webhook = manifests["Deployment", "holdfast-webhook"]["spec"]
    assert webhook["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    outbound = manifests["NetworkPolicy", "holdfast-controller"]["spec"]["egress"]
    assert outbound[1:] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]

    level = "pod-security.kubernetes.io/enforce"
    label = manifests["Namespace", "holdfast-system"]["metadata"]["labels"][level]
    ns = Namespace.create_new(plain_cluster, "nodes-network")
    plain_cluster.kubectl("label", "namespace", ns.namespace, f"{level}={label}")
    spec = webhook["template"]["spec"] | {"serviceAccountName": "default"}
    (stored,) = ns.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "webhook"}, "spec": spec},
        dry_run=True,
    )
    assert stored["spec"]["hostNetwork"]
    assert stored["spec"]["containers"][0]["ports"][0]["hostPort"] == 8443
