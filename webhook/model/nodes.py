"""Nodes and volumes, reduced to what decides whether a pod can run on a node."""

from collections.abc import Mapping

from holdfast.webhook.model.objects import ApiStruct, Condition, Metadata, NodeSelector


class NodeSpec(ApiStruct, frozen=True):
    """The spec of a node; `unschedulable` is set by `kubectl cordon`."""

    unschedulable: bool = False


class NodeStatus(ApiStruct, frozen=True):
    """The status of a node."""

    conditions: list[Condition] | None = None


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels; empty if there are none."""
        return self.metadata.labels or {}

    @property
    def not_ready(self) -> str:
        """Why it is not ready; empty if it is, or if nobody has said."""
        ready = next((one for one in self.status.conditions or () if one.type == "Ready"), None)
        return "" if ready is None or ready.status == "True" else ready.reason or ready.status


class ClaimReference(ApiStruct, frozen=True):
    """A volume's claim, by name; a DataVolume has a claim of its name."""

    claim_name: str = ""
    name: str = ""


class MountedVolume(ApiStruct, frozen=True):
    """A volume of a pod or of a VM's template."""

    persistent_volume_claim: ClaimReference | None = None
    data_volume: ClaimReference | None = None

    @property
    def claim(self) -> str:
        """The name of its PersistentVolumeClaim; empty for a volume without one."""
        reference = self.persistent_volume_claim or self.data_volume or ClaimReference()
        return reference.claim_name or reference.name


class ClaimSpec(ApiStruct, frozen=True):
    """The spec of a claim; the volume is empty until one is bound."""

    volume_name: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A claim."""

    spec: ClaimSpec = ClaimSpec()


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """The nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class VolumeSpec(ApiStruct, frozen=True):
    """The spec of a volume."""

    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()


class PersistentVolume(ApiStruct, frozen=True):
    """A volume."""

    spec: VolumeSpec = VolumeSpec()
