"""How much of something a pod may have: what has more is refused before anybody looks at it. Pure.

A body of 7 MiB has room for millions of empty parts, and for each of them a rule writes an
operation of hundreds of bytes. Kubernetes itself only limits the size of the whole object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from webhook.objects import NodeRequirement, NodeTerm, Pod

MOST_TERMS = 1_000
"""Terms of node affinity, required or preferred; into each a rule may have to write."""
MOST_TOLERATIONS = 1_000
MOST_REQUIREMENTS = 10_000
"""Requirements of all terms together."""
MOST_VALUES = 50_000
"""Values of all requirements together: each node of ten clusters of the greatest size."""

_NODE = "spec.affinity.nodeAffinity"


def excess(pod: Pod) -> str:
    """Say of what a pod has too much; empty where all is within its bound.

    What is nested is counted only where that in which it is nested is within its own bound, so
    that it costs no more however much there is.
    """
    return next(_told(pod), "")


def _told(pod: Pod) -> Iterator[str]:
    for number, what, most in _counted(pod):
        if number > most:
            yield f"{what}: there are {number:,}; write {most:,} at most"


def _counted(pod: Pod) -> Iterator[tuple[int, str, int]]:
    yield len(pod.spec.tolerations or ()), "spec.tolerations", MOST_TOLERATIONS
    affinity = pod.spec.affinity
    node = affinity.node_affinity if affinity else None
    if node is None:
        return
    required = (node.required and node.required.node_selector_terms) or ()
    preferred = node.preferred or ()
    yield len(required), f"required terms of {_NODE}", MOST_TERMS
    yield len(preferred), f"preferred terms of {_NODE}", MOST_TERMS
    lists = [*_lists(required), *_lists(one.preference for one in preferred)]
    yield sum(map(len, lists)), f"requirements in {_NODE}", MOST_REQUIREMENTS
    values = sum(len(one.values or ()) for found in lists for one in found)
    yield values, f"values in {_NODE}", MOST_VALUES


def _lists(terms: Iterable[NodeTerm]) -> Iterator[Sequence[NodeRequirement]]:
    for term in terms:
        yield term.match_expressions or ()
        yield term.match_fields or ()
