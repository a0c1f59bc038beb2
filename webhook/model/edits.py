"""The edits that a plugin can make to a pod."""

from typing import Any

import msgspec


class AddGate(msgspec.Struct, frozen=True):
    """Append a scheduling gate, unless the pod has it."""

    name: str


class SetAnnotation(msgspec.Struct, frozen=True):
    """Set an annotation of the pod."""

    key: str
    value: str


class RemoveAnnotation(msgspec.Struct, frozen=True):
    """Remove an annotation, if the pod has it."""

    key: str


class SetLabel(msgspec.Struct, frozen=True):
    """Set a label of the pod."""

    key: str
    value: str


class RemoveLabel(msgspec.Struct, frozen=True):
    """Remove a label, if the pod has it."""

    key: str


class SetSchedulerName(msgspec.Struct, frozen=True):
    """Set the pod's `schedulerName`."""

    name: str


class AddFinalizer(msgspec.Struct, frozen=True):
    """Append a finalizer, unless the pod has it."""

    name: str


class Requirement(msgspec.Struct, frozen=True):
    """A requirement on a node's label, or on a field if `is_field` is true.

    The operators are Kubernetes': In, NotIn, Exists, DoesNotExist, Gt, Lt. The only field is
    `metadata.name`, with In or NotIn and exactly one value.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    is_field: bool = False

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"


class RequireNodes(msgspec.Struct, frozen=True):
    """Require that the pod's node meets all of these, ANDed into each required term of the pod."""

    requirements: tuple[Requirement, ...]


class PreferNodes(msgspec.Struct, frozen=True):
    """Prefer nodes that meet all requirements, with a weight of 1 to 100."""

    weight: int
    requirements: tuple[Requirement, ...]


class SelectNodes(msgspec.Struct, frozen=True):
    """Require a label of the pod's node, in the pod's nodeSelector.

    If the pod already selects another value of the label, this value becomes node affinity instead:
    nothing is overwritten, and both are required.
    """

    key: str
    value: str


class Tolerate(msgspec.Struct, frozen=True):
    """Append a toleration, unless the pod has an equal one.

    It replaces a default toleration of the API server, which would otherwise take precedence.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None


Edit = (
    AddGate
    | AddFinalizer
    | SetAnnotation
    | RemoveAnnotation
    | SetLabel
    | RemoveLabel
    | SetSchedulerName
    | RequireNodes
    | PreferNodes
    | SelectNodes
    | Tolerate
)

Operation = dict[str, Any]
"""One operation of a JSON Patch. `framework.json_patch` turns edits into operations."""
