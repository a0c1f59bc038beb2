"""Admission rules shared by all plugins that hold pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.webhook.errors import (
    ApiStatusError,
    HandleError,
    InvalidValueError,
    NoCredentialsError,
)
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Context, Plugin, Result, reject, skip, success
from holdfast.webhook.model import kubevirt, messages
from holdfast.webhook.model.edits import AddGate, Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.plugins import hold_warnings
from holdfast.webhook.plugins.virt_controller import AUTO, VirtController, read_owner

_IS_AWAITED = "KubeVirt waits for the pod"
"""The key of a review's state with the result of the lookups, which all plugins share."""
BOUND = "holdfast: not held: spec.nodeName is already set: use a nodeSelector instead"
"""Warning for a pod with a node: the API server rejects pods that have both a node and a gate."""


class HoldingPlugin(Plugin):
    """Adds the gate to new pods that ask to be held, and rejects them if it is missing later."""

    may_block = False

    def __init__(self, args: Any, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self._virt_controller = VirtController(AUTO, self.handle)

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:  # noqa: ARG002
        """Return the edits of a new pod in addition to the gate; by default none.

        Raises InvalidValueError.
        """
        return ()

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Add the gate if the pod asks to be held."""
        if self.must_start(pod, context):
            return skip()
        try:
            edits = self.read(pod, context)
        except InvalidValueError as exc:
            return reject(str(exc))
        # The API server rejects a pod that has both a gate and a node.
        if pod.spec.node_name:
            return success(warnings=[BOUND])
        return success(AddGate(self.gate), *edits)

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, and a new pod whose gate is missing."""
        if not self.concerns(pod) or self.must_start(pod, context):
            return skip()  # an update may have removed the annotation
        try:
            self.read(pod, context)
        except InvalidValueError as exc:
            return reject(str(exc))
        held = not is_new(context) or self.gate in pod.gates or pod.spec.node_name
        if not held:
            return reject(missing_gate(self.gate))
        return success(warnings=self.warnings(pod, context))

    def warnings(self, pod: Pod, context: Context) -> Sequence[str]:
        """Return warnings about a workload that holding its pods would harm; none for a pod."""
        workload = context.review.workload
        if workload is None:
            return ()
        return hold_warnings.find_once(pod, workload, self.wait_ms(pod, context))

    def wait_ms(self, pod: Pod, context: Context) -> int | None:  # noqa: ARG002
        """Return how long pods of a valid template wait, in milliseconds; None if unknown."""
        return None

    def blocks(self, review: PodReview) -> bool:
        """Return whether a review needs a lookup of KubeVirt's account."""
        return self._looks_up(review.pod, review)

    def must_start(self, pod: Pod, context: Context) -> bool:
        """Return whether a pod must not be held, because KubeVirt waits for it.

        This overrides holds in the VM's template. The target pod of a live migration has only
        minutes to start, and a VM waits for its provisioning pod. An update of a pod without the
        gate does not change a hold. Raises ClusterError.
        """
        if not _is_awaited(pod) or self.gate in pod.gates:
            return False
        review = context.review
        if review.request.operation != "CREATE":
            return True
        if not self._looks_up(pod, review):
            return False
        if _IS_AWAITED not in context.state:
            context.state[_IS_AWAITED] = self._is_proven(review)
        return bool(context.state[_IS_AWAITED])

    def _looks_up(self, pod: Pod, review: PodReview) -> bool:
        request = review.request
        return (
            _is_awaited(pod)
            and self.gate not in pod.gates
            and request.operation == "CREATE"
            and review.workload is None
            and kubevirt.VIRT_CONTROLLER.fullmatch(request.user_info.username) is not None
        )

    def _is_proven(self, review: PodReview) -> bool:
        """Return whether KubeVirt waits for a pod that is marked so.

        Labels and annotations are not proof: any pod can have them, and KubeVirt copies those of a
        VMI to its pods. virt-controller must have created the pod. The pod must not start a VM, or
        the VM must be running.
        """
        pod, username = review.pod, review.request.user_info.username
        is_marked = kubevirt.EPHEMERAL_PROVISIONING in pod.annotations
        provisions = is_marked and kubevirt.only_provisions(review.request.object)
        if not provisions and kubevirt.MIGRATION_JOB not in pod.labels:
            return False
        try:
            is_kubevirts = self._virt_controller.is_user(username)
            return is_kubevirts and (provisions or self._runs(review))
        except (HandleError, NoCredentialsError):
            pass
        except ApiStatusError as exc:
            if exc.status != 403:
                raise
        # Without the KubeVirt component, assume the account of a default installation, and trust
        # the label: otherwise, no VM with a hold in its template could migrate.
        return username == kubevirt.CONTROLLER_ACCOUNT

    def _runs(self, review: PodReview) -> bool:
        """Return whether a pod's VMI runs, as before a migration within the cluster."""
        owner = kubevirt.controller_of(review.pod.metadata, kubevirt.VMI)
        if owner is None:
            return False
        instance = read_owner(self.handle, kubevirt.Instance, review.request.namespace, owner)
        return instance is not None and instance.runs


def _is_awaited(pod: Pod) -> bool:
    """Return whether a pod is marked as one that KubeVirt waits for; anyone can set the marks."""
    is_target = kubevirt.MIGRATION_JOB in pod.labels
    if not is_target and kubevirt.EPHEMERAL_PROVISIONING not in pod.annotations:
        return False
    return kubevirt.controller_of(pod.metadata, kubevirt.VMI) is not None


def is_new(context: Context) -> bool:
    """Return whether a pod is being created, rather than updated or part of a template."""
    return context.review.workload is None and context.review.request.operation == "CREATE"


def missing_gate(gate: str) -> str:
    """Return the rejection message for a pod whose gate is missing."""
    return (
        f"scheduling gate {gate} is missing although the pod asks to be held: another mutating "
        "webhook removed the gate, or added the annotation after Holdfast ran: "
        f"{messages.CALL_LAST}"
    )
