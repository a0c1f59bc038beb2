"""pace: limit how many pods start at a time, or are released in a period.

`holdfast.dev/pace: "4"` holds a pod until fewer than four pods of its owner are starting:
released but not ready yet. The controller finds them by a label that the webhook sets, so a new
leader can list all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.webhook.errors import HandleError, InvalidValueError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import (
    Allow,
    Code,
    Context,
    Permit,
    Result,
    Wait,
    reject,
)
from holdfast.webhook.model.annotations import DELAY_GATE, HOLD_REMOVED, NEVER_MS, OWN_PREFIX
from holdfast.webhook.model.edits import Edit, SetLabel
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.pace import Limits
from holdfast.webhook.plugins.holding import HoldingPlugin, is_new
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import KEY, PaceArgs
from holdfast.webhook.plugins.pace.groups import label_of
from holdfast.webhook.plugins.pace.slots import GATE, PaceSlots


class Pace(HoldingPlugin):
    """Adds the gate and the label at creation, and assigns slots to held pods."""

    name = "pace"
    args_type = PaceArgs
    gate = GATE
    keys = (KEY,)
    reserved_labels = (KEY,)
    """A pod with the label takes a slot once it is released."""

    args: PaceArgs

    def __init__(self, args: PaceArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self._paces = pace_args.check(args)
        self.slots = self.handle.share(self.name, partial(PaceSlots, self.handle))
        self.slots.add(self._paces)

    # --- admission -----------------------------------------------------------------------------

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:  # noqa: ARG002
        """Return the edit that sets the label: the pace's name, or a hash of the pod's owner."""
        pace, limits = pace_args.read(pod, self._paces)
        return [SetLabel(KEY, label_of(pod, pace, limits))]

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, and a new pod whose gate or label is missing."""
        result = super().validate(pod, context)
        lacks_label = is_new(context) and self.gate in pod.gates and KEY not in pod.labels
        if result.code is Code.SUCCESS and lacks_label:
            return reject(f"label {KEY} is missing: another mutating webhook removed it")
        return result

    # --- held pods -----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Allow a pod that has a slot or can get one; queue all others.

        A pod that other plugins also hold is queued once all of them allow it: until then, it would
        block a slot that it cannot use. So would a pod that no longer has a pace.
        """
        limits = self._read(pod)
        if not isinstance(limits, Limits):
            self.unreserve(pod)
            return limits
        try:
            earliest_ms, _ = self.handle.bounds_ms()
        except HandleError:
            return Wait(reason=limits.words)
        is_only_gate = all(
            gate in {GATE, DELAY_GATE} for gate in pod.gates if gate.startswith(OWN_PREFIX)
        )
        if not is_only_gate or now_ms > earliest_ms:
            return Allow()
        return _answer(self.slots.wait(pod, now_ms), earliest_ms, limits)

    def reserve(self, pod: Pod, now_ms: int) -> Permit:
        """Assign a slot to the pod if it is its turn."""
        limits = self._read(pod)
        if not isinstance(limits, Limits):
            return limits
        return _answer(self.slots.take(pod, now_ms), now_ms, limits)

    def _read(self, pod: Pod) -> Limits | Permit:
        """Return the limits of a pod, or the decision about a pod without valid limits."""
        if KEY not in pod.annotations:
            return Allow(f"annotation {KEY} {HOLD_REMOVED} a pace")
        try:
            _, limits = pace_args.read(pod, self._paces)
        except InvalidValueError as exc:
            return Wait(problem=f"{exc}: held until the annotation is corrected")
        return limits

    def unreserve(self, pod: Pod) -> None:
        """Free the slot of the pod."""
        self.slots.give_back(pod.metadata.uid)

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        self.slots.forget(uid)


def _answer(turn_ms: int, now_ms: int, limits: Limits) -> Permit:
    if turn_ms <= now_ms:
        return Allow()
    if turn_ms >= NEVER_MS:
        return Wait(reason=limits.words)
    # A starting pod frees its slot earlier if it becomes ready; this is the time of its timeout.
    return Wait(turn_ms, limits.words, open_ended=limits.starting is not None)
