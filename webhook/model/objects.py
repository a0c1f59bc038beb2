"""Kubernetes objects, reduced to the fields that Holdfast reads.

msgspec decodes directly into these classes and skips all other fields. This is fast, and rejects
input with another structure before other code sees it. JSON null means "absent", as in Go.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

ObjectKey = tuple[str, str]
"""A namespace and a name."""
Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with an offset, as Kubernetes always writes it."""
UserTime = str | None
"""A time that users may write, even in a year that Python does not support; see `instant`."""

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
"""The label of pods that Kueue queues as a group."""
REVISION_LABEL = "controller-revision-hash"
"""The label with the revision of a pod of a StatefulSet or DaemonSet."""


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base class: immutable, camelCase on the wire, ignored by the cyclic garbage collector."""


class OwnerReference(ApiStruct, frozen=True):
    """An owner of an object; `controller` marks the managing one."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool | None = None


def instant(text: UserTime) -> datetime | None:
    """Parse a time that a user may have written; None if it is missing or invalid."""
    try:
        return msgspec.convert(text, Time | None)
    except msgspec.ValidationError:
        return None


class Metadata(ApiStruct, frozen=True):
    """An object's metadata; the creation time is None until the API server stores the object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class ApiObject(ApiStruct, frozen=True):
    """An API object; only its metadata."""

    metadata: Metadata = Metadata()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations; empty if there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels; empty if there are none."""
        return self.metadata.labels or {}

    @property
    def key(self) -> ObjectKey:
        """The namespace and name; objects of a namespace share the interned string."""
        return sys.intern(self.metadata.namespace), self.metadata.name


class Condition(ApiStruct, frozen=True):
    """A condition of an object; a pod's `PodScheduled` is `False` while no node fits."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: UserTime = None


class PodStatus(ApiStruct, frozen=True):
    """A pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None


class SchedulingGate(ApiStruct, frozen=True):
    """A gate: kube-scheduler ignores a pod that has one."""

    name: str


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """A condition on a node's label or name."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that a node has to meet together; an empty term matches no node."""

    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which a node has to meet at least one."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class _PreferredSchedulingTerm(ApiStruct, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """Required and preferred nodes."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[_PreferredSchedulingTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    """A pod's affinity; only node affinity."""

    node_affinity: NodeAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    """A taint that a pod tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGroup(ApiStruct, frozen=True):
    """The PodGroup with which the scheduler places a pod."""

    pod_group_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """The fields of a pod's spec that affect scheduling."""

    scheduler_name: str = ""
    node_name: str = ""
    priority: int | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: SchedulingGroup | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None


class Pod(ApiObject, frozen=True):
    """A pod, reduced to the fields that plugins need."""

    spec: PodSpec = PodSpec()

    @property
    def gates(self) -> Sequence[str]:
        """The names of its scheduling gates, in order."""
        return [gate.name for gate in self.spec.scheduling_gates or ()]

    @property
    def finalizers(self) -> Sequence[str]:
        """Its finalizers, in order."""
        return self.metadata.finalizers or ()

    @property
    def node_selector(self) -> Mapping[str, str]:
        """The node selector; empty if there is none."""
        return self.spec.node_selector or {}

    @property
    def created_ms(self) -> int:
        """The creation time in milliseconds since 1970; 0 before the API server stores the pod."""
        created = self.metadata.creation_timestamp
        return 0 if created is None else int(created.timestamp()) * 1_000

    @property
    def jitter_key(self) -> str:
        """The key of the pod's scheduling or Kueue group, else its Job's UID, else its UID.

        All pods with the same key get the same share of their jitter.
        """
        group = self.spec.scheduling_group
        name = (group.pod_group_name if group else "") or self.labels.get(KUEUE_GROUP)
        if name:
            return f"{self.metadata.namespace}/{name}"
        owners = self.metadata.owner_references or ()
        job = next((owner for owner in owners if owner.controller and owner.kind == "Job"), None)
        return job.uid if job else self.metadata.uid

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Pod:
        """Convert a pod from plain Python objects, such as a parsed YAML file."""
        return msgspec.convert(source, cls)
