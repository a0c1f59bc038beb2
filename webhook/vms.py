"""KubeVirt's objects, as far as sticky VMs need them, and what Holdfast keeps on them.

A pod of a VM belongs to a VirtualMachineInstance (VMI), and that to a VirtualMachine (VM): followed
by controller owner references and their UIDs, within one namespace. Names and labels prove nothing,
whoever may create a pod may choose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

import msgspec

from webhook import shapes
from webhook.framework import Args
from webhook.objects import Metadata, Names, OwnerReference, Pod, PodSpec

STICKY = "holdfast.dev/sticky"
"""On a VM: an annotation, `true` or `false`. On its pods: the finalizer that keeps a landing."""
STICKY_NODE = "holdfast.dev/sticky-node"
"""The annotation of a VM that names its node, where the configuration names no other."""
STICKY_NODE_UID = "holdfast.dev/sticky-node-uid"
"""The UID of the VM that the record beside it was written for: a clone's differs."""

VM, VMI = "VirtualMachine", "VirtualMachineInstance"
GROUP = "kubevirt.io"
"""The API group of VMs and VMIs."""
API_PATH = f"/apis/{GROUP}/v1"
"""Where the API server lists what KubeVirt serves; nothing is there where it is not installed."""
MIGRATION_JOB = "kubevirt.io/migrationJobUID"
"""The label of a pod that a live migration made; it keeps it for life."""
MIGRATION_NAME = "kubevirt.io/migrationJobName"
"""The annotation of such a pod that names the migration."""
EPHEMERAL_PROVISIONING = "kubevirt.io/ephemeral-provisioning"
"""The annotation of a pod that has volumes provisioned and never runs the VM."""
CONTROLLER_ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
"""Who creates the pods of VMs, as KubeVirt installs itself."""
LAUNCHERS = "kubevirt.io=virt-launcher"
"""The label selector of the pods that run VMs."""
SCHEDULABLE = "kubevirt.io/schedulable"
"""The label of a node that VMs can run on, where it is `true`; KubeVirt keeps it."""
ENDS = frozenset({"Succeeded", "Failed"})
"""The phases that are the end of a pod, of a VMI, and of a migration."""


class StickyArgs(Args, frozen=True):
    """Arguments of the sticky plugin."""

    select: Literal["all", "annotated"] = "all"
    """Which VMs stick: all that do not say `holdfast.dev/sticky: "false"`, or those alone that say
    `"true"`."""
    node_annotation: shapes.Key = STICKY_NODE
    """The VM's annotation that records its node."""
    affinity: Literal["required", "preferred"] = "required"
    """Whether the VM waits for its node, or goes elsewhere when it has to."""
    on_migration: Literal["follow", "keep"] = "follow"
    """What a live migration that succeeded does to the record."""
    namespaces: tuple[shapes.Namespace, ...] = ()
    """The namespaces whose VMs stick; all where none is named."""
    account: shapes.NotEmpty = CONTROLLER_ACCOUNT
    """The account that KubeVirt's virt-controller creates pods by."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: immutable, camelCase on the wire, and left out of cyclic garbage collection."""


class VirtualMachine(_Object, frozen=True):
    """A VM: all that matters is in its metadata."""

    metadata: Metadata = Metadata()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def key(self) -> Names:
        """Its namespace and name."""
        return self.metadata.namespace, self.metadata.name


class InstanceTemplate(_Object, frozen=True):
    """What a VM has its VMIs made of."""

    spec: InstanceSpec | None = None


class TemplatedSpec(_Object, frozen=True):
    """A VM's spec, as far as a profile is chosen by it."""

    template: InstanceTemplate | None = None


class MigrationState(_Object, frozen=True):
    """What a migration did, as VMI and migration both tell it."""

    migration_uid: str = ""
    source_node: str = ""


class InstanceSpec(_Object, frozen=True):
    """What a VMI asks for; KubeVirt writes it into its pods."""

    scheduler_name: str = ""


class InstanceStatus(_Object, frozen=True):
    """Where a VMI runs; set when its pod is ready, not when it is bound."""

    node_name: str = ""
    phase: str = ""
    migration_state: MigrationState | None = None


class Instance(_Object, frozen=True):
    """A VirtualMachineInstance: one run of a VM."""

    metadata: Metadata = Metadata()
    spec: InstanceSpec = InstanceSpec()
    status: InstanceStatus = InstanceStatus()

    @property
    def has_started(self) -> bool:
        """Whether it runs, or has run: then KubeVirt makes a further pod for migrations alone."""
        return self.status.phase not in _BEFORE_RUNNING

    @property
    def key(self) -> Names:
        """Its namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def is_over(self) -> bool:
        """Whether it runs no more, and will not again: a VM's next run is another VMI."""
        return self.status.phase in ENDS


_BEFORE_RUNNING = frozenset({"", "Pending", "Scheduling", "Scheduled"})


class TemplatedMachine(VirtualMachine, frozen=True):
    """A VM with its template: enough to tell which profile serves its pods."""

    spec: TemplatedSpec | None = None

    @property
    def next_instance(self) -> Instance:
        """The VMI that its template alone makes; an instancetype may have it otherwise."""
        template = self.spec.template if self.spec else None
        return Instance(self.metadata, (template and template.spec) or InstanceSpec())


class MigrationSpec(_Object, frozen=True):
    """Which VMI a migration moves."""

    vmi_name: str = ""


class MigrationStatus(_Object, frozen=True):
    """How far a migration is: `Succeeded` and `Failed` are its ends."""

    phase: str = ""
    migration_state: MigrationState | None = None


class Migration(_Object, frozen=True):
    """A VirtualMachineInstanceMigration."""

    metadata: Metadata = Metadata()
    spec: MigrationSpec = MigrationSpec()
    status: MigrationStatus = MigrationStatus()

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end, one or the other."""
        return self.status.phase in ENDS


class PodCondition(_Object, frozen=True):
    """A condition of a pod; `PodScheduled` is `False` while no node will do."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(_Object, frozen=True):
    """How far a pod is."""

    phase: str = ""
    conditions: list[PodCondition] | None = None


class LauncherPod(Pod, frozen=True):
    """A pod that runs, or is to run, a VMI: a landing, once it is bound."""

    status: PodStatus = PodStatus()

    @property
    def is_held(self) -> bool:
        """Whether our finalizer keeps it."""
        return STICKY in self.finalizers

    @property
    def has_ended(self) -> bool:
        """Whether it is being deleted, or has run to its end: then it is bound no more."""
        return self.metadata.deletion_timestamp is not None or self.status.phase in ENDS

    @property
    def is_unschedulable(self) -> bool:
        """Whether the scheduler has found no node for it."""
        return any(
            (one.type, one.status, one.reason) == ("PodScheduled", "False", "Unschedulable")
            for one in self.status.conditions or ()
        )


def pod_of(instance: Instance) -> Pod:
    """Make the pod that KubeVirt would make of a VMI, as far as a profile is chosen by it."""
    return Pod(
        metadata=Metadata(namespace=instance.metadata.namespace),
        spec=PodSpec(scheduler_name=instance.spec.scheduler_name),
    )


def controller_of(metadata: Metadata, kind: str) -> OwnerReference | None:
    """Give the controller owner of this KubeVirt kind, or None: there is at most one controller."""
    for owner in metadata.owner_references or ():
        of_kubevirt = owner.api_version.startswith(f"{GROUP}/")
        if owner.controller and of_kubevirt and owner.kind == kind:
            return owner
    return None


def recorded_node(vm: VirtualMachine, args: StickyArgs) -> str:
    """Give the node that a VM has to come back to; empty where there is none.

    A record with another VM's UID beside it was copied with its annotations, as clones do, and
    does not count; one without a UID was made by a person, and does.
    """
    uid = vm.annotations.get(STICKY_NODE_UID, "")
    return vm.annotations.get(args.node_annotation, "") if uid in {"", vm.metadata.uid} else ""


def sticks(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Tell whether a VM is to come back to its node at all."""
    if args.namespaces and vm.metadata.namespace not in args.namespaces:
        return False
    chosen = vm.annotations.get(STICKY, "")
    return chosen == "true" if args.select == "annotated" else chosen != "false"


def vm_path(namespace: str, name: str) -> str:
    """Make the API path of a VM."""
    return _path("virtualmachines", namespace, name)


def vmi_path(namespace: str, name: str) -> str:
    """Make the API path of a VMI."""
    return _path("virtualmachineinstances", namespace, name)


def migration_path(namespace: str, name: str) -> str:
    """Make the API path of a migration; without a name, of all in the namespace."""
    return _path("virtualmachineinstancemigrations", namespace, name)


def _path(resource: str, namespace: str, name: str) -> str:
    path = f"{API_PATH}/namespaces/{quote(namespace, safe='')}/{resource}/{quote(name, safe='')}"
    return path.rstrip("/")
