"""`holdfast release`, and which rights it needs."""

import re
from pathlib import Path

import yaml

from tests.e2e.cli.commands import GATE, ROOT, Cli, hold, manifests, user
from tests.e2e.namespace import Namespace, gates, pod
from tests.e2e.workloads import LABELS, workload


def test_release(ns: Namespace, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    ns.apply(pod("one", {"delay": "1h"}, **fields))
    assert cli.output("release", "one") == f"pod {ns.namespace}/one released\n"
    assert gates(ns.get("pod", "one")) == ["example.com/quota"]
    assert "is not held: it is Pending and has gates of other" in cli.error("release", "one")


def test_workload_release_and_dry_runs(ns: Namespace, cli: Cli) -> None:
    ns.apply(*yaml.safe_load_all(manifests("1h")))
    held = ns.eventually(
        lambda: [manifest for manifest in ns.all("pods") if gates(manifest) == [GATE]]
    )
    hold(ns, "foreign", **LABELS)  # not controlled by the Deployment
    name = held[0]["metadata"]["name"]
    assert f"Pod {ns.namespace}/{name}" in cli.output("describe", "deployment/it")
    for mode, suffix in (("client", "(dry run)"), ("server", "(server dry run)")):
        for arguments in (("release", "deploy/it"), ("freeze", "--reason", "x")):
            assert suffix in cli.output(*arguments, f"--dry-run={mode}")
    assert gates(ns.get("pod", name)) == [GATE]
    assert "annotations" not in ns.get("namespace", ns.namespace)["metadata"]
    result = cli.run("release", "deployment/it", "free", "none", "-n", ns.namespace)
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
    deployment = workload("Deployment", replicas=0)
    deployment["metadata"]["name"] = "holdfast-webhook"
    volumes = [{"name": "config", "configMap": {"name": "c"}}]
    deployment["spec"]["template"]["spec"]["volumes"] = volumes
    data = {"holdfast.yaml": (ROOT / "manifests" / "base" / "holdfast.yaml").read_text()}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    ns.apply(deployment, {**kind, "metadata": {"name": "c"}, "data": data})
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
    taken = ns.eventually(lambda: ns.notes("taken").get("ReleasedEarly", ""))
    asked = ns.eventually(lambda: ns.notes("asked").get("Released", ""))
    pattern = r"(1h|59m\d+s) before its due time"  # 1h: released in the second of its creation
    assert re.search(f"{pattern} by someone else", taken)
    assert re.search(f"{pattern} at a user's request", asked)
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


def test_release_needs_the_release_verb(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    assert user(ns, "editor", tmp_path, "edit").error("release", "held") == (
        f"Error: you may not release pods in namespace {ns.namespace}: the verb 'release' on "
        "holds.holdfast.dev is missing; ask an admin to bind the ClusterRole holdfast-releaser"
    )
    assert gates(ns.get("pod", "held")) == [GATE]

    name = f"releaser-{ns.namespace}"
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    rule = {"apiGroups": ["holdfast.dev"], "resources": ["holds"], "verbs": ["release"]}
    ns.apply({**kind, "metadata": {"name": name}, "rules": [rule]})
    releaser = user(ns, "releaser", tmp_path, "edit", name)
    assert "released" in releaser.output("release", "held")
