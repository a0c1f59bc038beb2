"""Node affinity: adds requirements, and finds contradictions. Pure.

A pod's required terms are ORed, so a requirement is added to each of them; an additional term would
allow more nodes. An empty term matches no node, and stays empty. Existing terms are only extended:
the API server accepts nothing else in an update of a gated pod (validateNodeAffinityMutation).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.webhook.model.edits import Operation, PreferNodes, Requirement
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.model.objects import NodeAffinity, NodeSelector, NodeSelectorTerm, Pod

_AFFINITY = "/spec/affinity"
_NODE = f"{_AFFINITY}/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"{_NODE}/{_REQUIRED}/nodeSelectorTerms"

INT64_MAX = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")

Term = tuple[Requirement, ...]


def terms(pod: Pod) -> Sequence[Term] | None:
    """Return the pod's required terms; None if it has no required node affinity."""
    affinity = _node(pod)
    if affinity is None or affinity.required is None:
        return None
    return [_read(term) for term in affinity.required.node_selector_terms or ()]


def operations(
    pod: Pod, required: Iterable[Requirement], preferred: Iterable[PreferNodes]
) -> list[Operation]:
    """Return the patch that adds the missing requirements and leaves the rest unchanged."""
    required = tuple(dict.fromkeys(required))
    pod_terms, affinity = terms(pod), _node(pod)
    patch: list[Operation] = []
    parts: dict[str, Any] = {}
    if required and pod_terms is None:
        parts[_REQUIRED] = {"nodeSelectorTerms": [_written(required)]}
    sources = (affinity and affinity.required and affinity.required.node_selector_terms) or ()
    for index, (term, source) in enumerate(zip(pod_terms or (), sources, strict=True)):
        # An empty term matches no node; with a requirement it would match some.
        if term:
            old_term = set(term)
            patch += _tightened(
                source,
                index,
                [requirement for requirement in required if requirement not in old_term],
            )
    preferences = _new_preferences(pod, preferred)
    if affinity is not None and affinity.preferred is not None:
        patch += appended(f"{_NODE}/{_PREFERRED}", affinity.preferred, preferences)
    elif preferences:
        parts[_PREFERRED] = preferences
    return [*patch, *_created(pod, parts)]


def _tightened(
    term: NodeSelectorTerm, index: int, requirements: Sequence[Requirement]
) -> list[Operation]:
    new_entries = _written(requirements)
    entry_lists = {"matchExpressions": term.match_expressions, "matchFields": term.match_fields}
    return [
        operation
        for name, entries in entry_lists.items()
        for operation in appended(f"{_TERMS}/{index}/{name}", entries, new_entries.get(name, ()))
    ]


def _new_preferences(pod: Pod, preferences: Iterable[PreferNodes]) -> list[dict[str, Any]]:
    affinity = _node(pod)
    present_preferences = {
        PreferNodes(term.weight, _read(term.preference))
        for term in (affinity and affinity.preferred) or ()
    }
    return [
        {"weight": preference.weight, "preference": _written(preference.requirements)}
        for preference in dict.fromkeys(map(_as_read, preferences))
        if preference not in present_preferences
    ]


def _as_read(preference: PreferNodes) -> PreferNodes:
    """Return the preference with labels before fields, as in a decoded pod."""
    requirements = sorted(preference.requirements, key=lambda requirement: requirement.is_field)
    return PreferNodes(preference.weight, tuple(requirements))


def _created(pod: Pod, parts: Mapping[str, Any]) -> list[Operation]:
    """Return the operations that add missing parts, from the lowest level that exists."""
    if not parts:
        return []
    if pod.spec.affinity is None:
        return [add(_AFFINITY, {"nodeAffinity": dict(parts)})]
    if pod.spec.affinity.node_affinity is None:
        return [add(_NODE, dict(parts))]
    return [add(f"{_NODE}/{name}", value) for name, value in parts.items()]


def _node(pod: Pod) -> NodeAffinity | None:
    affinity = pod.spec.affinity
    return affinity.node_affinity if affinity else None


def _read(term: NodeSelectorTerm) -> Term:
    entry_lists = ((term.match_expressions, False), (term.match_fields, True))
    return tuple(
        Requirement(entry.key, entry.operator, entry.values or (), is_field)
        for entries, is_field in entry_lists
        for entry in entries or ()
    )


def _written(requirements: Iterable[Requirement]) -> dict[str, Any]:
    term: dict[str, Any] = {}
    for requirement in requirements:
        entry: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
        if requirement.values:
            entry["values"] = list(requirement.values)
        name = "matchFields" if requirement.is_field else "matchExpressions"
        term.setdefault(name, []).append(entry)
    return term


def add(path: str, value: Any) -> Operation:
    """Return the operation that adds a value, or replaces it."""
    return {"op": "add", "path": path, "value": value}


def appended(path: str, old_items: object | None, new_items: Sequence[Any]) -> list[Operation]:
    """Return the operations that append to a list, which is created if it does not exist."""
    if new_items and old_items is None:
        return [add(path, list(new_items))]
    return [add(f"{path}/-", item) for item in new_items]


def unmet(pod: Pod, node: Node) -> Sequence[Requirement]:
    """Return the pod's requirements that a node does not meet; empty if it meets them."""
    selector_term = tuple(
        Requirement(key, "In", (value,)) for key, value in pod.node_selector.items()
    )
    affinity = _node(pod)
    return [*_unmet(selector_term, node), *outside(affinity.required if affinity else None, node)]


def outside(selector: NodeSelector | None, node: Node) -> Sequence[Requirement]:
    """Return the requirements of a selector that a node does not meet; empty if it matches.

    If there are several terms, they are those of the term that is closest to matching.
    """
    selector_terms = selector.node_selector_terms if selector else None
    alternatives = [_unmet(term, node) for term in map(_read, selector_terms or ()) if term]
    return min(
        alternatives,
        key=lambda term: (any(requirement.is_field for requirement in term), len(term)),
        default=(),
    )


def _unmet(term: Term, node: Node) -> Sequence[Requirement]:
    return [
        requirement
        for requirement in term
        if not meets(
            node.metadata.name if requirement.is_field else node.labels.get(requirement.key),
            requirement,
        )
    ]


def meets(value: str | None, requirement: Requirement) -> bool:
    """Return whether a label value meets a requirement; None means that the label is absent."""
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            number, bound = integer(value or ""), integer("".join(requirement.values))
            if number is None or bound is None:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound
        case _:
            return value is not None


def impossible(requirements: Iterable[Requirement]) -> Sequence[Requirement]:
    """Return requirements on one label that no node can meet together; empty if there are none."""
    by_key: dict[tuple[str, bool], list[Requirement]] = {}
    for requirement in requirements:
        by_key.setdefault((requirement.key, requirement.is_field), []).append(requirement)
    return next((group for group in by_key.values() if not _possible(group)), ())


def nowhere(pod: Pod) -> Sequence[Requirement]:
    """Return the requirements on the node name that no node can meet; empty if some node may.

    Every non-empty term must be impossible; an empty term matches no node anyway.
    """
    conflicts = [
        impossible(requirement for requirement in term if requirement.is_field)
        for term in terms(pod) or ()
        if term
    ]
    return conflicts[0] if conflicts and all(conflicts) else ()


def _possible(requirements: Sequence[Requirement]) -> bool:
    """Return whether a node can meet all of these requirements on one label."""
    by_operator: dict[str, list[tuple[str, ...]]] = {}
    for requirement in requirements:
        by_operator.setdefault(requirement.operator, []).append(requirement.values)
    if "DoesNotExist" in by_operator:
        return not by_operator.keys() & {"In", "Exists", "Gt", "Lt"}
    low, high = _between(by_operator)
    if "In" not in by_operator:
        return low < high - 1
    forbidden = {value for values in by_operator.get("NotIn", ()) for value in values}
    allowed = set.intersection(*map(set, by_operator["In"])) - forbidden
    if not by_operator.keys() & {"Gt", "Lt"}:
        return bool(allowed)
    return any(low < number < high for number in map(integer, allowed) if number is not None)


def _between(by_operator: Mapping[str, Sequence[tuple[str, ...]]]) -> tuple[int, int]:
    """Return the exclusive bounds of Gt and Lt. Label values have no sign, so 0 is the minimum."""
    lows = [integer(values[0]) for values in by_operator.get("Gt", ()) if values]
    highs = [integer(values[0]) for values in by_operator.get("Lt", ()) if values]
    return (
        max((-1, *(low for low in lows if low is not None))),
        min((INT64_MAX + 1, *(high for high in highs if high is not None))),
    )


def integer(text: str) -> int | None:
    """Parse an integer as Gt and Lt do (`strconv.ParseInt(v, 10, 64)`); None if it is invalid."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else None
