"""sticky: bring a virtual machine back to the node that has its disks.

The StickyVM scheduler plugin's rule: a VM that has once run on a node always returns to it, unless
a person intervenes. Here it becomes node affinity, while KubeVirt creates the VM's pod, and a
finalizer, by which the controller learns where a pod landed whatever becomes of it.

Pods that anybody else creates are given nothing, whatever they claim: owner references can be
copied, and an answer that depended on them would tell about other people's VMs. Those alone are
refused whose creator may be KubeVirt in another namespace than the configuration says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec

from webhook import affinity, conditions, values, vms
from webhook.errors import ApiStatusError, ConfigurationError, ValueRefusedError
from webhook.framework import Args, Context, Handle, Result, refuse, skip, success
from webhook.objects import OwnerReference, Pod
from webhook.patch import patch
from webhook.review import AddFinalizer, Edit, PodReview, PreferNodes, Requirement, RequireNodes
from webhook.vms import Instance, StickyArgs, VirtualMachine
from webhook.workloads import Workload

WEIGHT = 100
"""Of the preference, where the node is preferred: the greatest that there is."""
_MOST_NAMED = 3
"""Of requirements that contradict each other."""

_AS_KUBEVIRT = re.compile(r"system:serviceaccount:[-a-z0-9]{1,63}:kubevirt-controller")
"""The account of virt-controller, wherever KubeVirt is installed; its operator names it so."""

T = TypeVar("T", Instance, VirtualMachine)
_log = logging.getLogger("holdfast.plugins")


class Sticky:
    """Reads pod, VMI and VM, and writes the VM's node and the finalizer into the pod."""

    name: ClassVar[str] = "sticky"
    args_type: ClassVar[type[Args]] = StickyArgs
    may_block: ClassVar[bool] = True
    finalizer: ClassVar[str] = vms.STICKY
    keys: Sequence[str] = ()
    """None: what decides stands on the VM, and a later change of it moves no pod."""

    def __init__(self, args: StickyArgs, handle: Handle | None = None) -> None:
        _check(args)
        self.args = args
        self._handle = handle or Handle()
        self.workload_keys: Mapping[str, Sequence[str]] = {
            vms.VM: (vms.STICKY, args.node_annotation)
        }

    def match(self, pod: str) -> str:
        """Match pods of VMIs, in the namespaces that stick; templates belong to nobody."""
        if pod != conditions.POD:
            return "false"
        test = conditions.has_controller(vms.GROUP, vms.VMI, pod)
        if not self.args.namespaces:
            return test
        return f"{test} && request.namespace in {conditions.strings(self.args.namespaces)}"

    def concerns(self, pod: Pod) -> bool:
        """Match pods of VMIs; one that names no namespace may be in any."""
        namespace = pod.metadata.namespace
        if namespace and not self._sticks_in(namespace):
            return False
        return vms.controller_of(pod.metadata, vms.VMI) is not None

    def started(self) -> None:
        """Say once where there is no KubeVirt: until it comes, no pod concerns this plugin."""
        try:
            self._handle.lookup.get(vms.API_PATH)
        except ApiStatusError as exc:
            if exc.status != 404:
                raise
            _log.info("plugin sticky: this cluster has no KubeVirt; idle until it is installed")

    def may_carry(self, review: PodReview) -> bool:
        """Let KubeVirt's own launcher pods have the finalizer: they come again, or for a check."""
        return _is_landing(review.pod) and self._owner(review) is not None

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Write the finalizer, and the VM's node where it has one, into a pod of KubeVirt's."""
        try:
            edits = self._wanted(pod, context.review)
        except ValueRefusedError as exc:
            return refuse(str(exc))
        return success(*edits) if edits else skip()

    def validate(self, pod: Pod, context: Context) -> Result:
        """Refuse a new pod that lost what `mutate` wrote, or that other facts hold for by now.

        Both pins are in it where `mutate` was asked again and the VM's record had changed between.
        """
        try:
            edits = self._wanted(pod, context.review)
        except ValueRefusedError as exc:
            return refuse(str(exc))
        missing = [
            _shown(edit)
            for edit in edits
            if not isinstance(edit, PreferNodes) and patch(pod, [edit])
        ]
        if missing:
            return refuse(
                f"{' and '.join(missing)} is not in the pod of a VM that needs it; another "
                "mutating webhook removed it, or the VM was changed just now, and then KubeVirt's "
                "next try works"
            )
        if any(isinstance(edit, RequireNodes) for edit in edits):
            contradicting = affinity.nowhere(pod)
            if contradicting:
                return refuse(_contradiction(contradicting))
        return success() if edits else skip()

    def validate_workload(self, workload: Workload, old: Workload | None) -> Result:
        """Refuse what cannot be followed on a VM itself, where it is written."""
        before = old.annotations if old else {}
        reasons = [
            reason
            for key in self.workload_keys.get(workload.kind, ())
            for value in [workload.annotations.get(key)]
            if value is not None and value != before.get(key)
            for reason in [self._problem(key, value)]
            if reason
        ]
        if workload.kind == vms.VM and old is not None:
            reasons += self._not_counting(workload, before)
        return refuse("; ".join(reasons)) if reasons else skip()

    def _not_counting(self, vm: Workload, before: Mapping[str, str]) -> Sequence[str]:
        """Refuse another node beside another VM's UID: a clone's record does not count."""
        key = self.args.node_annotation
        node, uid = vm.annotations.get(key, ""), vm.annotations.get(vms.STICKY_NODE_UID, "")
        if not node or node == before.get(key) or uid in {"", vm.uid}:
            return ()
        if uid != before.get(vms.STICKY_NODE_UID):
            return ()  # both are written together: a copy, as a restored backup is one
        reason = (
            f"annotation {key}: {values.shown(node)} would not count: {vms.STICKY_NODE_UID} beside "
            "it is another VM's, copied with its annotations; remove that in the same change"
        )
        return [reason]

    def _problem(self, key: str, value: str) -> str:
        """Say why a VM's annotation cannot be followed; empty where it can be."""
        written = f"annotation {key}: {values.shown(value)}"
        if key == vms.STICKY:
            known = value in {"true", "false"}
            return "" if known else f'{written} is neither "true" nor "false"; write one of them'
        if not value or values.is_object_name(value):
            return ""
        return f"{written} is no node's name; correct it, or remove it to let the VM start anywhere"

    # --- a pod of KubeVirt's -------------------------------------------------------------------

    def _owner(self, review: PodReview) -> OwnerReference | None:
        """Give the VMI that a new pod of KubeVirt's own belongs to, or None for all other pods."""
        if review.request.user_info.username != self.args.account:
            return None
        return self._claimed(review)

    def _claimed(self, review: PodReview) -> OwnerReference | None:
        """Give the VMI that a new pod says it belongs to, whoever creates it."""
        request = review.request
        if review.workload is not None or request.operation != "CREATE":
            return None
        if not self._sticks_in(request.namespace):
            return None
        return vms.controller_of(review.pod.metadata, vms.VMI)

    def _check_account(self, review: PodReview) -> None:
        """Refuse a pod of a VMI by what is KubeVirt's account, but for its namespace.

        Where KubeVirt is installed in another one than the configuration says, no VM would come
        back, and nobody would notice. Raises ValueRefusedError.
        """
        creator = review.request.user_info.username
        if creator == self.args.account or _AS_KUBEVIRT.fullmatch(creator) is None:
            return
        if self._claimed(review) is not None:
            raise ValueRefusedError(
                f"{creator} creates this pod of a {vms.VMI}, but the argument account of the "
                f"plugin sticky is {self.args.account!r}: nobody looks where its VM "
                "belongs; set it to KubeVirt's own account"
            )

    def _sticks_in(self, namespace: str) -> bool:
        return not self.args.namespaces or namespace in self.args.namespaces

    def _wanted(self, pod: Pod, review: PodReview) -> Sequence[Edit]:
        """Decide what a pod has to carry; nothing where no VM sticks.

        Raises ValueRefusedError where the VM cannot be told, ClusterError where the lookup fails.
        """
        owner = self._owner(review)
        if owner is None:
            self._check_account(review)
            return ()
        namespace = review.request.namespace
        instance = self._read(Instance, vms.VMI, namespace, owner)
        vm_owner = vms.controller_of(instance.metadata, vms.VM)
        if vm_owner is None:
            return ()  # it stands alone, or belongs to a replica set
        vm = self._read(VirtualMachine, vms.VM, namespace, vm_owner)
        if not vms.sticks(vm, self.args):
            return ()
        edits: list[Edit] = [AddFinalizer(self.finalizer)] if _is_landing(pod) else []
        if vms.MIGRATION_JOB in pod.labels and instance.has_started:
            return edits  # a template's label alone makes no migration
        return [*edits, *self._pin(vm)]

    def _pin(self, vm: VirtualMachine) -> Sequence[Edit]:
        node = vms.recorded_node(vm, self.args)
        if not node:
            return ()
        problem = self._problem(self.args.node_annotation, node)
        if problem:
            where = f"{vms.VM} {vm.metadata.namespace}/{vm.metadata.name}"
            raise ValueRefusedError(f"{where}: {problem}")
        there = (Requirement("metadata.name", "In", (node,), is_field=True),)
        if self.args.affinity == "preferred":
            return (PreferNodes(WEIGHT, there),)
        return (RequireNodes(there),)

    def _read(self, shape: type[T], kind: str, namespace: str, owner: OwnerReference) -> T:
        """Read an owner afresh, and make sure that it is the one that is meant."""
        path = vms.vmi_path if kind == vms.VMI else vms.vm_path
        known = values.is_namespace(namespace) and values.is_object_name(owner.name)
        found = self._handle.lookup.get(path(namespace, owner.name)) if known else None
        read = None if found is None else msgspec.convert(found, shape)
        if read is None or read.metadata.uid != owner.uid:
            raise ValueRefusedError(
                f"there is no {kind} {_named(namespace)}/{values.shown(owner.name)} of UID "
                f"{values.shown(owner.uid)} any more, so nobody can say where its pod belongs; "
                "KubeVirt makes another pod where one is needed"
            )
        return read


def _is_landing(pod: Pod) -> bool:
    """Tell whether the VM itself is to run in a pod, and not only its volumes to be provisioned."""
    return vms.EPHEMERAL_PROVISIONING not in pod.annotations


def _named(namespace: str) -> str:
    return namespace if values.is_namespace(namespace) else values.shown(namespace)


def _shown(edit: Edit) -> str:
    if isinstance(edit, AddFinalizer):
        return f"finalizer {edit.name}"
    assert isinstance(edit, RequireNodes)  # noqa: S101 - the one other edit that is checked
    return f"required node affinity {values.shown(str(edit.requirements[0]))}"


def _contradiction(found: Sequence[Requirement]) -> str:
    shown = [values.shown(str(one)) for one in dict.fromkeys(found)]
    more = f" and {len(shown) - _MOST_NAMED:,} more" if len(shown) > _MOST_NAMED else ""
    return (
        f"no node can meet the required node affinity {' and '.join(shown[:_MOST_NAMED])}{more}; "
        "the VM was changed just now, and then KubeVirt's next try works, or its own affinity "
        "names another node than its record: correct one of them"
    )


def _check(args: StickyArgs) -> None:
    """Check the arguments. Raises ConfigurationError."""
    key = args.node_annotation
    if not values.is_qualified_name(key):
        raise ConfigurationError(
            f"nodeAnnotation: {values.shown(key)} is no annotation key; write one such as "
            "example.com/sticky-node"
        )
    if key in {vms.STICKY, vms.STICKY_NODE_UID}:
        raise ConfigurationError(f"nodeAnnotation: {key!r} has another meaning; choose another")
    for index, namespace in enumerate(args.namespaces):
        if not values.is_namespace(namespace):
            raise ConfigurationError(
                f"namespaces[{index}]: {values.shown(namespace)} is no namespace's name; write "
                "one such as default"
            )
    if not args.account:
        raise ConfigurationError(
            "account: is empty; name the account that KubeVirt's virt-controller creates pods by"
        )
