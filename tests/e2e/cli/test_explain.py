"""`holdfast explain`."""

from typing import Any

from holdfast.webhook.model import kubevirt
from tests.e2e.cli.commands import Cli, hold
from tests.e2e.namespace import HOSTNAME, Namespace, pod, volume


def test_explain_a_held_pod(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held")
    output = cli.output("explain", "held")
    assert "is held until" in output
    assert 'delay: "1h": 1h from creation' in output
    assert "delay: adds scheduling gate holdfast.dev/delay" in output
    assert f"holdfast release held -n {ns.namespace}" in output


def test_explain_foreign_gate_and_unmet_node_selector(ns: Namespace, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    selector = {"kubernetes.io/hostname": "node-9"}
    ns.apply(pod("tied", {"delay": "1h"}, nodeSelector=selector, **fields))
    output = cli.output("explain", "tied")
    assert "example.com/quota: another component's" in output
    assert "must run on a node labeled kubernetes.io/hostname=node-9: there is none" in output


def test_explain_shows_the_schedulers_message(ns: Namespace, cli: Cli) -> None:
    ns.apply(pod("nowhere", nodeSelector={"disk": "fast"}))
    ns.eventually(lambda: "Unschedulable" in cli.output("explain", "nowhere"))
    assert "scheduler: Unschedulable: 0/3 nodes" in cli.output("explain", "nowhere")


def test_explain_a_changed_template(ns: Namespace, cli: Cli) -> None:
    template: Any = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"delay": "1h"}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    manifest: Any = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    ns.apply(manifest)
    ns.eventually(lambda: ns.all("pods", "app=web"))
    template["metadata"]["annotations"] = {"delay": "5s"}
    ns.apply(manifest)
    advice = 'the template of StatefulSet web has changed; to apply delay "5s", delete the pod'
    assert advice in cli.output("explain", "web-0")


def test_explain_contradictory_requirements(ns: Namespace, cli: Cli) -> None:
    ns.apply(pod("torn", {"type": "space"}, nodeSelector={"kubernetes.io/role": "core"}))
    assert (
        'no node can meet "kubernetes.io/role In [core]" (nodeSelector) and '
        '"kubernetes.io/role In [edge]" (placement rule space)'
    ) in cli.output("explain", "torn")


def test_explain_a_volume_on_another_node(ns: Namespace, cli: Cli) -> None:
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["node-2"]}]}
    ns.apply(*volume(f"disk-{ns.namespace}", "data", {"nodeSelectorTerms": [term]}))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    ns.apply(pod("far", nodeSelector={HOSTNAME: "node-1"}, volumes=volumes))

    def said() -> str:
        status = ns.get("pod", "far")["status"]
        return str([condition.get("message") for condition in status.get("conditions", ())])

    ns.eventually(lambda: any(text in said() for text in kubevirt.OUT_OF_REACH))
    message = cli.output("explain", "far")
    assert (
        f'must run on node-1: the volume of claim data requires "{HOSTNAME} In [node-2]"' in message
    )


def test_explain_a_missing_pod(ns: Namespace, cli: Cli) -> None:
    assert cli.error("explain", "none") == (
        f"Error: pod {ns.namespace}/none not found; see kubectl get pods -n {ns.namespace}"
    )
