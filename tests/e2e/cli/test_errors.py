"""Missing rights, unreachable clusters, and the context of a kubeconfig."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.commands import Cli, hold, user
from tests.e2e.namespace import Namespace


@pytest.mark.parametrize("arguments", [["list"], ["explain", "held"], ["release", "held"]], ids=str)
def test_permission_error_names_the_missing_right(
    ns: Namespace, tmp_path: Path, arguments: list[str]
) -> None:
    message = user(ns, "nobody", tmp_path).error(*arguments)
    assert "cannot " in message
    assert 'resource "pods"' in message
    assert message.endswith(
        "ask an admin for this permission, or choose a namespace (-n) where you have it"
    )


def test_unreachable_cluster_is_reported(ns: Namespace, tmp_path: Path) -> None:
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    message = Cli(path, "default").error("list")
    assert "https://127.0.0.1:1 does not answer" in message
    assert message.endswith(
        "check that the cluster is running, and check --kubeconfig, --context and KUBECONFIG"
    )
    result = Cli(path, "default").run("doctor")
    assert result.returncode == 1
    assert "does not answer" in result.stderr


def test_namespace_defaults_to_that_of_the_context(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = ns.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    assert "held" in Cli(path, "").run("list").stdout
    name = config["contexts"][0]["name"]
    assert "held" in Cli(path, "").run("list", "--context", name).stdout
