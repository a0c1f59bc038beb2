"""The configuration that commands use: the installed one, a file, or the defaults."""

import json
from pathlib import Path

import pytest

from holdfast.webhook.cli import configured
from holdfast.webhook.errors import ConfigurationError
from tests.support.builders import HEAD, held, make_pod
from tests.support.fakes import NAMESPACES
from tests.support.served import ServedApi
from tests.unit.cli.commands import written

DEPLOYMENT = "/apis/apps/v1/namespaces/holdfast-system/deployments/holdfast-webhook"
CONFIG_MAP = "/api/v1/namespaces/holdfast-system/configmaps/holdfast-config-7k"
OTHER_KEY = HEAD + (
    "profiles: [{schedulerName: '*', pluginConfig: [{name: delay, args: {annotations: [wait]}}]}]\n"
)
POD = held({"wait": "15", "holdfast.dev/held": "wait=15s"}, name="web-0")


def install(cluster: ServedApi, text: str, *, disabled: str = "") -> None:
    env = [{"name": "HOLDFAST_DISABLE_PLUGINS", "value": disabled}, {"name": "OTHER"}]
    pod = {
        "containers": [{"name": "mesh"}, {"name": "webhook", "env": env}],
        "volumes": [{"name": "tls"}, {"configMap": {"name": "holdfast-config-7k"}}],
    }
    cluster.api.put(DEPLOYMENT, {"spec": {"template": {"spec": pod}}})
    cluster.api.put(CONFIG_MAP, {"data": {"holdfast.yaml": text}})


def test_installed_configuration_is_used(cluster: ServedApi) -> None:
    install(cluster, OTHER_KEY)
    cluster.api.put_pod(POD)
    result = cluster.run("explain", "web-0")
    assert 'wait: "15": 15s from creation' in result.stdout
    assert result.stderr == ""


def test_config_file_that_differs_from_installed_is_noted(
    cluster: ServedApi, tmp_path: Path
) -> None:
    install(cluster, OTHER_KEY)
    file = written(tmp_path, HEAD)
    stderr = cluster.run("list", "--config", file).stderr
    assert stderr.startswith(
        f"note: {file} differs from the installed configuration, "
        "ConfigMap holdfast-system/holdfast-config-7k\n"
    )
    written(tmp_path, f"# the same\n{OTHER_KEY}")
    assert "note" not in cluster.run("list", "--config", file).stderr


def test_defaults_apply_without_an_installation(cluster: ServedApi) -> None:
    assert configured.read(cluster.api, "holdfast-system") is None
    assert "note" not in cluster.run("list").stderr


@pytest.mark.parametrize("path", [DEPLOYMENT, CONFIG_MAP], ids=["Deployment", "ConfigMap"])
def test_fallback_to_defaults_is_noted_once(path: str, cluster: ServedApi, tmp_path: Path) -> None:
    install(cluster, OTHER_KEY)
    cluster.forbidden.add(path)
    stderr = cluster.run("list").stderr
    note = (
        "note: no permission to read the installed configuration; assuming the defaults. Ask an "
        "admin for the Role holdfast-config-reader in namespace holdfast-system, or give --config"
    )
    assert stderr.count(f"{note}\n") == 1
    assert f"{note}: HTTP 403: " in cluster.run("list", "-v=1").stderr
    file = written(tmp_path, HEAD)
    assert "note" not in cluster.run("list", "--config", file).stderr
    cluster.api.put_pod(POD)
    result = cluster.run("release", "web-0")
    assert result.stdout == "pod default/web-0 released\n"
    assert "note" not in result.stderr


def test_installed_configuration_with_unknown_plugin_is_noted(cluster: ServedApi) -> None:
    install(cluster, HEAD + "profiles: [{schedulerName: x, plugins: {enabled: [{name: mine}]}}]\n")
    assert "note: the installed configuration cannot be used (ConfigMap holdfast-system/" in (
        cluster.run("list").stderr
    )


def test_plugins_disabled_by_the_installation(cluster: ServedApi) -> None:
    install(cluster, HEAD, disabled="sticky")
    setup = configured.setup(cluster.api, "holdfast-system", None)
    assert setup.disabled == ["sticky"]


def test_missing_file_is_an_error(cluster: ServedApi, tmp_path: Path) -> None:
    install(cluster, HEAD)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        configured.setup(cluster.api, "holdfast-system", tmp_path / "none")


def test_preview_uses_the_installed_configuration(cluster: ServedApi, tmp_path: Path) -> None:
    install(cluster, OTHER_KEY)
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {wait: soon}}}"
    file = written(tmp_path, pod)
    stdout = cluster.run("preview", "-f", file, code=1).stdout
    assert 'annotation wait: invalid value "soon"' in stdout
    stderr = cluster.run("preview", "-f", file, "--cluster", "gone").stderr
    assert stderr.startswith("note: the installed configuration cannot be used (http://127.0.0.1:1")


def test_preview_notes_unselected_namespace(cluster: ServedApi, tmp_path: Path) -> None:
    install(cluster, f"{HEAD}admission: {{namespaceSelector: {{matchLabels: {{team: shop}}}}}}")
    cluster.api.put(f"{NAMESPACES}/shop", {"metadata": {"labels": {"team": "shop"}}})
    cluster.api.put(f"{NAMESPACES}/other", {})
    pods = [{"apiVersion": "v1", "kind": "Pod", **make_pod({"delay": "15"})}, {**make_pod()}]
    for number, pod in enumerate(pods):
        pod["metadata"] |= {"name": f"{number}", "namespace": ""}
    file = written(tmp_path, json.dumps({"kind": "List", "items": pods}))

    def shown(namespace: str) -> str:
        return cluster.run("preview", "-n", namespace, "-f", file).stdout

    reason = "not sent to Holdfast: namespace other does not match admission.namespaceSelector\n"
    assert "not sent" not in shown("shop")
    assert cluster.api.requests.count(("GET", f"{NAMESPACES}/shop")) == 1
    assert f"  warning: {reason}" in shown("other")
    assert f"Pod other/1: unchanged\n  {reason}" in shown("other")
    cluster.forbidden = {f"{NAMESPACES}/other"}
    assert "not sent" not in shown("other")


def test_explain_reads_the_namespace_once(cluster: ServedApi) -> None:
    install(cluster, f"{HEAD}admission: {{namespaceSelector: {{matchLabels: {{team: shop}}}}}}")
    cluster.api.put(f"{NAMESPACES}/default", {})
    for name in ("a", "b"):
        cluster.api.put_pod(make_pod({"delay": "15"}, name=name))
    reason = "namespace default does not match admission.namespaceSelector"
    assert cluster.run("explain", "a", "b").stdout.count(f"not sent to Holdfast: {reason}") == 2
    assert cluster.api.requests.count(("GET", f"{NAMESPACES}/default")) == 1
