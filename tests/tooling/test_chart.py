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
    done = helm(*command, "--values", str(file))
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return [one for one in found if HOOK not in one["metadata"].get("annotations", {})]


def by_name(one: Object) -> str:
    return str(one["name"])


def comparable(objects: list[Object]) -> dict[str, Any]:
    """Return objects by name, without intended differences; see `test_chart_equals_kustomize`."""
    found = {}
    for one in json.loads(json.dumps(objects)):
        kind, name = one["kind"], one["metadata"]["name"]
        if kind == "ConfigMap":
            name = "holdfast-config"
            one["metadata"]["name"] = name
            one["metadata"].pop("annotations", None)
            one["data"] = {key: yaml.safe_load(text) for key, text in one["data"].items()}
        if kind == "Deployment":
            template = one["spec"]["template"]
            template["spec"]["volumes"].sort(key=by_name)  # kustomize puts added ones first
            (config, *_) = (one for one in template["spec"]["volumes"] if one["name"] == "config")
            config["configMap"]["name"] = "holdfast-config"
            for container in template["spec"]["containers"]:
                assert container.pop("imagePullPolicy", IMAGE_POLICY) == IMAGE_POLICY
                container["env"] = container.get("env") or []
                for listed in ("ports", "volumeMounts"):
                    container[listed].sort(key=by_name)
        if kind != "Namespace":
            found[f"{kind} {name}"] = one
    return found


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
        {
            "kubevirt": {"enabled": True},
            "highAvailability": True,
            "certManager": {"enabled": True},
            "clientCA": {"enabled": True},
            "monitoring": {"podMonitor": True, "rules": True},
            "callLast": True,
        },
        [
            *("kubevirt", "high-availability", "cert-manager", "monitoring", "client-ca"),
            "call-last",
        ],
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
    for name, one in from_kustomize.items():
        assert from_helm[name] == one, name


@pytest.mark.parametrize("components", [[], ["kubevirt", "high-availability"]])
def test_chart_equals_kustomize_in_another_namespace(components: list[str], tmp_path: Path) -> None:
    """Only the guard differs, which `holdfast policies` generates."""
    moved = comparable(built(tmp_path, components, namespace="elsewhere"))
    values = {"kubevirt": {"enabled": bool(components)}, "highAvailability": bool(components)}
    from_helm = comparable(rendered(tmp_path, values, "elsewhere"))
    assert from_helm.keys() == moved.keys()
    for name, one in moved.items():
        assert "AdmissionPolicy" in name or from_helm[name] == one, name


def test_generated_files_are_up_to_date() -> None:
    stale = [path.name for path, text in chart.files() if path.read_text() != text]
    assert stale == [], f"run: {chart.COMMAND}"


def test_edit_without_a_match_is_an_error() -> None:
    lost = chart.Template("base/webhook.yaml", [chart.Edit("no such line\n", "")])
    with pytest.raises(LookupError, match=r"base/webhook\.yaml has 0 times"):
        chart.rendered(lost)


CONFIGURATIONS = [
    pytest.param({}, id="defaults"),
    pytest.param(
        {
            "profiles": [
                {"pluginConfig": [{"name": "delay", "args": {"annotations": ["a", "b.c/d"]}}]}
            ]
        },
        id="delay",
    ),
    pytest.param(
        {
            "admission": {
                "namespaceSelector": {
                    "matchLabels": {"z": "", "holdfast": "enabled"},
                    "matchExpressions": [
                        {"key": "team", "operator": "In", "values": ["a", "b"]},
                        {"key": "tier", "operator": "Exists"},
                    ],
                }
            },
            "profiles": [
                {"pluginConfig": [{"name": "sticky", "args": {"nodeAnnotation": "e.f/g"}}]},
                {
                    "schedulerName": "other",
                    "pluginConfig": [{"name": "delay", "args": {"annotations": ["w"]}}],
                },
            ],
        },
        id="two-profiles",
    ),
    pytest.param(
        {
            "admission": {
                "objectSelector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "c", "operator": "Exists"}],
                }
            }
        },
        id="selectors",
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
    wanted = comparable([*yaml.safe_load_all(printed.output)])
    values = {"config": config, "callLast": call_last}
    found = comparable(rendered(tmp_path, values, "elsewhere"))
    assert {one: found[one] for one in found if one.startswith("Validating")} == wanted | {
        one: found[one] for one in found if one.startswith("ValidatingWebhook")
    }


def test_no_object_names_the_default_namespace_in_another_one(tmp_path: Path) -> None:
    everything = {
        "kubevirt": {"enabled": True},
        "highAvailability": True,
        "certManager": {"enabled": True},
        "monitoring": {"podMonitor": True, "rules": True, "dashboard": True},
    }
    assert "holdfast-system" not in json.dumps(rendered(tmp_path, everything, "elsewhere"))


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
    found = comparable(rendered(tmp_path, values))
    webhook = found["Deployment holdfast-webhook"]["spec"]
    pod = webhook["template"]["spec"]
    assert webhook["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
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
    outbound = found["NetworkPolicy holdfast-controller"]["spec"]["egress"]
    assert outbound == [
        {"ports": [{"protocol": "TCP", "port": 8443}]},
        {"ports": [{"protocol": "TCP", "port": 10250}]},
    ]
    assert [one for one in found if "AdmissionPolicy" in one] == []


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("available", [False, True])
def test_disruption_budget_does_not_block_drains(
    replicas: int, available: bool, tmp_path: Path
) -> None:
    values = {"replicas": {"webhook": replicas}, "highAvailability": available}
    found = rendered(tmp_path, values)
    (budget,) = (one["spec"] for one in found if one["kind"] == "PodDisruptionBudget")
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)


def test_every_configuration_has_its_own_config_map(tmp_path: Path) -> None:
    """After a failed upgrade, running pods still have the file that they started with."""
    names = set()
    configs: list[Object] = [{}, {"profiles": [{}]}]
    for config in configs:
        found = rendered(tmp_path, {"config": config})
        (metadata,) = (one["metadata"] for one in found if one["kind"] == "ConfigMap")
        assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
        name = metadata["name"]
        pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "Deployment"]
        volumes = [volume for pod in pods for volume in pod["volumes"]]
        mounted = [one["configMap"]["name"] for one in volumes if one["name"] == "config"]
        assert (mounted, name.startswith("holdfast-config-")) == ([name] * 2, True)
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
]


@pytest.mark.parametrize(("value", "error"), MISTAKES)
def test_helm_rejects_an_invalid_configuration(value: str, error: str) -> None:
    assert error in helm("template", str(chart.CHART), "--set", value).stderr


def test_helm_accepts_the_arguments_of_a_third_party_plugin(tmp_path: Path) -> None:
    plugin = {"name": "theirs", "args": {"anything": 1}}
    profile = {"plugins": {"enabled": [{"name": "theirs"}]}, "pluginConfig": [plugin]}
    rendered(tmp_path, {"config": {"profiles": [profile]}})


def test_status_port_is_passed_to_the_controller(tmp_path: Path) -> None:
    without = comparable(rendered(tmp_path, {}))
    found = comparable(rendered(tmp_path, {"statusPort": 8082}))
    (container,) = found["Deployment holdfast-controller"]["spec"]["template"]["spec"]["containers"]
    container["args"].remove("--status-port=8082")
    assert found == without


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
    done = helm("template", packed, "--values", str(file))
    made = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "Deployment"]
    pods = [one["spec"]["template"]["spec"] for one in made]
    assert [one["containers"][0]["image"] for one in pods] == [f"example.com/holdfast{image}"] * 2


def test_permissions_outlive_a_failed_uninstall_until_the_next_one() -> None:
    """helm deletes objects with `hook-succeeded` even if a later hook of the event fails."""
    done = helm("template", str(chart.CHART), "--show-only", "templates/uninstall.yaml")
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    hooks: dict[str, list[tuple[str, str]]] = {}
    for one in objects:
        annotations = one["metadata"]["annotations"]
        row = (annotations[HOOK], annotations[f"{HOOK}-delete-policy"])
        hooks.setdefault(one["kind"], []).append(row)
    again, done_with = "before-hook-creation", "before-hook-creation,hook-succeeded"
    assert hooks.pop("Job") == [("pre-delete", done_with)]
    assert hooks
    assert set(map(tuple, hooks.values())) == {(("pre-delete", again), ("post-delete", done_with))}


def test_uninstall_job_may_delete_only_our_webhook_configurations() -> None:
    done = helm("template", str(chart.CHART), "--show-only", "templates/uninstall.yaml")
    roles = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "ClusterRole"]
    assert len(roles) == 2
    for rule in [rule for role in roles for rule in role["rules"]]:
        if "delete" in rule["verbs"]:
            assert rule["resourceNames"] == ["holdfast", "zz-holdfast"]


def test_chart_passes_helm_lint() -> None:
    done = helm("lint", "--strict", str(chart.CHART))
    assert done.returncode == 0, done.stdout


def test_unknown_value_is_rejected() -> None:
    done = helm("template", str(chart.CHART), "--set", "replica=3")
    assert "additional properties 'replica' not allowed" in done.stderr
