"""Pods with their status, and the nodes that they are restricted to. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.model import messages
from holdfast.webhook.model.nodes import MountedVolume, Node, PersistentVolume
from holdfast.webhook.model.objects import Condition, Pod, PodSpec, PodStatus

HOSTNAME = "kubernetes.io/hostname"
_MAX_NAMED = 3
"""Maximum number of requirements in a message."""


class _MountingPodSpec(PodSpec, frozen=True):
    volumes: list[MountedVolume] | None = None


class PodWithStatus(Pod, frozen=True, rename="camel"):
    """A pod with its status."""

    spec: _MountingPodSpec = _MountingPodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> Condition | None:
        """Return the pod's condition of this type, or None."""
        return next(
            (condition for condition in self.status.conditions or () if condition.type == kind),
            None,
        )


@dataclass(frozen=True, slots=True)
class NodeState:
    """Whether a node accepts a pod; `problem` says why not.

    `excluded` is true if the cause is the pod or its volumes, not the node. `unchecked` is true if
    it is not known whether the node accepts the pod.
    """

    name: str
    problem: str = ""
    missing: bool = False
    excluded: bool = False
    unchecked: bool = False
    remarks: tuple[str, ...] = ()


def node_state(name: str, node: Node | None, pod: Pod | None = None) -> NodeState:
    """Return whether a node accepts pods in general, or this pod."""
    if node is None:
        return NodeState(name, "the node does not exist", missing=True)
    if node.spec.unschedulable:
        return NodeState(name, f"it is cordoned; run kubectl uncordon {name}")
    if node.not_ready:
        return not_ready(name, node)
    unmet = node_affinity.unmet(pod, node) if pod else ()
    if unmet:
        quoted = " and ".join(
            messages.quote(str(requirement)) for requirement in unmet[:_MAX_NAMED]
        )
        problem = f"the node selector or affinity of the pod requires {quoted}"
        return NodeState(name, problem, excluded=True)
    return NodeState(name)


def not_ready(name: str, node: Node) -> NodeState:
    """Return the state of a node that is not ready."""
    return NodeState(name, f"it is not ready ({node.not_ready})")


def with_volume(state: NodeState, node: Node, claim: str, volume: PersistentVolume) -> NodeState:
    """Return the state, with a problem if the node cannot access this volume of the pod."""
    unmet = node_affinity.outside(volume.spec.node_affinity.required, node)
    if not unmet or state.problem:
        return state
    problem = f"the volume of claim {claim} requires {messages.quote(str(unmet[0]))}"
    return replace(state, problem=problem, excluded=True)


@dataclass(frozen=True, slots=True)
class Pin:
    """A node to which a pod is restricted: by its name, or by its hostname label."""

    value: str
    by_label: bool = False


def pins(pod: Pod) -> Sequence[Pin]:
    """Return the nodes that a pod is restricted to; empty if it is not restricted."""
    term_pins = list(_pins_of_terms(pod))
    if term_pins and None not in term_pins:
        return list(dict.fromkeys(pin for pin in term_pins if pin))
    hostname = pod.node_selector.get(HOSTNAME)
    return [] if hostname is None else [Pin(hostname, by_label=True)]


def _pins_of_terms(pod: Pod) -> Iterator[Pin | None]:
    """Yield the pins of each term; None for a term that does not restrict the node's name."""
    for term in node_affinity.terms(pod) or ():
        requirements = [
            req for req in term if req.operator == "In" and (req.is_field or req.key == HOSTNAME)
        ]
        if not requirements:
            yield None
            continue
        first = max(requirements, key=lambda requirement: requirement.is_field)
        yield from (Pin(value, not first.is_field) for value in first.values)
