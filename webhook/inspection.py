"""What is read of a pod and around it to explain why it waits: objects with their status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from webhook.objects import Metadata, Pod

HOSTNAME = "kubernetes.io/hostname"


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: immutable, camelCase on the wire."""


class Condition(_Object, frozen=True):
    """What a controller says of an object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(_Object, frozen=True):
    """How far a pod is."""

    phase: str = ""
    conditions: list[Condition] | None = None


class PodWithStatus(Pod, frozen=True, rename="camel"):
    """A pod, with what became of it."""

    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> Condition | None:
        """Give its condition of a type, or None."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class _NodeSpec(_Object, frozen=True):
    unschedulable: bool = False


class _NodeStatus(_Object, frozen=True):
    conditions: list[Condition] | None = None


class Node(_Object, frozen=True):
    """A node, as far as it takes pods."""

    metadata: Metadata = Metadata()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


@dataclass(frozen=True, slots=True)
class NodeState:
    """Whether a node takes pods; `problem` is why not, empty where it does."""

    name: str
    problem: str = ""
    missing: bool = False


def node_state(name: str, node: Node | None) -> NodeState:
    """Judge a node that was looked up."""
    if node is None:
        return NodeState(name, "there is no such node", missing=True)
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    if node.spec.unschedulable:
        return NodeState(name, f"it is cordoned; kubectl uncordon {name}")
    if ready is not None and ready.status != "True":
        return NodeState(name, f"it is not ready ({ready.reason or ready.status})")
    return NodeState(name)


def pinned_nodes(pod: Pod) -> list[str]:
    """Name the nodes outside of which a pod cannot run; empty where it is tied to none."""
    selector: Mapping[str, str] = pod.node_selector
    if HOSTNAME in selector:
        return [selector[HOSTNAME]]
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    named: list[str] = []
    for term in terms or ():
        requirements = [*(term.match_fields or ()), *(term.match_expressions or ())]
        found = [
            one.values or ()
            for one in requirements
            if one.key in {"metadata.name", HOSTNAME} and one.operator == "In"
        ]
        if not found:
            return []  # this term takes nodes of any name
        named.extend(found[0])
    return list(dict.fromkeys(named))
