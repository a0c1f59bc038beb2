"""Pods with their status, and the nodes that they are restricted to. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.model import messages
from holdfast.webhook.model.nodes import MountedVolume, Node, PersistentVolume
from holdfast.webhook.model.objects import Condition, Pod, PodSpec, PodStatus

HOSTNAME = "kubernetes.io/hostname"
_MAX_NAMED = 3
"""Requirements that a message names."""


class _MountingPodSpec(PodSpec, frozen=True):
    volumes: list[MountedVolume] | None = None


class PodWithStatus(Pod, frozen=True, rename="camel"):
    """A pod with its status."""

    spec: _MountingPodSpec = _MountingPodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of this type, or None."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeState:
    """Whether a node accepts a pod; `problem` says why not.

    `excluded` is true if the pod or its volumes rule the node out, rather than the node itself;
    `unchecked` if it is not known whether it accepts the pod.
    """

    name: str
    problem: str = ""
    missing: bool = False
    excluded: bool = False
    unchecked: bool = False
    remarks: tuple[str, ...] = ()


def node_state(name: str, node: Node | None, pod: Pod | None = None) -> NodeState:
    """Describe whether a node accepts pods, or this pod."""
    if node is None:
        return NodeState(name, "the node does not exist", missing=True)
    if node.spec.unschedulable:
        return NodeState(name, f"it is cordoned; run kubectl uncordon {name}")
    if node.not_ready:
        return not_ready(name, node)
    unmet = node_affinity.unmet(pod, node) if pod else ()
    if unmet:
        quoted = " and ".join(messages.quote(str(one)) for one in unmet[:_MAX_NAMED])
        why = f"the node selector or affinity of the pod requires {quoted}"
        return NodeState(name, why, excluded=True)
    return NodeState(name)


def not_ready(name: str, node: Node) -> NodeState:
    """Describe a node that is not ready."""
    return NodeState(name, f"it is not ready ({node.not_ready})")


def with_volume(state: NodeState, node: Node, claim: str, volume: PersistentVolume) -> NodeState:
    """Add to a node's state that one of the pod's volumes cannot be reached from there."""
    unmet = node_affinity.outside(volume.spec.node_affinity.required, node)
    if not unmet or state.problem:
        return state
    why = f"the volume of claim {claim} requires {messages.quote(str(unmet[0]))}"
    return replace(state, problem=why, excluded=True)


@dataclass(frozen=True, slots=True)
class Pin:
    """A node to which a pod is restricted: by its name, or by its hostname label."""

    value: str
    by_label: bool = False


def pins(pod: Pod) -> Sequence[Pin]:
    """List the nodes that a pod is restricted to; empty if it is not restricted."""
    named = list(_pins_of_terms(pod))
    if named and None not in named:
        return list(dict.fromkeys(one for one in named if one))
    hostname = pod.node_selector.get(HOSTNAME)
    return [] if hostname is None else [Pin(hostname, by_label=True)]


def _pins_of_terms(pod: Pod) -> Iterator[Pin | None]:
    """Give None for a term that takes nodes of any name."""
    for term in node_affinity.terms(pod) or ():
        found = [
            one for one in term if one.operator == "In" and (one.is_field or one.key == HOSTNAME)
        ]
        if not found:
            yield None
            continue
        first = max(found, key=lambda one: one.is_field)
        yield from (Pin(value, not first.is_field) for value in first.values)
