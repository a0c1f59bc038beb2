"""Why a VM's node cannot take it, in words for who runs the VM. Pure.

Only what nobody else would say: what the scheduler finds (no room, a taint) is in its own Events.
"""

from __future__ import annotations

import msgspec

from webhook.objects import Metadata
from webhook.vms import SCHEDULABLE


class NodeSpec(msgspec.Struct, frozen=True):
    """Whether a node takes pods at all."""

    unschedulable: bool = False


class Node(msgspec.Struct, frozen=True):
    """A node, as far as a VM needs it."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()


def trouble(name: str, node: Node | None) -> str:
    """Say what is wrong with a node and the cure; empty where nothing is, None for no node."""
    if node is None:
        return "which does not exist; bring it back under its name"
    if node.spec.unschedulable:
        return f"which is cordoned; kubectl uncordon {name}"
    if (node.metadata.labels or {}).get(SCHEDULABLE) != "true":
        return f"which lacks the label {SCHEDULABLE}=true; see why KubeVirt's virt-handler left it"
    return ""


def advice(vm_key: tuple[str, str], node: str, problem: str, annotation: str) -> str:
    """Say what a person can do for a VM whose node cannot take it."""
    namespace, name = vm_key
    return (
        f"the VM waits for its node {node}, {problem}; or, if its disks can be had elsewhere: "
        f"kubectl annotate vm {name} --namespace {namespace} {annotation}-, and restart it"
    )
