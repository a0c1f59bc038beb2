"""Evaluate node affinity from a pod's JSON alone, independently of the product.

Written from Kubernetes' documentation; shares nothing with `webhook/framework/node_affinity.py`.
`tests/e2e` checks it against the real scheduler.
"""

import itertools
from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def make_node(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict(labels)}}


def required_affinity(*terms: Object) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def admits(pod: Object, node: Object) -> bool:
    """Return whether the pod's nodeSelector and required node affinity permit the node."""
    labels = node["metadata"]["labels"]
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(REQUIRED)
    if required is None:
        return True
    return any(meets_term(node, term) for term in required.get("nodeSelectorTerms") or ())


def meets_term(node: Object, term: Object) -> bool:
    """Return whether a node meets a term. No node meets an empty term."""
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False
    metadata = node["metadata"]
    return all(meets(metadata["labels"], expression) for expression in expressions) and all(
        meets({"metadata.name": metadata["name"]}, field) for field in fields
    )


def meets(labels: Mapping[str, str], requirement: Object) -> bool:
    value = labels.get(requirement["key"])
    values = requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return number(value) is not None and int(value or 0) > int(values[0])
        case "Lt":
            return number(value) is not None and int(value or 0) < int(values[0])
        case operator:
            raise AssertionError(f"no operator: {operator}")


def number(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdigit() else None


def is_tightening(old: Any, new: Any) -> bool:
    """Return whether the API server allows this update (validateNodeAffinityMutation)."""
    old_selector, new_selector = (pod["spec"].get("nodeSelector") or {} for pod in (old, new))
    if not old_selector.items() <= new_selector.items():
        return False
    old_node, new_node = (
        (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {} for pod in (old, new)
    )
    old_required, new_required = old_node.get(REQUIRED), new_node.get(REQUIRED)
    if old_required is None:
        return True
    old_terms = old_required.get("nodeSelectorTerms") or []
    new_terms = (new_required or {}).get("nodeSelectorTerms") or []
    if len(old_terms) != len(new_terms):
        return False
    return all(itertools.starmap(has_only_additions, zip(old_terms, new_terms, strict=True)))


def has_only_additions(old: Any, new: Any) -> bool:
    lists = [
        (old.get(name) or [], new.get(name) or []) for name in ("matchExpressions", "matchFields")
    ]
    if not any(before for before, _ in lists):
        return not any(after for _, after in lists)
    return all(before == after[: len(before)] for before, after in lists)
