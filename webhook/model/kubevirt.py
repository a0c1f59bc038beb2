"""KubeVirt's objects, reduced to the fields that sticky VMs need, and our annotations on them.

A VM's pod belongs to a VirtualMachineInstance (VMI), and the VMI to a VirtualMachine (VM). The
controller owner references, with their UIDs, prove this within one namespace; names and labels
prove nothing, because anyone who may create a pod may choose them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.webhook.model import objects, syntax
from holdfast.webhook.model.nodes import MountedVolume
from holdfast.webhook.model.paths import api_path

STICKY = "holdfast.dev/sticky"
"""On a VM: an annotation, `true` or `false`. On its pods: the finalizer that keeps them."""
STICKY_NODE = "holdfast.dev/sticky-node"
"""The default annotation of a VM's recorded node."""
STICKY_NODE_UID = "holdfast.dev/sticky-node-uid"
"""The UID of the VM whose node was recorded; a clone has a different UID."""

VM, VMI = "VirtualMachine", "VirtualMachineInstance"
POOL, POOL_GROUP = "VirtualMachinePool", "pool.kubevirt.io"
GROUP = "kubevirt.io"
"""The API group of VMs and VMIs."""
_GROUP_PREFIX = f"{GROUP}/"
VERSION = f"{_GROUP_PREFIX}v1"
API_PATH = f"/apis/{VERSION}"
"""The path of KubeVirt's API; 404 if it is not installed."""
MIGRATION_JOB = "kubevirt.io/migrationJobUID"
"""The label of a live migration's target pod; it is never removed."""
MIGRATION_NAME = "kubevirt.io/migrationJobName"
"""The annotation of such a pod with the migration's name."""
EPHEMERAL_PROVISIONING = "kubevirt.io/ephemeral-provisioning"
"""The annotation of a pod that only binds volumes, and never runs the VM."""
INSTALLATIONS = f"{API_PATH}/kubevirts"
"""The path of the KubeVirt objects; there is one, in KubeVirt's namespace."""
CONTROLLER = "kubevirt-controller"
"""virt-controller's account, which creates the pods of VMs; KubeVirt's operator sets the name."""
CONTROLLER_ACCOUNT = f"system:serviceaccount:kubevirt:{CONTROLLER}"
"""virt-controller's account in a default installation."""
VIRT_CONTROLLER = re.compile(f"system:serviceaccount:[-a-z0-9]{{1,63}}:{CONTROLLER}")
"""virt-controller's account in any namespace."""
LAUNCHERS = "kubevirt.io=virt-launcher"
"""The label selector of the pods that run VMs."""
SCHEDULABLE = "kubevirt.io/schedulable"
"""KubeVirt's node label; VMs can run on the node if it is `true`."""
OUT_OF_REACH = ("volume node affinity conflict", "PersistentVolume's node affinity")
"""Messages of older and newer schedulers about a volume that rules out a node. They are needed
because the controller is not allowed to read volumes."""
ENDS = frozenset({"Succeeded", "Failed"})
"""The final phases of a pod, a VMI and a migration."""


class _OwnedAnnotations(objects.ApiStruct, frozen=True):
    """The annotations that a writer owns, as `f:KEY`."""

    annotations: dict[str, Any] = msgspec.field(default_factory=dict, name="f:annotations")


class _OwnedFields(objects.ApiStruct, frozen=True):
    metadata: _OwnedAnnotations = msgspec.field(default=_OwnedAnnotations(), name="f:metadata")


class ManagedFields(objects.ApiStruct, frozen=True):
    """A writer's fields, and the time of its last write."""

    manager: str = ""
    time: objects.UserTime = None
    fields_v1: _OwnedFields = msgspec.field(default=_OwnedFields(), name="fieldsV1")


class TracedMetadata(objects.Metadata, frozen=True):
    """Metadata with the writers of its fields."""

    managed_fields: list[ManagedFields] | None = None


class VirtualMachine(objects.ApiObject, frozen=True):
    """A VM; only its metadata."""

    metadata: TracedMetadata = TracedMetadata()

    def writers_of(self, annotation: str) -> Sequence[ManagedFields]:
        """Return the writers of an annotation's current value; empty if unknown."""
        writers = self.metadata.managed_fields or ()
        return [
            writer
            for writer in writers
            if f"f:{annotation}" in writer.fields_v1.metadata.annotations
        ]

    def written_at(self, annotation: str) -> datetime | None:
        """Return the latest time at which an annotation may have been written; None if unknown."""
        times = [objects.instant(writer.time) for writer in self.writers_of(annotation)]
        return max(filter(None, times), default=None)


class _InstanceTemplate(objects.ApiStruct, frozen=True):
    spec: _PlacedInstanceSpec | None = None


class _TemplatedSpec(objects.ApiStruct, frozen=True):
    template: _InstanceTemplate | None = None


class MigrationState(objects.ApiStruct, frozen=True):
    """The state of a migration, reported by the VMI and by the migration."""

    migration_uid: str = ""
    source_node: str = ""
    target_node: str = ""
    completed: bool = False
    failed: bool = False
    end_timestamp: objects.UserTime = None

    def has_reached(self, node: str) -> bool:
        """Return whether the migration moved its VM to a node."""
        return self.completed and not self.failed and self.target_node == node


class _InstanceSpec(objects.ApiStruct, frozen=True):
    """A VMI's spec; KubeVirt copies the scheduler to the pods."""

    scheduler_name: str = ""


class _PlacedInstanceSpec(_InstanceSpec, frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: objects.Affinity | None = None
    volumes: list[MountedVolume] | None = None


class _PhaseTransition(objects.ApiStruct, frozen=True):
    phase: str = ""


class _InstanceStatus(objects.ApiStruct, frozen=True):
    """A VMI's status; the node is set when its pod is ready, not when it is bound."""

    node_name: str = ""
    phase: str = ""
    phase_transition_timestamps: list[_PhaseTransition] | None = None
    migration_state: MigrationState | None = None


class Instance(objects.ApiObject, frozen=True):
    """A VirtualMachineInstance: one run of a VM."""

    spec: _InstanceSpec = _InstanceSpec()
    status: _InstanceStatus = _InstanceStatus()

    @property
    def has_started(self) -> bool:
        """Whether it has started to run; from then on, KubeVirt only creates migration pods."""
        return self.status.phase not in _BEFORE_RUNNING

    @property
    def has_run(self) -> bool:
        """Whether KubeVirt has reported it as running, even if it has ended since."""
        phases = [transition.phase for transition in self.status.phase_transition_timestamps or ()]
        return _RUNNING in {self.status.phase, *phases}

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self.status.phase == _RUNNING

    @property
    def is_over(self) -> bool:
        """Whether it has ended: the VM's next run is another VMI."""
        return self.status.phase in ENDS


_RUNNING = "Running"
_BEFORE_RUNNING = frozenset({"", "Pending", "Scheduling", "Scheduled"})


class TemplatedMachine(VirtualMachine, frozen=True):
    """A VM with the part of its template that determines its next pod."""

    spec: _TemplatedSpec | None = None

    @property
    def next_spec(self) -> _PlacedInstanceSpec:
        """The spec of the VMI that the template defines; an instancetype may change it."""
        template = self.spec.template if self.spec else None
        return (template and template.spec) or _PlacedInstanceSpec()

    @property
    def next_pod(self) -> objects.Pod:
        """The pod of its next run, with only the fields that determine where it can run."""
        spec = self.next_spec
        return objects.Pod(
            objects.Metadata(namespace=self.metadata.namespace),
            objects.PodSpec(
                spec.scheduler_name, node_selector=spec.node_selector, affinity=spec.affinity
            ),
        )


class _MigrationSpec(objects.ApiStruct, frozen=True):
    vmi_name: str = ""


class _MigrationStatus(objects.ApiStruct, frozen=True):
    phase: str = ""
    migration_state: MigrationState | None = None


class Migration(objects.ApiObject, frozen=True):
    """A VirtualMachineInstanceMigration."""

    spec: _MigrationSpec = _MigrationSpec()
    status: _MigrationStatus = _MigrationStatus()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status.phase in ENDS


class LauncherPod(objects.Pod, frozen=True):
    """A pod that runs, or will run, a VMI."""

    status: objects.PodStatus = objects.PodStatus()

    @property
    def has_finalizer(self) -> bool:
        """Whether it has our finalizer."""
        return STICKY in self.finalizers

    @property
    def has_ended(self) -> bool:
        """Whether it is being deleted, or has ended."""
        return self.metadata.deletion_timestamp is not None or self.status.phase in ENDS

    @property
    def is_unschedulable(self) -> bool:
        """Whether the scheduler has found no node for it."""
        return self.unschedulable is not None

    @property
    def lacks_volume(self) -> bool:
        """Whether the scheduler reports that an otherwise suitable node cannot access a volume."""
        condition = self.unschedulable
        return condition is not None and any(text in condition.message for text in OUT_OF_REACH)

    @property
    def unschedulable(self) -> objects.Condition | None:
        """The condition in which the scheduler reports that it has found no node, or None."""
        unschedulable = ("PodScheduled", "False", "Unschedulable")
        conditions = self.status.conditions or ()
        return next(
            (
                condition
                for condition in conditions
                if (condition.type, condition.status, condition.reason) == unschedulable
            ),
            None,
        )


class _Container(objects.ApiStruct, frozen=True):
    name: str = ""
    command: list[str] | None = None


class _ContainerSpec(objects.ApiStruct, frozen=True):
    containers: list[_Container] | None = None


class _ContainerPod(objects.ApiStruct, frozen=True):
    spec: _ContainerSpec = _ContainerSpec()


_CONTAINER_POD = msgspec.json.Decoder(_ContainerPod)


def only_provisions(pod: bytes | msgspec.Raw) -> bool:
    """Return whether a pod of KubeVirt, as JSON, cannot start a VM.

    A pod that only provisions volumes has another command instead of virt-launcher
    (renderLaunchManifest in KubeVirt's pkg/virt-controller/services/template.go).
    """
    try:
        containers = _CONTAINER_POD.decode(pod).spec.containers or ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # not from an API server
    return any(
        container.name == "compute" and (container.command or [])[:3] == ["/bin/bash", "-c", "echo"]
        for container in containers
    )


def pod_of(instance: Instance) -> objects.Pod:
    """Return the pod that KubeVirt would create for a VMI: the fields that select a profile."""
    return objects.Pod(
        metadata=objects.Metadata(namespace=instance.metadata.namespace),
        spec=objects.PodSpec(scheduler_name=instance.spec.scheduler_name),
    )


def controller_of(metadata: objects.Metadata, kind: str) -> objects.OwnerReference | None:
    """Return the controller owner if it is of this KubeVirt kind, or None."""
    for owner in metadata.owner_references or ():
        if owner.controller and owner.kind == kind and owner.api_version.startswith(_GROUP_PREFIX):
            return owner
    return None


def vmi_of(pod: objects.Pod) -> objects.OwnerReference | None:
    """Return the VMI of a pod, or None if it has none.

    The API server accepts any text as the name of an owner, so an invalid name is ignored.
    """
    owner = controller_of(pod.metadata, VMI)
    return owner if owner is not None and syntax.is_object_name(owner.name) else None


def vm_of(instance: Instance) -> objects.OwnerReference | None:
    """Return the VM of a VMI, or None if it has none.

    KubeVirt gives a VMI the name of its VM. An owner with another name is forged, and ignored:
    otherwise anyone who may create VMIs could have a node recorded for any VM in the namespace.
    """
    owner = controller_of(instance.metadata, VM)
    return owner if owner is not None and owner.name == instance.metadata.name else None


def controller_account(namespace: str) -> str:
    """Return virt-controller's account if KubeVirt is installed in a namespace."""
    return f"system:serviceaccount:{namespace}:{CONTROLLER}"


def vm_path(namespace: str, name: str) -> str:
    """Return the API path of a VM; without a name, of all VMs in the namespace or cluster."""
    return api_path(VERSION, "virtualmachines", namespace, name)


def vmi_path(namespace: str, name: str) -> str:
    """Return the API path of a VMI; without a name, as for VMs."""
    return api_path(VERSION, "virtualmachineinstances", namespace, name)


def migration_path(namespace: str, name: str) -> str:
    """Return the API path of a migration; without a name, as for VMs."""
    return api_path(VERSION, "virtualmachineinstancemigrations", namespace, name)
