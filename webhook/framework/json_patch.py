"""Conversion of edits into the smallest JSON Patch (RFC 6902). Pure.

Edits are idempotent, because webhooks are reinvoked and releases are retried. Existing entries are
only extended, never changed or moved; only the API server's default tolerations can be replaced.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.framework.node_affinity import add, appended
from holdfast.webhook.model.edits import (
    AddFinalizer,
    AddGate,
    Edit,
    Operation,
    PreferNodes,
    RemoveAnnotation,
    RemoveLabel,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetAnnotation,
    SetLabel,
    SetSchedulerName,
    Tolerate,
)
from holdfast.webhook.model.objects import Pod, Toleration

_EQUAL = "Equal"
"""The default operator of a toleration (Kubernetes' TolerationOpEqual)."""
_NO_EXECUTE = "NoExecute"
DEFAULT_TOLERATIONS = frozenset(
    Tolerate(f"node.kubernetes.io/{taint}", "Exists", "", _NO_EXECUTE, 300)
    for taint in ("not-ready", "unreachable")
)
"""Tolerations that the API server adds, before webhooks, to a pod without one for the taint."""

T = TypeVar("T")


def patch(pod: Pod, edits: Iterable[Edit]) -> list[Operation]:
    """Return the smallest patch for the edits; later edits win."""
    groups: dict[_Writer, list[Any]] = {}
    for edit in edits:
        writer = _WRITERS.get(type(edit))
        if writer is None:
            raise TypeError(f"{type(edit).__name__} is not an edit: use holdfast.edits")
        groups.setdefault(writer, []).append(edit)
    return [operation for writer, group in groups.items() for operation in writer(pod, group)]


def applied(document: Any, operations: Iterable[Operation]) -> Any:
    """Return a copy of the document with these operations of `patch` applied.

    They add, append to a list, or remove. Raises LookupError if they do not fit the document.
    """
    result = copy.deepcopy(document)
    for operation in operations:
        _apply(result, operation)
    return result


def _apply(document: Any, operation: Operation) -> None:
    *steps, last_step = map(_key, operation["path"].split("/")[1:])
    parent = document
    for step in steps:
        parent = parent[int(step) if isinstance(parent, list) else step]
    if operation["op"] == "remove":
        del parent[int(last_step) if isinstance(parent, list) else last_step]
    elif isinstance(parent, list):
        parent.append(operation["value"])
    else:
        parent[last_step] = operation["value"]


def _key(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


@lru_cache(256)
def pointer(key: str) -> str:
    """Escape a key for a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _gates(pod: Pod, edits: Sequence[AddGate]) -> list[Operation]:
    names = _new((edit.name for edit in edits), pod.gates)
    gates = [{"name": name} for name in names]
    return appended("/spec/schedulingGates", pod.spec.scheduling_gates, gates)


def _finalizers(pod: Pod, edits: Sequence[AddFinalizer]) -> list[Operation]:
    names = _new((edit.name for edit in edits), pod.finalizers)
    return appended("/metadata/finalizers", pod.metadata.finalizers, names)


def _annotations(pod: Pod, edits: Sequence[SetAnnotation | RemoveAnnotation]) -> list[Operation]:
    changes = {edit.key: edit.value if isinstance(edit, SetAnnotation) else None for edit in edits}
    return _entries("/metadata/annotations", pod.metadata.annotations, changes)


def _labels(pod: Pod, edits: Sequence[SetLabel | RemoveLabel]) -> list[Operation]:
    changes = {edit.key: edit.value if isinstance(edit, SetLabel) else None for edit in edits}
    return _entries("/metadata/labels", pod.metadata.labels, changes)


def _entries(
    parent_path: str, entries: Mapping[str, str] | None, changes: Mapping[str, str | None]
) -> list[Operation]:
    if entries is None:
        new_entries = {key: value for key, value in changes.items() if value is not None}
        return [add(parent_path, new_entries)] if new_entries else []
    operations: list[Operation] = []
    for key, value in changes.items():
        path = f"{parent_path}/{pointer(key)}"
        if value is None:
            if key in entries:
                operations.append({"op": "remove", "path": path})
        elif entries.get(key) != value:
            operations.append(add(path, value))
    return operations


def _scheduler(pod: Pod, edits: Sequence[SetSchedulerName]) -> list[Operation]:
    name = edits[-1].name
    return [] if name == pod.spec.scheduler_name else [add("/spec/schedulerName", name)]


def _nodes(pod: Pod, edits: Sequence[RequireNodes | PreferNodes | SelectNodes]) -> list[Operation]:
    labels: dict[str, str] = {}
    required: list[Requirement] = []
    preferred: list[PreferNodes] = []
    for edit in edits:
        match edit:
            case RequireNodes(requirements):
                required.extend(requirements)
            case PreferNodes():
                preferred.append(edit)
            case SelectNodes(key, value):
                # An existing key must not change, so a different value becomes a requirement.
                if labels.setdefault(key, pod.node_selector.get(key, value)) != value:
                    required.append(Requirement(key, "In", (value,)))
    return [
        *_entries("/spec/nodeSelector", pod.spec.node_selector, labels),
        *node_affinity.operations(pod, required, preferred),
    ]


def _tolerations(pod: Pod, edits: Sequence[Tolerate]) -> list[Operation]:
    tolerations = pod.spec.tolerations
    full_edits = [replace(edit, operator=edit.operator or _EQUAL) for edit in edits]
    pod_edits = [read_toleration(toleration) for toleration in tolerations or ()]
    new_tolerations = [write_toleration(edit) for edit in _new(full_edits, pod_edits)]
    # The first toleration of a taint takes effect, and the API server's defaults come first.
    replaced_indices = [
        index
        for index, default in enumerate(pod_edits)
        if default in DEFAULT_TOLERATIONS - set(full_edits)
        and any(tolerates(edit, default.key) for edit in full_edits)
    ]
    removals = [
        {"op": "remove", "path": f"/spec/tolerations/{index}"}
        for index in reversed(replaced_indices)
    ]
    return [*removals, *appended("/spec/tolerations", tolerations, new_tolerations)]


def tolerates(toleration: Tolerate, key: str, value: str = "") -> bool:
    """Return whether a toleration matches a `NoExecute` taint."""
    if toleration.key not in {"", key} or toleration.effect not in {"", _NO_EXECUTE}:
        return False
    return toleration.operator == "Exists" or toleration.value == value


def read_toleration(toleration: Toleration) -> Tolerate:
    """Convert a pod's toleration to the edit that would add it."""
    return Tolerate(
        toleration.key,
        toleration.operator or _EQUAL,
        toleration.value,
        toleration.effect,
        toleration.toleration_seconds,
    )


def write_toleration(edit: Tolerate) -> dict[str, Any]:
    """Return the toleration that an edit adds."""
    fields = {
        "key": edit.key,
        "operator": edit.operator,
        "value": edit.value,
        "effect": edit.effect,
        "tolerationSeconds": edit.seconds,
    }
    return {name: value for name, value in fields.items() if value not in {"", None}}


def _new(items: Iterable[T], present_items: Sequence[T]) -> list[T]:
    return [item for item in dict.fromkeys(items) if item not in present_items]


_Writer = Callable[[Pod, Any], list[Operation]]
_WRITERS: Mapping[type[Any], _Writer] = {
    AddGate: _gates,
    AddFinalizer: _finalizers,
    SetAnnotation: _annotations,
    RemoveAnnotation: _annotations,
    SetLabel: _labels,
    RemoveLabel: _labels,
    SetSchedulerName: _scheduler,
    RequireNodes: _nodes,
    PreferNodes: _nodes,
    SelectNodes: _nodes,
    Tolerate: _tolerations,
}
