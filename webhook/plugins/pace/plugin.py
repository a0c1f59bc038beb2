"""pace: start only so many pods at a time, or in a period.

`holdfast.dev/pace: "4"` holds a pod until fewer than four pods of its owner are starting, which
means released but not ready yet. The controller counts them by a label that the webhook sets, so
that a new leader finds all of them in the API server.
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
    success,
)
from holdfast.webhook.model.annotations import DELAY_GATE, HOLD_REMOVED, NEVER_MS, OWN_PREFIX
from holdfast.webhook.model.edits import Edit, RemoveLabel, SetLabel
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.pace import Limits
from holdfast.webhook.plugins.holding import HoldingPlugin, is_new
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import KEY, PaceArgs
from holdfast.webhook.plugins.pace.groups import label_of
from holdfast.webhook.plugins.pace.slots import GATE, PaceSlots


class Pace(HoldingPlugin):
    """Adds the gate and the label at creation, and gives out slots."""

    name = "pace"
    args_type = PaceArgs
    gate = GATE
    keys = (KEY,)

    args: PaceArgs

    def __init__(self, args: PaceArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self._paces = pace_args.check(args)
        self.slots = self.handle.share(self.name, partial(PaceSlots, self.handle))
        self.slots.add(self._paces)

    # --- admission -----------------------------------------------------------------------------

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:  # noqa: ARG002
        """Read the pace; the pod gets its name, or a hash of its owner, as a label."""
        named, limits = pace_args.read(pod, self._paces)
        return [SetLabel(KEY, label_of(pod, named, limits))]

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Hold the pod; remove the label from a pod that is not held, which would take a slot."""
        result = super().mutate(pod, context)
        if result.edits or result.code is Code.REJECT or KEY not in pod.labels:
            return result
        return success(RemoveLabel(KEY), warnings=result.warnings)

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, and a new pod whose gate or label is missing."""
        result = super().validate(pod, context)
        lacks_label = is_new(context) and self.gate in pod.gates and KEY not in pod.labels
        if result.code is Code.SUCCESS and lacks_label:
            return reject(f"label {KEY} is missing: another mutating webhook removed it")
        return result

    # --- held pods -----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Allow a pod if it has a slot, or may get one; otherwise it waits in the line.

        A pod that other plugins hold as well gets into the line when all of them allow it, or it
        would keep others from a slot that it cannot use. So would one that no longer has a pace.
        """
        limits = self._read(pod)
        if not isinstance(limits, Limits):
            self.unreserve(pod)
            return limits
        try:
            earliest_ms, _ = self.handle.bounds_ms()
        except HandleError:
            return Wait(reason=limits.words)
        alone = all(gate in {GATE, DELAY_GATE} for gate in pod.gates if gate.startswith(OWN_PREFIX))
        if not alone or now_ms > earliest_ms:
            return Allow()
        return _answer(self.slots.wait(pod, now_ms), earliest_ms, limits)

    def reserve(self, pod: Pod, now_ms: int) -> Permit:
        """Give the pod a slot, if it is its turn."""
        limits = self._read(pod)
        if not isinstance(limits, Limits):
            return limits
        return _answer(self.slots.take(pod, now_ms), now_ms, limits)

    def _read(self, pod: Pod) -> Limits | Permit:
        """Read the limits of a pod, or decide about one that has none."""
        if KEY not in pod.annotations:
            return Allow(f"annotation {KEY} {HOLD_REMOVED} a pace")
        try:
            _, limits = pace_args.read(pod, self._paces)
        except InvalidValueError as exc:
            return Wait(problem=f"{exc}: held until the annotation is corrected")
        return limits

    def unreserve(self, pod: Pod) -> None:
        """Take the slot back."""
        self.slots.give_back(pod.metadata.uid)

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        self.slots.forget(uid)


def _answer(turn_ms: int, now_ms: int, limits: Limits) -> Permit:
    if turn_ms <= now_ms:
        return Allow()
    if turn_ms >= NEVER_MS:
        return Wait(reason=limits.words)
    # A pod that gets ready frees its slot; the time is when it would lose it.
    return Wait(turn_ms, limits.words, open_ended=limits.starting is not None)
