"""From edits to the smallest JSON Patch (RFC 6902) that does what they say. Pure.

Written twice, an edit changes nothing more: webhooks are called again, and a release is tried
again. What is there already is never changed or moved, only added to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from webhook import affinity
from webhook.objects import Pod, Toleration
from webhook.review import (
    AddFinalizer,
    AddGate,
    Edit,
    Operation,
    PodReview,
    PreferNodes,
    RemoveAnnotation,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetAnnotation,
    SetSchedulerName,
    Tolerate,
)

_EQUAL = "Equal"
"""What a toleration without an operator has (Kubernetes' TolerationOpEqual)."""

T = TypeVar("T")


def patch(pod: Pod, edits: Iterable[Edit]) -> list[Operation]:
    """Make the smallest patch that does what the edits say; later edits win."""
    groups: dict[_Writer, list[Any]] = {}
    for edit in edits:
        writer = _WRITERS.get(type(edit))
        if writer is None:
            raise TypeError(f"{type(edit).__name__} is no edit; use those of webhook.review")
        groups.setdefault(writer, []).append(edit)
    return [operation for writer, group in groups.items() for operation in writer(pod, group)]


def edited(review: PodReview, edits: Iterable[Edit]) -> PodReview:
    """Give the review as it would be of the pod with these edits.

    Raises TypeError, LookupError or ValueError where they do not fit the pod.
    """
    document = review.whole_pod()
    _apply_all(document, patch(review.pod, edits))
    request = msgspec.structs.replace(
        review.request, object=msgspec.Raw(msgspec.json.encode(document))
    )
    return replace(review, request=request, pod=Pod.of(document))


def applied(document: Any, operations: Iterable[Operation]) -> Any:
    """Apply operations that are made here: that add, to a list at its end, or remove.

    The document is left alone. Raises LookupError where they do not fit it.
    """
    result = copy.deepcopy(document)
    _apply_all(result, operations)
    return result


def _apply_all(document: Any, operations: Iterable[Operation]) -> None:
    for operation in operations:
        _apply(document, operation)


def _apply(document: Any, operation: Operation) -> None:
    *steps, last = map(_key, operation["path"].split("/")[1:])
    parent = document
    for step in steps:
        parent = parent[int(step) if isinstance(parent, list) else step]
    if operation["op"] == "remove":
        del parent[last]
    elif isinstance(parent, list):
        parent.append(operation["value"])
    else:
        parent[last] = operation["value"]


def _key(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def pointer(key: str) -> str:
    """Escape a key for a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _gates(pod: Pod, edits: Sequence[AddGate]) -> list[Operation]:
    names = _new((edit.name for edit in edits), pod.gates)
    gates = [{"name": name} for name in names]
    return _appended("/spec/schedulingGates", pod.spec.scheduling_gates, gates)


def _finalizers(pod: Pod, edits: Sequence[AddFinalizer]) -> list[Operation]:
    names = _new((edit.name for edit in edits), pod.finalizers)
    return _appended("/metadata/finalizers", pod.metadata.finalizers, names)


def _annotations(pod: Pod, edits: Sequence[SetAnnotation | RemoveAnnotation]) -> list[Operation]:
    changes = {edit.key: edit.value if isinstance(edit, SetAnnotation) else None for edit in edits}
    present = pod.metadata.annotations
    if present is None:
        added = {key: value for key, value in changes.items() if value is not None}
        return [_add("/metadata/annotations", added)] if added else []
    operations: list[Operation] = []
    for key, value in changes.items():
        path = "/metadata/annotations/" + pointer(key)
        if value is None:
            if key in present:
                operations.append({"op": "remove", "path": path})
        elif present.get(key) != value:
            operations.append(_add(path, value))
    return operations


def _scheduler(pod: Pod, edits: Sequence[SetSchedulerName]) -> list[Operation]:
    name = edits[-1].name
    return [] if name == pod.spec.scheduler_name else [_add("/spec/schedulerName", name)]


def _nodes(pod: Pod, edits: Sequence[RequireNodes | PreferNodes | SelectNodes]) -> list[Operation]:
    selected: dict[str, str] = {}
    required: list[Requirement] = []
    preferred: list[PreferNodes] = []
    for edit in edits:
        match edit:
            case RequireNodes(requirements):
                required.extend(requirements)
            case PreferNodes():
                preferred.append(edit)
            case SelectNodes(key, value):
                if selected.setdefault(key, pod.node_selector.get(key, value)) != value:
                    required.append(Requirement(key, "In", (value,)))
    return [*_selector(pod, selected), *affinity.operations(pod, required, preferred)]


def _selector(pod: Pod, selected: Mapping[str, str]) -> list[Operation]:
    added = {key: value for key, value in selected.items() if key not in pod.node_selector}
    if added and pod.spec.node_selector is None:
        return [_add("/spec/nodeSelector", added)]
    return [_add("/spec/nodeSelector/" + pointer(key), value) for key, value in added.items()]


def _tolerations(pod: Pod, edits: Sequence[Tolerate]) -> list[Operation]:
    present = pod.spec.tolerations
    wanted = [replace(edit, operator=edit.operator or _EQUAL) for edit in edits]
    added = _new(wanted, [_read(toleration) for toleration in present or ()])
    return _appended("/spec/tolerations", present, [_written(edit) for edit in added])


def _read(toleration: Toleration) -> Tolerate:
    return Tolerate(
        toleration.key,
        toleration.operator or _EQUAL,
        toleration.value,
        toleration.effect,
        toleration.toleration_seconds,
    )


def _written(edit: Tolerate) -> dict[str, Any]:
    fields = {
        "key": edit.key,
        "operator": edit.operator,
        "value": edit.value,
        "effect": edit.effect,
        "tolerationSeconds": edit.seconds,
    }
    return {name: value for name, value in fields.items() if value not in {"", None}}


def _new(wanted: Iterable[T], present: Sequence[T]) -> list[T]:
    return [one for one in dict.fromkeys(wanted) if one not in present]


def _appended(path: str, present: object | None, added: Sequence[Any]) -> list[Operation]:
    if added and present is None:
        return [_add(path, list(added))]
    return [_add(f"{path}/-", one) for one in added]


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


_Writer = Callable[[Pod, Any], list[Operation]]
_WRITERS: Mapping[type[Any], _Writer] = {
    AddGate: _gates,
    AddFinalizer: _finalizers,
    SetAnnotation: _annotations,
    RemoveAnnotation: _annotations,
    SetSchedulerName: _scheduler,
    RequireNodes: _nodes,
    PreferNodes: _nodes,
    SelectNodes: _nodes,
    Tolerate: _tolerations,
}
