"""delay: hold a pod back for a while.

The delay scheduler plugin's annotation `delay: "15"`, done with a scheduling gate: the pod is not
scheduled while now < creationTimestamp + delay, and costs the scheduler nothing until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from webhook import conditions, holds, shapes, values, vms
from webhook.errors import ConfigurationError, ValueRefusedError
from webhook.framework import Args, Context, Handle, Result, refuse, skip, success
from webhook.objects import Pod
from webhook.review import AddGate, Edit, RemoveAnnotation, SetAnnotation, SetSchedulerName
from webhook.workloads import Workload

_PLAIN, _PLAIN_MOST = "^[1-9][0-9]{0,8}$", 999_999_999
"""Whole seconds as most people write them, and the most of them: in CEL, nothing overflows."""


class DelayArgs(Args, frozen=True):
    """Arguments of the delay plugin."""

    annotations: Annotated[tuple[shapes.Key, ...], shapes.SOME_ONCE] = holds.DELAY_KEYS
    """Annotations that carry a delay."""
    max_delay: shapes.Delay = "168h"
    """The longest that delay and jitter together, or a not-before, may hold a pod."""
    on_invalid: Literal["reject", "ignore"] = "reject"
    """What becomes of a pod whose value cannot be followed: refused, or admitted unheld. With
    `ignore` nothing is refused for a delay's sake, nor a pod whose gate another webhook took
    off; only what would hold a pod that has the gate for longer than `maxDelay` is."""
    scheduler_name: str = ""
    """A hint for the scheduler: the profile that held pods are given to; empty changes nothing."""


class _TooLongError(ValueRefusedError):
    """What a pod asks for is well written, and longer than it may be held."""


class Delay:
    """Adds the gate at creation, and decides when it may go."""

    name: ClassVar[str] = "delay"
    args_type: ClassVar[type[Args]] = DelayArgs
    may_block: ClassVar[bool] = False
    gate: ClassVar[str] = holds.GATE

    def __init__(self, args: DelayArgs, _handle: Handle | None = None) -> None:
        self._args = args
        self._ignores = args.on_invalid == "ignore"
        self.keys = (*args.annotations, holds.NOT_BEFORE, holds.JITTER)
        try:
            self._max_ms = values.parse_delay(args.max_delay)
        except ValueRefusedError as exc:
            raise ConfigurationError(f"maxDelay: {exc}") from None
        _check_keys(args.annotations)

    def match(self, pod: str) -> str:
        """Match pods that carry one of the annotations."""
        return conditions.has_annotation(self.keys, pod)

    def settled(self, pod: str) -> str:
        """Tell those that have the gate, and ask for nothing but some whole seconds: most of all.

        What is written in another way takes more than CEL to judge.
        """
        most = min(self._max_ms // 1_000, _PLAIN_MOST)
        annotations = f"{pod}.metadata.annotations"
        plain = [
            f"{_only(key, self.keys, annotations)}"
            f" && {annotations}[{conditions.string(key)}].matches('{_PLAIN}')"
            f" && int({annotations}[{conditions.string(key)}]) <= {most}"
            for key in self._args.annotations
        ]
        tests = " || ".join(f"({test})" for test in plain)
        return f"{conditions.has_gate(self.gate, pod)} && ({tests})"

    def concerns(self, pod: Pod) -> bool:
        """Match pods that carry one of the annotations."""
        annotations = pod.annotations
        return any(key in annotations for key in self.keys)

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Add the gate and the hint where the pod asks to be held."""
        unheld = RemoveAnnotation(holds.HELD)  # a copied or forged hint holds nothing
        if _migrates(pod):
            return success(unheld)
        try:
            ask = self._checked_ask(pod, created=True, now_ms=context.now_ms)
        except ValueRefusedError as exc:
            if self._may_ignore(pod, exc):
                return success(unheld, warnings=[f"holdfast: not held: {exc}"])
            return refuse(str(exc))
        if not ask.holds(context.now_ms):
            return success(unheld)
        if pod.spec.node_name:
            return success(unheld, warnings=["holdfast: not held: spec.nodeName is set already"])
        return success(*self._hold(ask))

    def validate(self, pod: Pod, context: Context) -> Result:
        """Refuse values that cannot be followed, and a pod that lost its gate on the way here.

        A new pod has the time of its creation by now, which is the API server's: by that it is
        judged whether it has to be held, so that no wrong clock of ours lets one through.
        """
        if not self.concerns(pod) or _migrates(pod):
            return skip()  # what migrates is never held, whatever its VM's template says
        workload = context.review.workload
        created = context.review.request.operation == "CREATE" and workload is None
        now_ms = (created and pod.created_ms) or context.now_ms
        try:
            ask = self._checked_ask(pod, created=created, now_ms=now_ms)
        except ValueRefusedError as exc:
            old = context.review.old
            ignored = self._ignores if workload else self._may_ignore(pod, exc, old)
            return skip() if ignored else refuse(str(exc))
        why = self._why_let_through(pod, ask, context.now_ms, now_ms) if created else ""
        if why:
            return refuse(why)
        if workload is None or not ask.holds(now_ms):
            return success()
        return success(warnings=_sufferings(pod, workload, ask.longest_wait_ms(now_ms)))

    def due(self, pod: Pod) -> holds.Due:
        """Decide when the gate may go."""
        return holds.decide(
            pod.annotations,
            created_ms=pod.created_ms,
            uid=pod.metadata.uid,
            delay_keys=self._args.annotations,
        )

    def _may_ignore(self, pod: Pod, problem: ValueRefusedError, old: Pod | None = None) -> bool:
        """Tell whether a pod may be let in as if it asked for nothing.

        One that has the gate already would be held for all the time that is too long. It may be
        updated, as it could not be mended otherwise, where it asks for no more than before.
        """
        if not self._ignores:
            return False
        if not isinstance(problem, _TooLongError) or self.gate not in pod.gates:
            return True
        return old is not None and self._longest_ms(pod) <= self._longest_ms(old)

    def _longest_ms(self, pod: Pod) -> int:
        """Give the longest that delay and jitter hold a pod; 0 where they cannot be read."""
        try:
            return holds.read_ask(pod.annotations, self._args.annotations).longest_ms
        except ValueRefusedError:
            return 0

    def _hold(self, ask: holds.Ask) -> list[Edit]:
        edits: list[Edit] = [AddGate(self.gate), SetAnnotation(holds.HELD, holds.hint(ask))]
        if self._args.scheduler_name:
            edits.append(SetSchedulerName(self._args.scheduler_name))
        return edits

    def _why_let_through(self, pod: Pod, ask: holds.Ask, ours_ms: int, stored_ms: int) -> str:
        """Say why a pod that is surely due later has no gate; empty where all is well.

        One that is bound needs none. `ours_ms` is the time by our clock, `stored_ms` by the API
        server's.
        """
        held = self.gate in pod.gates or pod.spec.node_name
        if held or not ask.holds(stored_ms, tolerance_ms=0):
            return ""
        if not ask.holds(ours_ms):
            return _wrong_clock(self.gate, ours_ms, stored_ms)
        if self._ignores:
            return ""
        return (
            f"gate {self.gate} is gone although the pod asks to be held; another mutating "
            "webhook removed it or added the annotation after Holdfast had seen the pod"
        )

    def _checked_ask(self, pod: Pod, *, created: bool, now_ms: int) -> holds.Ask:
        ask = holds.read_ask(pod.annotations, self._args.annotations)
        if ask.longest_ms > self._max_ms:
            raise _TooLongError(
                f"annotations ask for {_asked(pod, self.keys)}, together longer than "
                f"maxDelay={self._args.max_delay}; shorten them, or ask an admin to raise maxDelay"
            )
        if created and ask.not_before_ms is not None and ask.not_before_ms - now_ms > self._max_ms:
            raise _TooLongError(
                f"annotation {holds.NOT_BEFORE}: {values.shown(pod.annotations[holds.NOT_BEFORE])} "
                f"is further away than maxDelay={self._args.max_delay}; "
                "choose an earlier time, or ask an admin to raise maxDelay"
            )
        return ask


def _wrong_clock(gate: str, ours_ms: int, stored_ms: int) -> str:
    ours, stored = values.canonical_instant(ours_ms), values.canonical_instant(stored_ms)
    return (
        f"gate {gate} is missing: by this admission server's clock, {ours}, the not-before is long "
        f"past; the API server created the pod at {stored}, before it; set the clock of the "
        "server's node"
    )


def _only(key: str, keys: Iterable[str], annotations: str) -> str:
    """Make an expression: of these annotations, the pod has this one alone."""
    others = "".join(
        f" && !({conditions.string(one)} in {annotations})" for one in keys if one != key
    )
    return f"{conditions.string(key)} in {annotations}{others}"


def _migrates(pod: Pod) -> bool:
    """Tell whether a live migration made the pod: it has minutes to start, and is never delayed.

    The label alone does not count: a Deployment could have it too.
    """
    migrates = vms.MIGRATION_JOB in pod.labels
    return migrates and vms.controller_of(pod.metadata, vms.VMI) is not None


def _sufferings(pod: Pod, workload: Workload, wait_ms: int) -> list[str]:
    """Warn of what a workload suffers while its pods are held."""
    wait = values.canonical_delay(wait_ms)
    warnings = []
    if pod.spec.node_name:
        warnings.append(
            f"holdfast: {workload.path}.spec.nodeName is set, so the pods cannot be held"
        )
    if workload.deadline is not None and workload.deadline[1] * 1_000 <= wait_ms:
        field, seconds = workload.deadline
        warnings.append(
            f"holdfast: {field}={seconds} runs on while pods are held for {wait}; "
            "make it longer than that"
        )
    if workload.ordered > 1:
        warnings.append(
            f"holdfast: {workload.ordered} pods start one after the other, each held for {wait}; "
            "spec.podManagementPolicy: Parallel holds them together"
        )
    return warnings


def _asked(pod: Pod, keys: tuple[str, ...]) -> str:
    found = [key for key in keys if key in pod.annotations and key != holds.NOT_BEFORE]
    return " and ".join(f"{key}={values.shown(pod.annotations[key])}" for key in found)


def _check_keys(keys: tuple[str, ...]) -> None:
    reserved = {holds.NOT_BEFORE, holds.JITTER, holds.HELD, holds.PROFILE, "not-before", "jitter"}
    if not keys:
        raise ConfigurationError("annotations: is empty; name at least one annotation")
    for key in keys:
        if key in reserved:
            raise ConfigurationError(f"annotations: {key!r} has another meaning; choose another")
        if not values.is_qualified_name(key):
            raise ConfigurationError(
                f"annotations: {values.shown(key)} is no annotation key; write one such as "
                "example.com/delay"
            )
    if len(set(keys)) != len(keys):
        raise ConfigurationError("annotations: a key is named twice; name it once")
