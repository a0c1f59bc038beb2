"""Limits on the parts of a pod, checked before any plugin runs. Pure.

A body of 7 MiB can contain millions of empty parts, and a rule may write a patch operation of
hundreds of bytes for each. The API server's CEL takes seconds to compare ten thousand annotations
one by one, and gives up at forty thousand. Kubernetes only limits the size of the whole object.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.webhook.model.annotations import OWN_PREFIX
from holdfast.webhook.model.objects import NodeSelectorRequirement, NodeSelectorTerm, Pod

MAX_ENTRIES = 5_000
"""Maximum number of annotations, and of labels. The policies let the controller change no more."""
MAX_ANNOTATION_BYTES = 256 << 10
"""The API server's limit for the keys and values of all annotations of an object."""
MAX_GATES = 100
"""Maximum number of scheduling gates: a release writes or tests each of them."""
MAX_OWN_GATES = 16
"""Maximum number of our gates: the controller keeps their names for each held pod, and a scrape
counts them."""
MAX_TERMS = 1_000
"""Maximum number of node affinity terms, required or preferred; a rule may edit each of them."""
MAX_TOLERATIONS = 1_000
MAX_REQUIREMENTS = 10_000
"""Maximum number of requirements in all terms together."""
MAX_VALUES = 50_000
"""Maximum number of values in all requirements: the nodes of ten clusters of maximum size."""

_NODE = "spec.affinity.nodeAffinity"


def are_storable(annotations: Mapping[str, str]) -> bool:
    """Return whether an object may have these annotations, and the controller may write them."""
    size = sum(len(part.encode()) for entry in annotations.items() for part in entry)
    return len(annotations) <= MAX_ENTRIES and size <= MAX_ANNOTATION_BYTES


def find_excess(*pods: Pod) -> str:
    """Return a message about the first limit that pods exceed together; empty if there is none.

    Nested parts are counted only if their parents are within the limit, which bounds the cost.
    """
    if len(pods) == 1 and _is_usual(pods[0]):
        return ""
    for number, field, limit in _counts(pods):
        if number > limit:
            return f"{field}: {number:,} entries exceed the limit of {limit:,}: remove some"
    return ""


def _is_usual(pod: Pod) -> bool:
    """Return whether a pod is certainly within the limits, which most pods are."""
    return (
        len(pod.annotations) <= MAX_ENTRIES
        and len(pod.labels) <= MAX_ENTRIES
        and len(pod.gates) <= MAX_OWN_GATES
        and len(pod.spec.tolerations or ()) <= MAX_TOLERATIONS
        and pod.spec.affinity is None
    )


def _counts(pods: Sequence[Pod]) -> Iterator[tuple[int, str, int]]:
    yield sum(len(pod.annotations) for pod in pods), "metadata.annotations", MAX_ENTRIES
    yield sum(len(pod.labels) for pod in pods), "metadata.labels", MAX_ENTRIES
    # A release handles the gates of one pod, so templates are not counted together.
    yield max(len(pod.gates) for pod in pods), "spec.schedulingGates", MAX_GATES
    own_count = max(sum(gate.startswith(OWN_PREFIX) for gate in pod.gates) for pod in pods)
    yield own_count, f"spec.schedulingGates ({OWN_PREFIX}*)", MAX_OWN_GATES
    toleration_count = sum(len(pod.spec.tolerations or ()) for pod in pods)
    yield toleration_count, "spec.tolerations", MAX_TOLERATIONS
    affinities = [pod.spec.affinity.node_affinity for pod in pods if pod.spec.affinity]
    required_terms = [
        term
        for affinity in affinities
        if affinity is not None and affinity.required is not None
        for term in affinity.required.node_selector_terms or ()
    ]
    preferred_terms = [
        term for affinity in affinities if affinity is not None for term in affinity.preferred or ()
    ]
    yield len(required_terms), f"required terms of {_NODE}", MAX_TERMS
    yield len(preferred_terms), f"preferred terms of {_NODE}", MAX_TERMS
    requirement_lists = [
        *_lists(required_terms),
        *_lists(term.preference for term in preferred_terms),
    ]
    yield sum(map(len, requirement_lists)), f"requirements in {_NODE}", MAX_REQUIREMENTS
    value_count = sum(
        len(requirement.values or ())
        for requirements in requirement_lists
        for requirement in requirements
    )
    yield value_count, f"values in {_NODE}", MAX_VALUES


def _lists(terms: Iterable[NodeSelectorTerm]) -> Iterator[Sequence[NodeSelectorRequirement]]:
    for term in terms:
        yield term.match_expressions or ()
        yield term.match_fields or ()
