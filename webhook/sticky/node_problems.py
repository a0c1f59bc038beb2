"""Explains to a VM's owner why its node cannot take the VM.

Covers only problems that the scheduler does not report: it only counts the nodes that do not match.
It reports taints and a lack of room in its Events.
"""

from __future__ import annotations

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model import messages, syntax
from holdfast.webhook.model.kubevirt import SCHEDULABLE, LauncherPod
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.model.paths import api_path

TIMEOUT = 5.0


def find(api: Api, name: str, pod: LauncherPod | None) -> str:
    """Read a node, and return why it cannot take a pod, and the fix. Raises ClusterError.

    `pod` is None for a pod that is already bound to the node.
    """
    node = None
    if syntax.is_object_name(name):
        node = listing.one(api, api_path("v1", "nodes", name=name), Node, timeout=TIMEOUT)
    return problem_of(name, node, pod)


def problem_of(name: str, node: Node | None, pod: LauncherPod | None) -> str:
    """Return why a node cannot take a pod, or an empty string if it can.

    `node` is None if the node does not exist.
    """
    if node is None:
        return "which does not exist; bring it back under its name"
    if node.spec.unschedulable and pod is not None:
        return f"which is cordoned; kubectl uncordon {name}"
    if node.not_ready:
        return f"which is not ready ({node.not_ready}); bring it back"
    if node.labels.get(SCHEDULABLE) != "true":
        return f"which lacks the label {SCHEDULABLE}=true; see why KubeVirt's virt-handler left it"
    return "" if pod is None else _contradiction(node, pod)


def _contradiction(node: Node, pod: LauncherPod) -> str:
    """Return the part of a pod that rules out a schedulable node, or an empty string."""
    unmet = node_affinity.unmet(pod, node)
    if unmet:
        return (
            f"which does not meet {messages.quote(str(unmet[0]))} of the pod's node selector or "
            "affinity; correct the VM's template or its record, and restart it"
        )
    if pod.lacks_volume:
        return "which a volume of the VM cannot be reached from; holdfast sticky show names it"
    return ""


def advice(vm_key: tuple[str, str], node: str, problem: str, annotation: str) -> str:
    """Return advice for the owner of a VM whose node cannot take it."""
    (namespace, name), node = vm_key, _shown(node)
    return (
        f"the VM waits for its node {node}, {problem}; or, if its disks are available elsewhere: "
        f"kubectl annotate vm {name} --namespace {namespace} {annotation}-, and restart it"
    )


def difference(vm_key: tuple[str, str], node: str, runs_on: str, annotation: str) -> str:
    """Return a warning about a VM that runs on another node for no known reason."""
    (namespace, name), node = vm_key, _shown(node)
    return (
        f"the VM runs on {runs_on}, but starts on {node} the next time, which is recorded: no "
        f"migration explains this. To keep it on {runs_on}: kubectl annotate vm {name} --namespace "
        f"{namespace} --overwrite {annotation}={runs_on}"
    )


def _shown(node: str) -> str:
    """Shorten and escape a recorded node, because a user may write anything there."""
    return messages.escape(messages.shorten(node, 253))
