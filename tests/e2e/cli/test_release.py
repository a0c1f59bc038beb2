"""`holdfast release`, and which rights it needs."""

import re
from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.commands import GATE, ROOT, Cli, hold, manifests, user
from tests.e2e.namespace import Namespace, gates, pod


def test_release(ns: Namespace, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    ns.apply(pod("one", {"delay": "1h"}, **fields))
    assert cli.output("release", "one") == f"pod {ns.namespace}/one released\n"
    assert gates(ns.get("pod", "one")) == ["example.com/quota"]
    assert "is not held: it is Pending and has gates of other" in cli.error("release", "one")
    assert f"pod {ns.namespace}/two not found" in cli.error("release", "two")


def test_workload_release_and_dry_runs(ns: Namespace, cli: Cli) -> None:
    ns.apply(*yaml.safe_load_all(manifests("1h")))
    held = ns.eventually(
        lambda: [manifest for manifest in ns.all("pods") if gates(manifest) == [GATE]]
    )
    hold(ns, "foreign", app="web")  # not controlled by the Deployment
    name = held[0]["metadata"]["name"]
    assert f"Pod {ns.namespace}/{name}" in cli.output("describe", "deployment/web")
    for mode, suffix in (("client", "(dry run)"), ("server", "(server dry run)")):
        for arguments in (("release", "deploy/web"), ("freeze", "--reason", "x")):
            assert suffix in cli.output(*arguments, f"--dry-run={mode}")
    assert gates(ns.get("pod", name)) == [GATE]
    assert "annotations" not in ns.get("namespace", ns.namespace)["metadata"]
    cli.output("freeze", "--reason", "x")
    assert "(dry run)" in cli.output("thaw", "--dry-run=client")
    assert "holdfast.dev/freeze" in ns.get("namespace", ns.namespace)["metadata"]["annotations"]
    cli.output("thaw")
    result = cli.run("release", "deployment/web", "free", "none", "-n", ns.namespace)
    assert result.returncode == 1
    assert result.stdout == f"pod {ns.namespace}/{name} released\n"
    assert gates(ns.get("pod", "foreign")) == [GATE]
    unheld, missing, summary = result.stderr.splitlines()
    assert re.search(f"pod {ns.namespace}/free is not held: it is .* on node-", unheld)
    assert f"pod {ns.namespace}/none not found" in missing
    assert summary == "Error: 2 of 3 failed; the reasons are above"


def test_difference_from_installed_configuration_is_reported(
    ns: Namespace, cli: Cli, tmp_path: Path
) -> None:
    text = (ROOT / "manifests" / "base" / "holdfast.yaml").read_text()
    container = {"name": "main", "image": "busybox"}
    volumes = [{"name": "config", "configMap": {"name": "c"}}]
    labels = {"app": "none"}
    pod_spec = {"containers": [container], "volumes": volumes}
    template = {"metadata": {"labels": labels}, "spec": pod_spec}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    apps = {"apiVersion": "apps/v1", "kind": "Deployment"}
    ns.apply({**apps, "metadata": {"name": "holdfast-webhook"}, "spec": spec})
    data = {"holdfast.yaml": text}
    ns.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    options = ("--holdfast-namespace", ns.namespace, "-n", ns.namespace)
    file = tmp_path / "holdfast.yaml"
    head = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"
    file.write_text(f"{head}profiles: [{{schedulerName: other}}]\n")
    assert "note" not in cli.run("list", *options).stderr
    message = cli.run("list", *options, "--config", str(file)).stderr
    assert f"differs from the installed configuration, ConfigMap {ns.namespace}/c" in message
    message = user(ns, "reader", tmp_path, "view").run("list", *options).stderr
    assert "note" not in message
    message = user(ns, "stranger", tmp_path).run("list", *options).stderr
    assert message.count("assuming the defaults") == 1


def test_early_gate_removal_by_others_is_reported(ns: Namespace, cli: Cli) -> None:
    hold(ns, "asked", "taken")
    cli.output("release", "asked")
    ns.kubectl("patch", "pod", "taken", "--type=merge", "-p", '{"spec": {"schedulingGates": null}}')

    def messages() -> dict[tuple[str, str], str]:
        texts = {
            (event["reason"], event["involvedObject"]["name"]): event["message"]
            for event in ns.all("events")
            if event["reason"].startswith("Released")
        }
        return texts if len(texts) == 2 else {}

    event_messages = ns.eventually(messages)
    pattern = r"(1h|59m\d+s) before its due time"  # 1h: released in the second of its creation
    assert re.search(f"{pattern} by someone else", event_messages["ReleasedEarly", "taken"])
    assert re.search(f"{pattern} at a user's request", event_messages["Released", "asked"])
    message = "holdfast.dev/delay: removed by someone else before the due time"
    assert message in cli.output("explain", "taken")
    assert message not in cli.output("explain", "asked")


def test_releasing_many_pods_needs_confirmation(ns: Namespace, cli: Cli) -> None:
    hold(ns, "a", "b", app="web")
    hold(ns, "c")
    message = cli.error("release", "-l", "app=web")
    assert message == ("Error: cannot ask without a terminal (Release 2 pods now?); add --yes")
    assert gates(ns.get("pod", "a")) == [GATE]
    assert cli.output("release", "-l", "app=web", "--yes").count("released") == 2
    assert gates(ns.get("pod", "b")) == []
    assert gates(ns.get("pod", "c")) == [GATE]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["release"], id="no pod"),
        pytest.param(["release", "a", "-l", "b=c"], id="names and selector"),
        pytest.param(["release", "a", "-A"], id="in all namespaces"),
        pytest.param(["list", "-o", "table"], id="unknown format"),
        pytest.param(["preview"], id="no file"),
    ],
)
def test_usage_error_exits_with_status_2(cli: Cli, arguments: list[str]) -> None:
    result = cli.run(*arguments)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_user_without_the_release_verb_is_rejected(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    editor = user(ns, "editor", tmp_path, "edit")
    assert editor.error("release", "held") == (
        f"Error: you may not release pods in namespace {ns.namespace}: the verb 'release' on "
        "holds.holdfast.dev is missing; ask an admin to bind the ClusterRole holdfast-releaser"
    )
    assert gates(ns.get("pod", "held")) == [GATE]


def test_user_with_the_release_verb_releases(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    role = f"releaser-{ns.namespace}"
    ns.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {"apiGroups": ["holdfast.dev"], "resources": ["holds"], "verbs": ["release"]}
            ],
        }
    )
    releaser = user(ns, "releaser", tmp_path, "edit", role)
    assert "released" in releaser.output("release", "held")
