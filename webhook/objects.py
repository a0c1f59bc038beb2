"""Kubernetes objects, as far as Holdfast reads them.

msgspec decodes straight into these and skips every other field, which is both the fastest way and
a check: input of another shape is refused before any code of ours sees it. JSON null stands for
"absent", as it does in Go.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

Names = tuple[str, str]
"""A namespace and a name."""
Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its offset: one without is no instant, and Kubernetes writes none."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: immutable, camelCase on the wire, and left out of cyclic garbage collection."""


class OwnerReference(_Object, frozen=True):
    """Who made an object; `controller` marks the one that manages it."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True):
    """An object's metadata.

    The time of creation is None until the API server has stored it, that of deletion until somebody
    deletes it.
    """

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


class SchedulingGate(_Object, frozen=True):
    """A gate: kube-scheduler leaves a pod alone while it has any."""

    name: str


class NodeRequirement(_Object, frozen=True):
    """One condition on a node's label, or on its name."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeTerm(_Object, frozen=True):
    """Requirements that a node has to meet together; a term without any is met by no node."""

    match_expressions: list[NodeRequirement] | None = None
    match_fields: list[NodeRequirement] | None = None


class NodeSelector(_Object, frozen=True):
    """Terms of which a node has to meet one."""

    node_selector_terms: list[NodeTerm] | None = None


class PreferredTerm(_Object, frozen=True):
    """A term that a node is the better for meeting, by its weight."""

    weight: int = 0
    preference: NodeTerm = NodeTerm()


class NodeAffinity(_Object, frozen=True):
    """The nodes that a pod requires, and those that it prefers."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Object, frozen=True):
    """A pod's affinity, as far as it is to nodes."""

    node_affinity: NodeAffinity | None = None


class Toleration(_Object, frozen=True):
    """A taint that a pod bears with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(_Object, frozen=True):
    """The parts of a pod's spec that decide where and when it is scheduled."""

    scheduler_name: str = ""
    node_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None


class Pod(_Object, frozen=True):
    """A pod, as far as plugins need it."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, empty where there are none."""
        return self.metadata.labels or {}

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
        """The labels that its node has to have, empty where there are none."""
        return self.spec.node_selector or {}

    @property
    def key(self) -> Names:
        """Its namespace and name; many pods of a namespace share its string."""
        return sys.intern(self.metadata.namespace), self.metadata.name

    @property
    def created_ms(self) -> int:
        """When the API server stored it, in milliseconds since 1970; 0 while it has not."""
        created = self.metadata.creation_timestamp
        return 0 if created is None else int(created.timestamp()) * 1_000

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Pod:
        """Read a pod from plain Python objects, as a test or a YAML file has them."""
        return msgspec.convert(source, cls)


def owned_by_prefix(names: Sequence[str], prefix: str) -> list[str]:
    """Pick the gates or finalizers that start with a prefix."""
    return [name for name in names if name.startswith(prefix)]
