"""delay: hold a pod for a time after its creation.

The delay scheduler plugin's annotation `delay: "15"`, implemented with a scheduling gate: the pod
is not scheduled before creationTimestamp + delay, and costs the scheduler nothing until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework import arg_types, cel
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import (
    Allow,
    Args,
    Context,
    Permit,
    Result,
    Wait,
    reject,
    skip,
    success,
)
from holdfast.webhook.model import durations, messages, syntax
from holdfast.webhook.model.annotations import (
    DELAY_GATE,
    DELAY_KEYS,
    HELD_ANNOTATION,
    JITTER,
    NOT_BEFORE,
    PROFILE_ANNOTATION,
    HoldRequest,
    decide_due,
    format_hint,
    read_hold_request,
)
from holdfast.webhook.model.edits import (
    AddGate,
    Edit,
    SetAnnotation,
    SetSchedulerName,
)
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import hold_warnings
from holdfast.webhook.plugins.delay_origin import DELAY_FROM, OWNER, POD, Origins
from holdfast.webhook.plugins.holding import BOUND, HoldingPlugin, is_new, missing_gate

_RAISE = "ask an admin to raise maxDelay"
_PLAIN, _MAX_PLAIN = "^[1-9][0-9]{0,8}$", 999_999_999
"""Whole seconds, the usual form, and a maximum at which CEL integers cannot overflow."""


class DelayArgs(Args, frozen=True):
    """Arguments of the delay plugin."""

    annotations: Annotated[tuple[arg_types.Key, ...], arg_types.SOME_ONCE] = DELAY_KEYS
    """Annotations that carry a delay."""
    max_delay: arg_types.Delay = "168h"
    """The longest hold: delay or not-before, whichever is later, plus jitter."""
    on_invalid: Literal["reject", "ignore"] = "reject"
    """Whether a pod with an invalid value is rejected, or admitted without a hold. With `ignore` a
    pod whose gate another webhook removed is also admitted; one that has the gate is still
    rejected beyond `maxDelay`."""
    scheduler_name: str = ""
    """The `schedulerName` that held pods get; empty changes nothing."""


class _TooLongError(InvalidValueError):
    """A valid value exceeds maxDelay."""


class Delay(HoldingPlugin):
    """Adds the gate at creation, and decides when it may be removed."""

    name = "delay"
    args_type = DelayArgs
    gate = DELAY_GATE
    permit_is_final = True
    reserved_annotations = (HELD_ANNOTATION,)

    args: DelayArgs

    def __init__(self, args: DelayArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self._ignores = args.on_invalid == "ignore"
        self.keys = (*args.annotations, NOT_BEFORE, JITTER, DELAY_FROM)
        self._origins = Origins(self.handle)
        self.scheduler_names = {args.scheduler_name} - {""}
        self._max_ms = arg_types.parsed(durations.parse_delay, args.max_delay, "maxDelay")
        _check_keys(args.annotations)

    def skip_match(self, pod: str) -> str:
        """Match pods that have the gate and a single delay in whole seconds, the usual case.

        CEL cannot check other forms.
        """
        max_seconds = min(self._max_ms // 1_000, _MAX_PLAIN)
        annotations = f"{pod}.metadata.annotations"
        plain_tests = [
            f"{_only(key, self.keys, annotations)}"
            f" && {annotations}[{cel.string(key)}].matches('{_PLAIN}')"
            f" && int({annotations}[{cel.string(key)}]) <= {max_seconds}"
            for key in self.args.annotations
        ]
        tests = " || ".join(f"({test})" for test in plain_tests)
        return f"{cel.has_gate(self.gate, pod)} && ({tests})"

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Add the gate and the hint if the pod asks to be held."""
        if self.must_start(pod, context):
            return skip()
        try:
            request = self._read(pod, context.now_ms)
        except InvalidValueError as exc:
            if self._may_ignore(pod, exc):
                return success(warnings=[f"holdfast: not held: {exc}"])
            return reject(str(exc))
        if not request.holds(context.now_ms):
            return success(warnings=_past(request, context.now_ms))
        # The API server rejects a pod that has both a gate and a node.
        if pod.spec.node_name:
            return success(warnings=[BOUND])
        return success(*self._hold(request))

    def validate(self, pod: Pod, context: Context) -> Result:
        """Reject invalid values, and a new pod whose gate was removed after `mutate`.

        A new pod already has its creationTimestamp. That is the API server's time, so a wrong clock
        of the admission server does not let pods through.
        """
        if not self.concerns(pod) or self.must_start(pod, context):
            return skip()
        workload = context.review.workload
        is_creation = is_new(context)
        now_ms = (is_creation and pod.created_ms) or context.now_ms
        try:
            since_ms = None if workload else pod.created_ms or now_ms
            request = self._read(pod, since_ms, None if is_creation else context.review.old)
        except InvalidValueError as exc:
            ignored = self._ignores if workload else self._may_ignore(pod, exc)
            return skip() if ignored else reject(str(exc))
        problem = self._missing_gate(pod, request, context.now_ms, now_ms) if is_creation else ""
        if problem:
            return reject(problem)
        if workload is None:
            return success()
        if not request.holds(now_ms):
            return success(warnings=_past(request, now_ms))
        warnings = hold_warnings.find(pod, workload, request.longest_wait_ms(now_ms))
        if request.longest_wait_ms(now_ms) > self._max_ms:
            too_long = self._too_long(pod, request, now_ms)
            warnings.append(f"holdfast: pods of this template are rejected for now: {too_long}")
        return success(warnings=warnings)

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Allow the pod once it is due."""
        created_ms, reason, open_ended = pod.created_ms, "", False
        if pod.annotations.get(DELAY_FROM) == OWNER:
            origin = self._origins.find(pod)
            if origin is None:
                return Wait(None, "looks up when its revision was created")
            reason, open_ended = origin.remark, origin.is_latest
            if origin.created_ms is not None:  # maxDelay counts from the pod's creation
                created_ms = min(created_ms, origin.created_ms)
        due = decide_due(
            pod.annotations,
            created_ms=created_ms,
            jitter_key=pod.jitter_key,
            delay_keys=self.args.annotations,
        )
        if now_ms >= due.at_ms:
            return Allow(due.problem)
        return Wait(due.at_ms, reason, due.problem, open_ended)

    def _may_ignore(self, pod: Pod, problem: InvalidValueError) -> bool:
        """Return whether to admit a pod with an invalid value as if it did not ask to be held.

        A pod that exceeds maxDelay and already has the gate would be held for too long.
        """
        return self._ignores and not (isinstance(problem, _TooLongError) and self.gate in pod.gates)

    def _hold(self, request: HoldRequest) -> list[Edit]:
        hint = SetAnnotation(HELD_ANNOTATION, format_hint(request))
        edits: list[Edit] = [AddGate(self.gate), hint]
        if self.args.scheduler_name:
            edits.append(SetSchedulerName(self.args.scheduler_name))
        return edits

    def _missing_gate(self, pod: Pod, request: HoldRequest, server_ms: int, stored_ms: int) -> str:
        """Return why a pod that must be held has no gate; empty if it does not need one.

        A bound pod does not need it. `server_ms` is this server's time, `stored_ms` the API
        server's.
        """
        held = self.gate in pod.gates or pod.spec.node_name
        if held or not request.holds(stored_ms, tolerance_ms=0):
            return ""
        if not request.holds(server_ms):
            return _wrong_clock(self.gate, server_ms, stored_ms)
        if self._ignores:
            return ""
        return missing_gate(self.gate)

    def _read(self, pod: Pod, since_ms: int | None, old_pod: Pod | None = None) -> HoldRequest:
        """Return the hold that a pod asks for. Raises InvalidValueError if it exceeds maxDelay.

        Also raises it for an invalid value. `since_ms` is the pod's creation time; None for a
        template, whose pods are created later. `old_pod` is the pod before an update, which may
        keep or shorten a wait that is too long: otherwise, nobody could correct the pod.
        """
        origin = pod.annotations.get(DELAY_FROM, POD)
        if origin not in {POD, OWNER}:
            raise InvalidValueError(
                f"annotation {DELAY_FROM}: invalid value {messages.quote(origin)}: use {POD} or "
                f"{OWNER}"
            )
        request = read_hold_request(pod.annotations, self.args.annotations)
        if self._longest_ms(request, since_ms) <= self._max_ms:
            return request
        if old_pod is not None and self._is_no_longer(request, old_pod, since_ms):
            return request
        raise _TooLongError(self._too_long(pod, request, since_ms))

    def _is_no_longer(self, request: HoldRequest, old_pod: Pod, since_ms: int | None) -> bool:
        try:
            old_request = read_hold_request(old_pod.annotations, self.args.annotations)
        except InvalidValueError:
            return False
        return self._longest_ms(request, since_ms) <= self._longest_ms(old_request, since_ms)

    @staticmethod
    def _longest_ms(request: HoldRequest, since_ms: int | None) -> int:
        return request.longest_ms if since_ms is None else request.longest_wait_ms(since_ms)

    def _too_long(self, pod: Pod, request: HoldRequest, since_ms: int | None) -> str:
        """Return a message about the annotations that exceed maxDelay."""
        limit = f"maxDelay={self.args.max_delay}"
        cure = "shorten the hold"
        excluded = {NOT_BEFORE, DELAY_FROM}
        keys = [key for key in self.keys if key in pod.annotations and key not in excluded]
        not_before_ms = request.not_before_ms
        if (
            request.longest_ms <= self._max_ms
            and not_before_ms is not None
            and since_ms is not None
        ):
            cure = "use an earlier time"
            if not_before_ms - since_ms > self._max_ms:
                return (
                    f"annotation {NOT_BEFORE}: {messages.quote(pod.annotations[NOT_BEFORE])} is "
                    f"more than {limit} after the pod's creation: {cure}, or {_RAISE}"
                )
            keys = [NOT_BEFORE, JITTER]
        quoted = " and ".join(f"{key}={messages.quote(pod.annotations[key])}" for key in keys)
        exceeds = "together exceed" if len(keys) > 1 else "exceeds"
        return f"{quoted} {exceeds} {limit}: {cure}, or {_RAISE}"


def _past(request: HoldRequest, now_ms: int) -> list[str]:
    """Return a warning if not-before is in the past, so pods are not held."""
    if request.not_before_ms is None or request.not_before_ms > now_ms:
        return []
    entry = f"{NOT_BEFORE}: {durations.canonical_instant(request.not_before_ms)}"
    return [f"holdfast: not held: annotation {entry} is in the past: use a later time or none"]


def _wrong_clock(gate: str, server_ms: int, stored_ms: int) -> str:
    server, stored = durations.canonical_instant(server_ms), durations.canonical_instant(stored_ms)
    return (
        f"scheduling gate {gate} is missing: the admission server's clock says {server}, long "
        f"after the not-before; the API server created the pod at {stored}, before it: correct the "
        "clock of the server's node"
    )


def _only(key: str, keys: Iterable[str], annotations: str) -> str:
    """Return a CEL expression that is true if the pod has only this one of the annotations."""
    exclusions = "".join(
        f" && !({cel.string(other_key)} in {annotations})" for other_key in keys if other_key != key
    )
    return f"{cel.string(key)} in {annotations}{exclusions}"


def _check_keys(keys: tuple[str, ...]) -> None:
    reserved = {NOT_BEFORE, JITTER, DELAY_FROM, HELD_ANNOTATION, PROFILE_ANNOTATION}
    reserved |= {"not-before", "jitter"}
    if not keys:
        raise ConfigurationError("annotations: must not be empty: name at least one annotation")
    for key in keys:
        if key in reserved:
            raise ConfigurationError(f"annotations: {key!r} is reserved: use another key")
        if not syntax.is_qualified_name(key):
            raise ConfigurationError(
                f"annotations: {messages.quote(key)} is not a valid annotation key: use one like "
                "example.com/delay"
            )
    if len(set(keys)) != len(keys):
        raise ConfigurationError("annotations: duplicate key: name each key once")
