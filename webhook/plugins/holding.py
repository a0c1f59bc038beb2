"""Admission rules that all plugins share which hold pods."""

from __future__ import annotations

from holdfast.webhook.framework.plugin import Context
from holdfast.webhook.model import kubevirt, messages
from holdfast.webhook.model.objects import Pod

BOUND = "holdfast: not held: spec.nodeName is already set"
"""The warning about a pod that has a node: the API server rejects one that has a gate as well."""


def must_start(pod: Pod, context: Context, gate: str) -> bool:
    """Return whether KubeVirt waits for a pod, whatever its VM's template says about holds.

    The target of a live migration has minutes to start, and a VM waits for its provisioning pod.
    Their marks prove nothing, because a Deployment could have them too, and an update could add
    them. An update of a pod without the gate changes no hold.
    """
    target = kubevirt.MIGRATION_JOB in pod.labels
    if not target and kubevirt.EPHEMERAL_PROVISIONING not in pod.annotations:
        return False
    request = context.review.request
    by_kubevirt = kubevirt.VIRT_CONTROLLER.fullmatch(request.user_info.username) is not None
    if gate in pod.gates or (request.operation == "CREATE" and not by_kubevirt):
        return False
    return kubevirt.controller_of(pod.metadata, kubevirt.VMI) is not None


def is_new(context: Context) -> bool:
    """Return whether a pod is being created, rather than updated or in a template."""
    return context.review.workload is None and context.review.request.operation == "CREATE"


def lacks_gate(pod: Pod, context: Context, gate: str) -> str:
    """Return what is wrong with a new pod that has to be held but has no gate; else empty."""
    held = not is_new(context) or gate in pod.gates or pod.spec.node_name
    return "" if held else missing_gate(gate)


def missing_gate(gate: str) -> str:
    """Say that another webhook has interfered."""
    return (
        f"scheduling gate {gate} is missing although the pod asks to be held: another mutating "
        "webhook removed the gate, or added the annotation after Holdfast ran: "
        f"{messages.CALL_LAST}"
    )
