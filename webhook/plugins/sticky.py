"""sticky: return a virtual machine to the node that has its disks.

This is the StickyVM scheduler plugin's rule: once a VM has run on a node, it always returns to it,
unless a person intervenes. When KubeVirt creates the VM's pod, the plugin adds node affinity, and a
finalizer that keeps the pod until the controller has recorded its node.

Pods that anyone else creates are not edited: owner references can be copied, and a response that
depended on them would reveal other users' VMs. Such a pod is rejected only if its creator may be
KubeVirt, in a namespace other than that of the configured account.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from holdfast.webhook.errors import ApiStatusError, ConfigurationError, InvalidValueError
from holdfast.webhook.framework import cel, node_affinity
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Context, Plugin, Result, reject, skip, success
from holdfast.webhook.model import kubevirt, messages, syntax
from holdfast.webhook.model.edits import (
    AddFinalizer,
    Edit,
    PreferNodes,
    Requirement,
    RequireNodes,
    SetAnnotation,
)
from holdfast.webhook.model.kubevirt import Instance, VirtualMachine
from holdfast.webhook.model.objects import OwnerReference, Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.plugins.virt_controller import AUTO, T, VirtController, read_owner

WEIGHT = 100
"""Weight of a preferred node, the maximum."""
_MAX_NAMED = 3
"""Maximum number of contradicting requirements in a message."""

_log = logging.getLogger("holdfast.plugins")


class Sticky(Plugin):
    """Adds the recorded node of a VM, and the finalizer, to the VM's pods."""

    name = "sticky"
    args_type = StickyArgs
    finalizer = kubevirt.STICKY

    args: StickyArgs

    def __init__(self, args: StickyArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        _check(args)
        self.virt_controller = VirtController(args.account, self.handle)
        # `keys` is empty: the VM decides, and a later change of the pod has no effect.
        self.workload_keys = {kubevirt.VM: (kubevirt.STICKY, args.node_annotation)}
        self._record_keys = (args.node_annotation, kubevirt.STICKY_NODE_UID)

    def match(self, pod: str) -> str:
        """Match pods of VMIs in the selected namespaces, but not templates, which have no owner."""
        if pod != cel.POD:
            return "false"
        test = cel.has_controller(kubevirt.GROUP, kubevirt.VMI, pod)
        if not self.args.namespaces:
            return test
        return f"{test} && request.namespace in {cel.strings(self.args.namespaces)}"

    def concerns(self, pod: Pod) -> bool:
        """Return whether a pod belongs to a VMI; without a namespace, it may be in any of them."""
        namespace = pod.metadata.namespace
        if namespace and not self._is_selected(namespace):
            return False
        return kubevirt.controller_of(pod.metadata, kubevirt.VMI) is not None

    def start(self) -> None:
        """Log once if KubeVirt is not installed."""
        try:
            self.handle.lookup.get(kubevirt.API_PATH)
        except ApiStatusError as exc:
            if exc.status != 404:
                raise
            _log.info("plugin sticky: KubeVirt is not installed; idle until it is")

    def may_have_finalizer(self, review: PodReview) -> bool:
        """Return whether a pod is a launcher pod of KubeVirt: `mutate` adds the finalizer."""
        if not _runs_vm(review.pod) or not self.concerns(review.pod):
            return False  # without waiting for a lookup
        return self._owner(review) is not None

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Add the finalizer, and the VM's recorded node if any, to a pod that KubeVirt creates."""
        try:
            edits = self._find_edits(pod, context.review)
        except InvalidValueError as exc:
            return reject(str(exc))
        return success(*edits) if edits else skip()

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject a new pod that lacks what `mutate` added, or whose VM has changed since.

        A pod requires two nodes if `mutate` ran twice and the VM's record changed in between.
        """
        try:
            edits = self._find_edits(pod, context.review)
        except InvalidValueError as exc:
            return reject(str(exc))
        missing = [
            _named_edit(edit)
            for edit in edits
            if not isinstance(edit, PreferNodes) and patch(pod, [edit])
        ]
        if missing:
            return reject(
                f"{' and '.join(missing)} is missing from a pod of a sticky VM: another mutating "
                "webhook removed it; or the VM has just been changed, and KubeVirt's retry succeeds"
            )
        if any(isinstance(edit, RequireNodes) for edit in edits):
            contradicting = node_affinity.nowhere(pod)
            if contradicting:
                return reject(_contradiction(contradicting))
        return success() if edits else skip()

    def restore_match(self) -> str:
        """Match updates by KubeVirt that erase the record of a VM in a pool.

        KubeVirt overwrites all annotations of such a VM when the pool's template changes.
        """
        before, after = (
            f"{cel.optional(path)}.orValue({{}})"
            for path in ("oldObject.metadata.annotations", "object.metadata.annotations")
        )
        tests = [
            self.virt_controller.match(),
            cel.has_controller(kubevirt.POOL_GROUP, kubevirt.POOL, "oldObject"),
            f"{cel.strings(self._record_keys)}.exists(key, key in {before} && !(key in {after}))",
        ]
        if self.args.namespaces:
            tests.append(f"request.namespace in {cel.strings(self.args.namespaces)}")
        return " && ".join(f"({test})" for test in tests)

    def restore(self, workload: Workload, old: Workload) -> Result:
        """Restore the annotations of the VM's record that the update erases."""
        erased_keys = [
            key
            for key in self._record_keys
            if key in old.own.annotations and key not in workload.own.annotations
        ]
        return success(*(SetAnnotation(key, old.own.annotations[key]) for key in erased_keys))

    def validate_workload(self, workload: Workload, old: Workload | None) -> Result:
        """Reject invalid annotations on a VM when they are written."""
        old_annotations = old.own.annotations if old else {}
        reasons = [
            reason
            for key in self.workload_keys.get(workload.kind, ())
            for value in [workload.own.annotations.get(key)]
            if value is not None and value != old_annotations.get(key)
            for reason in [self._problem(key, value)]
            if reason
        ]
        if workload.kind == kubevirt.VM and old is not None:
            reasons += self._ignored_record(workload, old_annotations)
        return reject("; ".join(reasons)) if reasons else skip()

    def _ignored_record(self, vm: Workload, old_annotations: Mapping[str, str]) -> Sequence[str]:
        """Return why a new node would be ignored: a clone's record has the UID of another VM."""
        key, obj = self.args.node_annotation, vm.own
        node, uid = obj.annotations.get(key, ""), obj.annotations.get(kubevirt.STICKY_NODE_UID, "")
        if not node or node == old_annotations.get(key) or uid in {"", obj.metadata.uid}:
            return ()
        if uid != old_annotations.get(kubevirt.STICKY_NODE_UID):
            return ()  # both have changed, such as by restoring a backup
        reason = (
            f"annotation {key}: {messages.quote(node)} would be ignored: "
            f"{kubevirt.STICKY_NODE_UID} is another VM's, copied by a clone: remove it in the same "
            "change"
        )
        return [reason]

    def _problem(self, key: str, value: str) -> str:
        """Return the problem with a VM's annotation; empty if it is valid."""
        invalid = f"annotation {key}: invalid value {messages.quote(value)}"
        if key == kubevirt.STICKY:
            return "" if value in {"true", "false"} else f'{invalid}: use "true" or "false"'
        if not value or syntax.is_object_name(value):
            return ""
        return f"{invalid}: use a node name, or remove the annotation to let the VM start anywhere"

    # --- KubeVirt's pods -----------------------------------------------------------------------

    def _owner(self, review: PodReview) -> OwnerReference | None:
        """Return the VMI of a new pod that KubeVirt creates; None for all other pods."""
        owner = self._claimed_owner(review)
        if owner is None or not self.virt_controller.is_user(review.request.user_info.username):
            return None
        return owner

    def _claimed_owner(self, review: PodReview) -> OwnerReference | None:
        """Return the VMI that a new pod names as its owner, regardless of its creator."""
        request = review.request
        if review.workload is not None or request.operation != "CREATE":
            return None
        if not self._is_selected(request.namespace):
            return None
        return kubevirt.controller_of(review.pod.metadata, kubevirt.VMI)

    def _check_account(self, review: PodReview) -> None:
        """Raise InvalidValueError if a virt-controller other than the configured one made the pod.

        Otherwise, VMs would silently fail to return to their nodes.
        """
        creator, account = review.request.user_info.username, self.args.account
        if account in {AUTO, creator} or kubevirt.VIRT_CONTROLLER.fullmatch(creator) is None:
            return
        if self._claimed_owner(review) is not None:
            raise InvalidValueError(
                f"this pod of a {kubevirt.VMI} is created by {creator}, but plugin sticky is "
                f"configured with account {account!r}: set the argument account to "
                "auto"
            )

    def _is_selected(self, namespace: str) -> bool:
        return not self.args.namespaces or namespace in self.args.namespaces

    def _find_edits(self, pod: Pod, review: PodReview) -> Sequence[Edit]:
        """Return the edits that a pod must have; none if its VM is not sticky.

        Raises InvalidValueError if the VM cannot be determined, ClusterError if a lookup fails.
        """
        owner = self._owner(review)
        if owner is None:
            self._check_account(review)
            return ()
        namespace = review.request.namespace
        instance = self._read(Instance, namespace, owner)
        vm_owner = kubevirt.vm_of(instance)
        if vm_owner is None:
            return ()  # a VMI without a VM, or of a replica set
        vm = self._read(VirtualMachine, namespace, vm_owner)
        if not sticky_policy.is_sticky(vm, self.args):
            return ()
        edits: list[Edit] = [AddFinalizer(self.finalizer)] if _runs_vm(pod) else []
        if kubevirt.MIGRATION_JOB in pod.labels and instance.has_started:
            return edits  # the label alone may come from the VM's template
        return [*edits, *self._pin(vm)]

    def _pin(self, vm: VirtualMachine) -> Sequence[Edit]:
        node = sticky_policy.recorded_node(vm, self.args)
        if not node:
            return ()
        problem = self._problem(self.args.node_annotation, node)
        if problem:
            vm_name = f"{kubevirt.VM} {vm.metadata.namespace}/{vm.metadata.name}"
            raise InvalidValueError(f"{vm_name}: {problem}")
        requirements = (Requirement("metadata.name", "In", (node,), is_field=True),)
        if self.args.affinity == "preferred":
            return (PreferNodes(WEIGHT, requirements),)
        return (RequireNodes(requirements),)

    def _read(self, shape: type[T], namespace: str, owner: OwnerReference) -> T:
        """Read an owner without the cache, and check its UID.

        Raises InvalidValueError if it is gone, and ClusterError if the lookup fails.
        """
        owner_object = read_owner(self.handle, shape, namespace, owner)
        if owner_object is None:
            shown_namespace = (
                namespace if syntax.is_namespace(namespace) else messages.quote(namespace)
            )
            raise InvalidValueError(
                f"{owner.kind} {shown_namespace}/{messages.quote(owner.name)} with UID "
                f"{messages.quote(owner.uid)} no longer exists, so the pod's node is unknown: "
                "KubeVirt creates another pod if one is needed"
            )
        return owner_object


def _runs_vm(pod: Pod) -> bool:
    """Return whether the VM itself runs in a pod: a provisioning pod only binds its volumes."""
    return kubevirt.EPHEMERAL_PROVISIONING not in pod.annotations


def _named_edit(edit: Edit) -> str:
    if isinstance(edit, AddFinalizer):
        return f"finalizer {edit.name}"
    assert isinstance(edit, RequireNodes)  # noqa: S101 - the only other edit that is checked
    return f"required node affinity {messages.quote(str(edit.requirements[0]))}"


def _contradiction(requirements: Sequence[Requirement]) -> str:
    quoted = [messages.quote(str(requirement)) for requirement in dict.fromkeys(requirements)]
    suffix = f" and {len(quoted) - _MAX_NAMED:,} more" if len(quoted) > _MAX_NAMED else ""
    return (
        f"no node can meet the required node affinity {' and '.join(quoted[:_MAX_NAMED])}{suffix}: "
        "correct the VM's own affinity or its recorded node; or the VM has just been changed, and "
        "KubeVirt's retry succeeds"
    )


def _check(args: StickyArgs) -> None:
    """Check the arguments. Raises ConfigurationError."""
    key = args.node_annotation
    if not syntax.is_qualified_name(key):
        raise ConfigurationError(
            f"nodeAnnotation: {messages.quote(key)} is not a valid annotation key: use one like "
            "example.com/sticky-node"
        )
    if key in {kubevirt.STICKY, kubevirt.STICKY_NODE_UID}:
        raise ConfigurationError(f"nodeAnnotation: {key!r} is reserved: use another key")
    for index, namespace in enumerate(args.namespaces):
        if not syntax.is_namespace(namespace):
            raise ConfigurationError(
                f"namespaces[{index}]: {messages.quote(namespace)} is not a valid namespace: use a "
                "name like default"
            )
    if not args.account:
        raise ConfigurationError(
            "account: must not be empty: use auto, or name the account of virt-controller"
        )
