"""Nodes and volumes, reduced to the fields that determine whether a pod can run on a node."""

from holdfast.webhook.model.objects import ApiObject, ApiStruct, Condition, NodeSelector


class _NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False


class _NodeStatus(ApiStruct, frozen=True):
    conditions: list[Condition] | None = None


class Node(ApiObject, frozen=True):
    """A node."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def not_ready(self) -> str:
        """The reason why it is not ready; empty if it is ready or has no Ready condition."""
        ready = next(
            (condition for condition in self.status.conditions or () if condition.type == "Ready"),
            None,
        )
        return "" if ready is None or ready.status == "True" else ready.reason or ready.status


class _ClaimReference(ApiStruct, frozen=True):
    """A reference to a volume's claim. The claim of a DataVolume has the same name."""

    claim_name: str = ""
    name: str = ""


class MountedVolume(ApiStruct, frozen=True):
    """A volume of a pod or of a VM's template."""

    persistent_volume_claim: _ClaimReference | None = None
    data_volume: _ClaimReference | None = None

    @property
    def claim(self) -> str:
        """The name of its PersistentVolumeClaim; empty for a volume without one."""
        reference = self.persistent_volume_claim or self.data_volume or _ClaimReference()
        return reference.claim_name or reference.name


class _ClaimSpec(ApiStruct, frozen=True):
    volume_name: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A claim."""

    spec: _ClaimSpec = _ClaimSpec()


class _VolumeNodeAffinity(ApiStruct, frozen=True):
    required: NodeSelector | None = None


class _VolumeSpec(ApiStruct, frozen=True):
    node_affinity: _VolumeNodeAffinity = _VolumeNodeAffinity()


class PersistentVolume(ApiStruct, frozen=True):
    """A volume."""

    spec: _VolumeSpec = _VolumeSpec()
