"""approval: hold a pod until somebody approves it.

`holdfast approve` and `holdfast deny` write the user's name to the pod. An admission policy checks
the name and the right of the user who writes it.
"""

from __future__ import annotations

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.plugin import (
    Allow,
    Context,
    Permit,
    Plugin,
    Reject,
    Result,
    Wait,
    reject,
    skip,
    success,
)
from holdfast.webhook.model import messages, reasons
from holdfast.webhook.model.approvals import APPROVED_BY, DENIED_BY, DENIED_REASON, GATE, KEY, MARKS
from holdfast.webhook.model.edits import AddGate, RemoveAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import holding


class Approval(Plugin):
    """Adds the gate at creation, and reads who has approved or denied the pod."""

    name = "approval"
    may_block = False
    gate = GATE
    permit_is_final = True
    keys = (KEY,)

    # --- admission -----------------------------------------------------------------------------

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Add the gate if the pod asks for an approval; one that was copied does not count."""
        if KEY not in pod.annotations or holding.must_start(pod, context, GATE):
            return skip()
        copied = [RemoveAnnotation(key) for key in MARKS if key in pod.annotations]
        try:
            reasons.parse(pod.annotations[KEY])
        except InvalidValueError as exc:
            return reject(f"annotation {KEY}: {exc}")
        if pod.spec.node_name:
            return success(*copied, warnings=[holding.BOUND])
        return success(AddGate(GATE), *copied)

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, a new pod whose gate is missing, and one that is approved."""
        if KEY not in pod.annotations or holding.must_start(pod, context, GATE):
            return skip()
        try:
            reasons.parse(pod.annotations[KEY])
        except InvalidValueError as exc:
            return reject(f"annotation {KEY}: {exc}")
        problem = holding.lacks_gate(pod, context, GATE)
        forged = next((key for key in MARKS if key in pod.annotations), "")
        if forged and holding.is_new(context):
            problem = f"annotation {forged}: a new pod cannot have it: {messages.CALL_LAST}"
        return reject(problem) if problem else success()

    # --- held pods -----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:  # noqa: ARG002 - it depends on the pod only
        """Allow an approved pod; a denial counts more than an approval."""
        annotations = pod.annotations
        if KEY not in annotations:
            return Allow(f"annotation {KEY} was removed: released without an approval")
        if denied_by := annotations.get(DENIED_BY):
            why = annotations.get(DENIED_REASON)
            because = f": {reasons.shown(why)}" if why else ""
            return Reject(f"denied by {reasons.shown(denied_by)}{because}")
        if annotations.get(APPROVED_BY):
            return Allow()
        return Wait(reason=reasons.shown(annotations[KEY]))
