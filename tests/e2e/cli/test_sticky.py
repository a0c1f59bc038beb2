"""`holdfast sticky`."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli.commands import CRDS, VM, Cli
from tests.e2e.guard.webhooks import configuration
from tests.e2e.namespace import Namespace


@pytest.mark.xdist_group("cli")
def test_sticky_set_show_list_and_clear(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    vm: Any = ns.create({**VM, "metadata": {"name": "db"}})
    assert cli.output("sticky", "list").splitlines()[1].split()[:4] == ["db", "-", "yes", "-"]
    ns.kubectl("cordon", "node-2")
    output = cli.output("sticky", "set", "db", "node-2")
    assert "returns to node-2 at its next start" in output
    assert "warning: node-2: it is cordoned" in output
    ns.kubectl("uncordon", "node-2")
    annotations = ns.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations == {
        "holdfast.dev/sticky-node": "node-2",
        "holdfast.dev/sticky-node-uid": vm["metadata"]["uid"],
    }
    text = cli.output("sticky", "show", "db")
    assert "returns to node-2" in text
    assert "was created on" not in text
    (item,) = json.loads(cli.output("sticky", "list", "-o", "json"))["items"]
    assert (item["node"], item["runsOn"]) == ("node-2", None)
    spec = {"template": {"spec": {"nodeSelector": {"zone": "b"}}}}
    ns.kubectl("patch", "vm", "db", "--type=merge", "-p", json.dumps({"spec": spec}))
    reason = 'the node selector or affinity of the pod requires "zone In [b]"'
    assert f"warning: node-1: {reason}" in cli.output("sticky", "set", "db", "node-1")
    assert "no longer has a recorded node" in cli.output("sticky", "clear", "db")
    recorded = {"holdfast.dev/sticky-node-uid": vm["metadata"]["uid"]}
    assert ns.get("virtualmachine", "db")["metadata"]["annotations"] == recorded


@pytest.mark.xdist_group("cli")
def test_sticky_move_and_a_recreated_node(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    for name, node in (("a", "old"), ("b", "old"), ("c", "node-1")):
        annotations = {"holdfast.dev/sticky-node": node}
        ns.create({**VM, "metadata": {"name": name, "annotations": annotations}})
    move = ("sticky", "move", "--from", "old", "--to")
    assert "node new not found" in cli.error(*move, "new")
    message = "Error: cannot ask without a terminal (Move 2 VMs from old to node-2?); add --yes"
    assert cli.error(*move, "node-2") == message
    assert cli.output(*move, "node-2", "--yes").count("returns to node-2 at its next start") == 2
    assert cli.output(*move, "node-2", "--yes") == ""
    listed = cli.output("sticky", "list").splitlines()[1:]
    assert [line.split()[:2] for line in listed] == [
        ["a", "node-2"],
        ["b", "node-2"],
        ["c", "node-1"],
    ]

    assert "was created on" not in cli.output("sticky", "show", "a")
    manifest = ns.get("node", "node-2")
    ns.kubectl("delete", "node", "node-2")
    time.sleep(1.1)  # times have whole seconds
    metadata = {key: manifest["metadata"][key] for key in ("name", "labels", "annotations")}
    ns.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    text = cli.output("sticky", "show", "a")
    assert "node-2 was created on" in text
    assert "it may be another node of that name, without the VM's disks" in text


STICKY_BY_PROFILE = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- schedulerName: gold
  plugins: {disabled: [{name: sticky}]}
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/of-gold}}]
- schedulerName: "*"
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/node, namespaces: [NAME]}}]
"""


@pytest.mark.xdist_group("cli")
def test_sticky_uses_the_registered_annotation(bare: tuple[Namespace, Cli], tmp_path: Path) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    ns.create({**VM, "metadata": {"name": "db"}})
    spec = {"template": {"spec": {"schedulerName": "gold"}}}
    ns.create({**VM, "metadata": {"name": "other"}, "spec": spec})
    registered = configuration("ValidatingWebhookConfiguration")
    registered["metadata"]["labels"] = {"app.kubernetes.io/name": "holdfast"}
    condition = {"name": "asks", "expression": "'example.com/node' == 'x'"}
    registered["webhooks"][0]["matchConditions"] = [condition]
    ns.apply(registered)
    not_read = "in this cluster does not read annotation holdfast.dev/sticky-node of VMs; give"
    for arguments in (["set", "db", "node-2"], ["clear", "db"]):
        assert not_read in cli.error("sticky", *arguments)
    assert "annotations" not in ns.get("virtualmachine", "db")["metadata"]
    assert not_read in cli.run("sticky", "list", "-n", ns.namespace).stderr
    assert not_read in cli.run("sticky", "show", "db", "-n", ns.namespace).stderr

    file = tmp_path / "holdfast.yaml"
    file.write_text(STICKY_BY_PROFILE.replace("NAME", ns.namespace))
    options = ("--config", str(file))
    assert "returns to node-2" in cli.output("sticky", "set", "db", "node-2", *options)
    annotations = ns.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations["example.com/node"] == "node-2"
    listed = cli.run("sticky", "list", "-n", ns.namespace, *options)
    assert listed.stderr == ""
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:]] == [
        ["db", "node-2", "yes"],
        ["other", "-", "no"],
    ]

    file.write_text(STICKY_BY_PROFILE.replace("NAME", "elsewhere"))
    message = cli.output("sticky", "set", "db", "node-1", *options)
    assert "node-1 is recorded for VM" in message
    assert "which is not sticky: namespace" in message
