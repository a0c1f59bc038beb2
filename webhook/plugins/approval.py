"""approval: hold a pod until somebody approves it.

`holdfast approve` and `holdfast deny` write the user's name to the pod. An admission policy checks
the name, and the permission of the user who writes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.plugin import (
    Allow,
    Code,
    Context,
    Permit,
    Reject,
    Result,
    Wait,
    reject,
)
from holdfast.webhook.model import approvals, reasons
from holdfast.webhook.model.annotations import HOLD_REMOVED
from holdfast.webhook.model.approvals import APPROVED_BY, GATE, KEY, MARKS
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.holding import HoldingPlugin, is_new


class Approval(HoldingPlugin):
    """Adds the gate at creation, and allows the pod once a user has approved it."""

    name = "approval"
    gate = GATE
    permit_is_final = True
    keys = (KEY,)
    reserved_annotations = MARKS

    # --- admission -----------------------------------------------------------------------------

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:  # noqa: ARG002
        """Check the reason. Raises InvalidValueError."""
        try:
            reasons.parse(pod.annotations[KEY])
        except InvalidValueError as exc:
            raise InvalidValueError(f"annotation {KEY}: {exc}") from None
        return ()

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, and a new pod that lacks the gate or is already approved."""
        result = super().validate(pod, context)
        forged_key = next((key for key in MARKS if key in pod.annotations), "")
        if result.code is Code.SUCCESS and forged_key and is_new(context):
            return reject(f"annotation {forged_key}: a new pod cannot have it: call Holdfast last")
        return result

    # --- held pods -----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:  # noqa: ARG002 - depends only on the pod
        """Allow an approved pod; a denial takes precedence over an approval."""
        annotations = pod.annotations
        if KEY not in annotations:
            return Allow(f"annotation {KEY} {HOLD_REMOVED} an approval")
        if denial := approvals.denial(annotations):
            return Reject(denial)
        if annotations.get(APPROVED_BY):
            return Allow()
        return Wait(reason=reasons.shown(annotations[KEY]))
