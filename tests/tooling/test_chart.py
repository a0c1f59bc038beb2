"""The chart renders the same objects as kustomize for the same settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from controlplane import build
from controlplane.modules import HELM
from holdfast.webhook.cli.policies import policies
from release import chart
from release.__main__ import Files
from release.version import VERSION
from tests.e2e.manifests import built

Object = dict[str, Any]
HOOK = "helm.sh/hook"
IMAGE_POLICY = "IfNotPresent"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(build.ensure(modules=HELM) / "helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(folder: Path, values: Mapping[str, Any], namespace: str = "x") -> list[Object]:
    """Render the chart, without hooks."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    command = ("template", "holdfast", str(chart.CHART), "--namespace", namespace)
    process = helm(*command, "--values", str(file))
    assert process.returncode == 0, process.stderr
    objects = [document for document in yaml.safe_load_all(process.stdout) if document]
    return [
        document for document in objects if HOOK not in document["metadata"].get("annotations", {})
    ]


def uninstall_hooks() -> list[Object]:
    process = helm("template", str(chart.CHART), "--show-only", "templates/uninstall.yaml")
    return [document for document in yaml.safe_load_all(process.stdout) if document]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [document for document in objects if document["kind"] == kind]


def pod_of(deployment: Object) -> Object:
    pod: Object = deployment["spec"]["template"]["spec"]
    return pod


def by_name(entry: Object) -> str:
    return str(entry["name"])


def comparable(objects: list[Object]) -> dict[str, Any]:
    """Return objects by name, without intended differences; see `test_chart_equals_kustomize`."""
    named_objects = {}
    for document in json.loads(json.dumps(objects)):
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "ConfigMap":
            name = "holdfast-config"
            document["metadata"]["name"] = name
            document["metadata"].pop("annotations", None)
            document["data"] = {key: yaml.safe_load(text) for key, text in document["data"].items()}
        if kind == "Deployment":
            pod = pod_of(document)
            pod["volumes"].sort(key=by_name)  # kustomize puts added ones first
            (config, *_) = (volume for volume in pod["volumes"] if volume["name"] == "config")
            config["configMap"]["name"] = "holdfast-config"
            for container in pod["containers"]:
                assert container.pop("imagePullPolicy", IMAGE_POLICY) == IMAGE_POLICY
                container["env"] = container.get("env") or []
                for field in ("ports", "volumeMounts"):
                    container[field].sort(key=by_name)
        if kind != "Namespace":
            named_objects[f"{kind} {name}"] = document
    return named_objects


ALL: Object = {
    "kubevirt": {"enabled": True},
    "highAvailability": True,
    "certManager": {"enabled": True},
    "clientCA": {"enabled": True},
    "monitoring": {"podMonitor": True, "rules": True},
    "callLast": True,
}
SETTINGS = [
    pytest.param({}, [], {}, id="defaults"),
    pytest.param({"kubevirt": {"enabled": True}}, ["kubevirt"], {}, id="kubevirt"),
    pytest.param({"highAvailability": True}, ["high-availability"], {}, id="high-availability"),
    pytest.param({"certManager": {"enabled": True}}, ["cert-manager"], {}, id="cert-manager"),
    pytest.param({"clientCA": {"enabled": True}}, ["client-ca"], {}, id="client-ca"),
    pytest.param({"callLast": True}, ["call-last"], {}, id="call-last"),
    pytest.param(
        {"monitoring": {"podMonitor": True, "rules": True}}, ["monitoring"], {}, id="monitoring"
    ),
    pytest.param(
        ALL,
        ["kubevirt", "high-availability", "cert-manager", "monitoring", "client-ca", "call-last"],
        {},
        id="all",
    ),
    pytest.param(
        {"image": {"repository": "example.com/holdfast", "tag": "9"}},
        [],
        {"images": [{"name": "holdfast", "newName": "example.com/holdfast", "newTag": "9"}]},
        id="image",
    ),
]


@pytest.mark.parametrize(("values", "components", "content"), SETTINGS)
def test_chart_equals_kustomize(
    values: Object, components: list[str], content: Object, tmp_path: Path
) -> None:
    """Only the Namespace, which helm creates, and the ConfigMap's hash and annotation differ."""
    from_kustomize = comparable(built(tmp_path, components, **content))
    from_helm = comparable(rendered(tmp_path, values, "holdfast-system"))
    assert from_helm.keys() == from_kustomize.keys()
    for name, document in from_kustomize.items():
        assert from_helm[name] == document, name


@pytest.mark.parametrize("components", [[], ["kubevirt", "high-availability"]])
def test_chart_equals_kustomize_in_another_namespace(components: list[str], tmp_path: Path) -> None:
    """Only the guard differs, which `holdfast policies` generates."""
    from_kustomize = comparable(built(tmp_path, components, namespace="elsewhere"))
    values = {"kubevirt": {"enabled": bool(components)}, "highAvailability": bool(components)}
    from_helm = comparable(rendered(tmp_path, values, "elsewhere"))
    assert from_helm.keys() == from_kustomize.keys()
    for name, document in from_kustomize.items():
        assert "AdmissionPolicy" in name or from_helm[name] == document, name


def test_generated_files_are_up_to_date() -> None:
    stale_names = [path.name for path, text in chart.files() if path.read_text() != text]
    assert stale_names == [], f"run: {chart.COMMAND}"


def test_edit_without_a_match_is_an_error() -> None:
    template = chart.Template("base/webhook.yaml", [chart.Edit("no such line\n", "")])
    with pytest.raises(LookupError, match=r"base/webhook\.yaml has 0 times"):
        chart.rendered(template)


CONFIGURATIONS = [
    pytest.param({}, id="defaults"),
    pytest.param(
        {
            "admission": {
                "namespaceSelector": {
                    "matchLabels": {"z": "", "holdfast": "enabled"},
                    "matchExpressions": [
                        {"key": "team", "operator": "In", "values": ["a", "b"]},
                        {"key": "tier", "operator": "Exists"},
                    ],
                },
                "objectSelector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "c", "operator": "Exists"}],
                },
            },
            "profiles": [
                {
                    "pluginConfig": [
                        {"name": "sticky", "args": {"nodeAnnotation": "e.f/g"}},
                        {"name": "delay", "args": {"annotations": ["w"]}},
                    ]
                },
                {
                    "schedulerName": "other",
                    "pluginConfig": [{"name": "delay", "args": {"annotations": ["a", "b.c/d"]}}],
                },
            ],
        },
        id="selectors and two profiles",
    ),
]


@pytest.mark.parametrize("config", CONFIGURATIONS)
@pytest.mark.parametrize("call_last", [False, True], ids=["first", "last"])
def test_guard_equals_the_output_of_holdfast_policies(
    config: Object, call_last: bool, tmp_path: Path
) -> None:
    name = "zz-holdfast" if call_last else "holdfast"
    file = tmp_path / "holdfast.yaml"
    head = {"apiVersion": "holdfast.dev/v1beta1", "kind": "HoldfastConfiguration"}
    file.write_text(json.dumps(head | config))
    options = ["--config", str(file), "--namespace", "elsewhere", "--webhook-configuration", name]
    printed = CliRunner().invoke(policies, options)
    expected = comparable([*yaml.safe_load_all(printed.output)])
    values = {"config": config, "callLast": call_last}
    from_helm = comparable(rendered(tmp_path, values, "elsewhere"))
    assert {
        key: from_helm[key] for key in from_helm if key.startswith("Validating")
    } == expected | {
        key: from_helm[key] for key in from_helm if key.startswith("ValidatingWebhook")
    }


def test_no_object_names_the_default_namespace_in_another_one(tmp_path: Path) -> None:
    values = ALL | {"monitoring": {"podMonitor": True, "rules": True, "dashboard": True}}
    assert "holdfast-system" not in json.dumps(rendered(tmp_path, values, "elsewhere"))


def test_cluster_settings_are_rendered(tmp_path: Path) -> None:
    values = {
        "hostNetwork": True,
        "port": 10250,
        "openshift": True,
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "image": {"digest": f"sha256:{'a' * 64}"},
        "networkPolicy": {"apiServerPorts": [8443]},
        "guard": {"enabled": False},
    }
    objects = comparable(rendered(tmp_path, values))
    webhook = objects["Deployment holdfast-webhook"]
    pod = pod_of(webhook)
    assert webhook["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert (pod["tolerations"], pod["affinity"]) == (values["tolerations"], values["affinity"])
    (container,) = pod["containers"]
    assert container["image"] == f"holdfast@sha256:{'a' * 64}"
    assert "--port=10250" in container["args"]
    assert container["ports"] == [{"name": "https", "containerPort": 10250}]
    outbound = objects["NetworkPolicy holdfast-controller"]["spec"]["egress"]
    assert outbound == [
        {"ports": [{"protocol": "TCP", "port": 8443}]},
        {"ports": [{"protocol": "TCP", "port": 10250}]},
    ]
    assert [key for key in objects if "AdmissionPolicy" in key] == []


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("available", [False, True])
def test_disruption_budget_does_not_block_drains(
    replicas: int, available: bool, tmp_path: Path
) -> None:
    values = {"replicas": {"webhook": replicas}, "highAvailability": available}
    (budget,) = of_kind(rendered(tmp_path, values), "PodDisruptionBudget")
    assert (budget["spec"]["maxUnavailable"], "minAvailable" in budget["spec"]) == (1, False)


def test_every_configuration_has_its_own_config_map(tmp_path: Path) -> None:
    """After a failed upgrade, running pods still have the file that they started with."""
    names = set()
    configs: list[Object] = [{}, {"profiles": [{}]}]
    for config in configs:
        objects = rendered(tmp_path, {"config": config})
        (config_map,) = of_kind(objects, "ConfigMap")
        assert config_map["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        name = config_map["metadata"]["name"]
        pods = map(pod_of, of_kind(objects, "Deployment"))
        volumes = [volume for pod in pods for volume in pod["volumes"]]
        maps = [volume["configMap"]["name"] for volume in volumes if volume["name"] == "config"]
        assert (maps, name.startswith("holdfast-config-")) == ([name] * 2, True)
        names.add(name)
    assert len(names) == 2


PLUGIN = "config.profiles[0].pluginConfig[0]"
MISTAKES = [
    pytest.param(
        f"{PLUGIN}.name=delay,{PLUGIN}.args.maxDelay=1d",
        "at '/config/profiles/0/pluginConfig/0/args/maxDelay': '1d' does not match pattern",
        id="value",
    ),
    pytest.param(
        "config.admission.nameSpaceSelector.matchLabels.a=b",
        "at '/config/admission': additional properties 'nameSpaceSelector' not allowed",
        id="field",
    ),
    pytest.param("replica=3", "additional properties 'replica' not allowed", id="chart value"),
]


@pytest.mark.parametrize(("value", "error"), MISTAKES)
def test_helm_rejects_an_invalid_configuration(value: str, error: str) -> None:
    assert error in helm("template", str(chart.CHART), "--set", value).stderr


def test_helm_accepts_the_arguments_of_a_third_party_plugin(tmp_path: Path) -> None:
    plugin = {"name": "theirs", "args": {"anything": 1}}
    profile = {"plugins": {"enabled": [{"name": "theirs"}]}, "pluginConfig": [plugin]}
    rendered(tmp_path, {"config": {"profiles": [profile]}})


def test_status_port_is_passed_to_the_controller(tmp_path: Path) -> None:
    default_objects = comparable(rendered(tmp_path, {}))
    objects = comparable(rendered(tmp_path, {"statusPort": 8082}))
    (container,) = pod_of(objects["Deployment holdfast-controller"])["containers"]
    container["args"].remove("--status-port=8082")
    assert objects == default_objects


DIGEST, OTHER = (f"sha256:{digit * 64}" for digit in "ab")
IMAGES = [
    pytest.param({}, f"@{DIGEST}", id="released"),
    pytest.param({"tag": "0.1.0-next"}, ":0.1.0-next", id="tag"),
    pytest.param({"tag": "0.1.0-next", "digest": OTHER}, f"@{OTHER}", id="digest"),
]


@pytest.mark.parametrize(("values", "image"), IMAGES)
def test_image_values_override_the_digest_of_a_released_chart(
    values: Object, image: str, tmp_path: Path
) -> None:
    files = Files(VERSION, "example.com/holdfast", lambda _: None, tmp_path)
    files.chart(DIGEST)
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"image": values}))
    packed = str(tmp_path / f"holdfast-{VERSION}.tgz")
    result = helm("template", packed, "--values", str(file))
    objects = [document for document in yaml.safe_load_all(result.stdout) if document]
    pods = map(pod_of, of_kind(objects, "Deployment"))
    assert [pod["containers"][0]["image"] for pod in pods] == [f"example.com/holdfast{image}"] * 2


def test_permissions_outlive_a_failed_uninstall_until_the_next_one() -> None:
    """helm deletes objects with `hook-succeeded` even if a later hook of the event fails."""
    hooks: dict[str, list[tuple[str, str]]] = {}
    for document in uninstall_hooks():
        annotations = document["metadata"]["annotations"]
        row = (annotations[HOOK], annotations[f"{HOOK}-delete-policy"])
        hooks.setdefault(document["kind"], []).append(row)
    creation_policy, success_policy = "before-hook-creation", "before-hook-creation,hook-succeeded"
    assert hooks.pop("Job") == [("pre-delete", success_policy)]
    assert hooks
    assert set(map(tuple, hooks.values())) == {
        (("pre-delete", creation_policy), ("post-delete", success_policy))
    }


def test_uninstall_job_may_delete_only_our_webhook_configurations() -> None:
    roles = of_kind(uninstall_hooks(), "ClusterRole")
    assert len(roles) == 2
    for rule in [rule for role in roles for rule in role["rules"]]:
        if "delete" in rule["verbs"]:
            assert rule["resourceNames"] == ["holdfast", "zz-holdfast"]


def test_chart_passes_helm_lint() -> None:
    process = helm("lint", "--strict", str(chart.CHART))
    assert process.returncode == 0, process.stdout
