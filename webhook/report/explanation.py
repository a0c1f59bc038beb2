"""Explain why a pod is held: annotations, decision, gates, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Code, Plugin
from holdfast.webhook.framework.profiles import Profile, scheduler_of
from holdfast.webhook.model import approvals, durations, kubevirt, messages
from holdfast.webhook.model.annotations import (
    DELAY_GATE,
    HELD_ANNOTATION,
    HELD_LABEL,
    JITTER,
    NEVER_MS,
    NOT_BEFORE,
    OWN_PREFIX,
    PROFILE_ANNOTATION,
    jitter_share_ms,
    released_ms,
    was_released,
)
from holdfast.webhook.model.objects import Pod, SchedulingGate, instant
from holdfast.webhook.plugins.delay_origin import DELAY_FROM, OWNER
from holdfast.webhook.plugins.window import Window
from holdfast.webhook.report import held_pods, next_steps, table
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.report.next_steps import PodFacts
from holdfast.webhook.report.pod_status import PodWithStatus

_SHOWN_CHARACTERS = 120
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        HELD_ANNOTATION: "recorded by Holdfast when the pod was created",
        DELAY_FROM: "the creation that the delay counts from",
    }
)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines."""

    title: str
    lines: Sequence[str]


def explain(facts: PodFacts, decider: ReleaseDecider) -> list[Section]:
    """Return the sections that explain a pod, most important first."""
    pod = facts.pod
    held = None
    if held_pods.own_gates(pod):
        held = held_pods.described(pod, decider, facts.freeze, facts.place)
    sections = [
        Section(f"Pod {pod.metadata.namespace}/{pod.metadata.name}", [_state(facts, held)]),
        Section("Annotations", list(_annotations(facts, held, decider))),
        Section("Decision", list(_decision(facts))),
        Section("Gates", list(_gates(facts, held, decider))),
        Section("VM", facts.vm),
        Section("Nodes", list(_nodes(facts, decider))),
        Section("What to do", list(next_steps.find(facts, held, decider))),
    ]
    return [section for section in sections if section.lines]


def _state(facts: PodFacts, held: HeldPodSummary | None) -> str:
    if held is None:
        return _unheld(facts.pod)
    if held.due_ms is None and (remark := held.remark_at(facts.now_ms)):
        return f"is held: {remark}"
    if held.due_ms is None:
        return f"is held until a plugin releases it: {', '.join(held_pods.own_gates(facts.pod))}"
    until = durations.canonical_instant(held.due_ms)
    if held.is_overdue(facts.now_ms):
        lateness = table.duration(facts.now_ms - held.due_ms)
        return f"is still held, {lateness} after its due time {until}"
    return f"is held until {until} ({table.duration(held.due_ms - facts.now_ms)} left)"


def _unheld(pod: PodWithStatus) -> str:
    finalizers = [finalizer for finalizer in pod.finalizers if finalizer.startswith(OWN_PREFIX)]
    if pod.metadata.deletion_timestamp is not None and finalizers:
        return f"is being deleted, and kept by Holdfast's finalizer {' and '.join(finalizers)}"
    if pod.spec.node_name:
        state = f"it is on {pod.spec.node_name}, {pod.status.phase or 'phase unknown'}"
        return f"is not held: {state}{_release(pod)}"
    if pod.gates:
        return f"is not held by Holdfast, but by other scheduling gates: {', '.join(pod.gates)}"
    if pod.status.phase not in {"", "Pending"}:
        return f"is not held: {pod.status.phase}{_release(pod)}"
    return f"is not held: the scheduler has not found a node for it yet{_release(pod)}"


def _release(pod: PodWithStatus) -> str:
    """Return when Holdfast released a pod, and who approved it; empty if it did not."""
    at_ms = released_ms(pod.annotations, created_ms=pod.created_ms)
    if at_ms is None:
        return ""
    approver = approvals.approver(pod.annotations)
    approval = f", approved by {approver}" if approver else ""
    return f"; Holdfast released it at {durations.canonical_instant(at_ms)}{approval}"


def _annotations(
    facts: PodFacts, held: HeldPodSummary | None, decider: ReleaseDecider
) -> Iterator[str]:
    pod, profile = facts.pod, decider.profiles.select(facts.pod)
    created = durations.canonical_instant(pod.created_ms)
    yield f"created at {created}, {table.duration(facts.now_ms - pod.created_ms)} ago"
    plugin_keys = [key for plugin in (profile.holding if profile else ()) for key in plugin.keys]
    keys = [
        *held_pods.delay_keys(pod),
        DELAY_FROM,
        NOT_BEFORE,
        JITTER,
        *plugin_keys,
        HELD_ANNOTATION,
    ]
    present = [key for key in dict.fromkeys(keys) if key in pod.annotations]
    for key in present:
        text = pod.annotations[key]
        meaning = _meaning(key, facts, profile)
        yield f"{key}: {messages.quote(text, _SHOWN_CHARACTERS)}{meaning and f': {meaning}'}"
    yield from (text.removeprefix("holdfast: ") for text in facts.trace.stray_keys)
    if not present:
        yield "no annotation asks for a hold"
    elif held is None and was_released(pod.annotations, created_ms=pod.created_ms):
        yield "none of them counts any longer: the pod has been released"
    if held is not None and held.remark:
        yield held.remark


def _meaning(key: str, facts: PodFacts, profile: Profile | None) -> str:
    pod = facts.pod
    by_plugin = (
        next((plugin for plugin in profile.holding if key in plugin.keys), None)
        if profile
        else None
    )
    try:
        if key in _MEANINGS:
            return _MEANINGS[key]
        if key == approvals.KEY:
            approver = approvals.approver(pod.annotations)
            decision = approvals.denial(pod.annotations) or (approver and f"approved by {approver}")
            return decision or _effect(pod, by_plugin)
        if by_plugin is None or by_plugin.gate == DELAY_GATE:
            return _meaning_of_time(key, pod)
        if isinstance(by_plugin, Window) and by_plugin.gate in pod.gates:
            return by_plugin.opening(pod, facts.now_ms)
        return _effect(pod, by_plugin)
    except InvalidValueError as exc:
        return f"invalid: {exc}"


def _effect(pod: Pod, plugin: Plugin | None) -> str:
    """Return why a key that was added after the pod's creation has no effect; else empty."""
    if plugin is None or plugin.gate in pod.gates:
        return ""
    was_free = bool(held_pods.own_gates(pod)) or HELD_LABEL not in pod.labels
    if was_free and not was_released(pod.annotations, created_ms=pod.created_ms):
        return f"no effect: gate {plugin.gate}, which is added at creation, is missing"
    return ""


def _meaning_of_time(key: str, pod: Pod) -> str:
    text = pod.annotations[key]
    if key == NOT_BEFORE:
        return f"not before {durations.canonical_instant(durations.parse_instant(text))}"
    length = durations.parse_delay(text)
    if key == JITTER:
        share = jitter_share_ms(pod.jitter_key, length)
        return (
            f"up to {durations.canonical_delay(length)}; "
            f"{durations.canonical_delay(share)} for this pod"
        )
    by_owner = pod.annotations.get(DELAY_FROM) == OWNER
    origin = "the creation of its revision" if by_owner else "creation"
    return f"{durations.canonical_delay(length)} from {origin}"


def _decision(facts: PodFacts) -> Iterator[str]:
    if facts.unserved:
        yield f"pods like this one are not sent to Holdfast: {facts.unserved}"
        return
    recorded = facts.pod.annotations.get(PROFILE_ANNOTATION)
    profile = messages.quote(facts.trace.profile)
    if not facts.trace.profile:
        yield f"no profile serves schedulerName {messages.quote(scheduler_of(facts.pod))}"
        return
    origin = "recorded when the pod was created" if recorded else "selected by schedulerName"
    yield f"profile {profile} ({origin}); if the pod were created now:"
    steps = [step for step in facts.trace.steps if step.code is not Code.SKIP]
    yield from (f"{step.plugin}: {step.summary}" for step in steps)
    if not steps:
        yield "no plugin is concerned"


def _gates(facts: PodFacts, held: HeldPodSummary | None, decider: ReleaseDecider) -> Iterator[str]:
    unknown_gates = frozenset(held_pods.unknown_gates(facts.pod, decider))
    for gate in facts.pod.gates:
        if gate in unknown_gates:
            name = gate.removeprefix(OWN_PREFIX)
            yield f"{gate}: Holdfast's, from plugin {name!r}, which is not installed here"
        elif gate.startswith(OWN_PREFIX):
            yield f"{gate}: Holdfast's, for {held_pods.hold_of(gate, facts.pod) or 'nothing'}"
        else:
            yield f"{gate}: another component's; Holdfast never removes it"
    if held is None:
        yield from _removed_gates(facts, decider)


def _removed_gates(facts: PodFacts, decider: ReleaseDecider) -> Iterator[str]:
    """Yield the gates that someone else removed from a pod before they were due."""
    pod, profile = facts.pod, decider.profiles.select(facts.pod)
    if was_released(pod.annotations, created_ms=pod.created_ms):
        return
    if profile is None or kubevirt.controller_of(pod.metadata, kubevirt.VMI):
        return  # KubeVirt's pods may never have been held
    for plugin in profile.holding:
        # Both are written with the gate. The label does not name a plugin, so it only proves that
        # the pod was held. The hint proves that the delay held it.
        is_delay = plugin.gate == DELAY_GATE
        was_held = HELD_ANNOTATION in pod.annotations if is_delay else HELD_LABEL in pod.labels
        if not was_held or not plugin.concerns(pod):
            continue
        spec = msgspec.structs.replace(pod.spec, scheduling_gates=[SchedulingGate(plugin.gate)])
        due_ms = decider.due(msgspec.structs.replace(pod, spec=spec)).at_ms
        if _was_free_before(due_ms, facts):
            due = f" the due time {durations.canonical_instant(due_ms)}"
            due = due if due_ms < NEVER_MS else " it was due"
            yield f"{plugin.gate}: removed by someone else before{due}; the guard would prevent it"


def _was_free_before(due_ms: int, facts: PodFacts) -> bool:
    condition = facts.pod.condition("PodScheduled")
    if condition and condition.status == "True":
        since = instant(condition.last_transition_time)
        if since is not None:
            return since.timestamp() * 1_000 < due_ms
    return facts.now_ms < due_ms


def _nodes(facts: PodFacts, decider: ReleaseDecider) -> Iterator[str]:
    verb = "is bound to" if facts.pod.spec.node_name else "must run on"
    for state in facts.nodes:
        yield f"{verb} {state.name}: {state.problem or 'it accepts pods'}"
        yield from state.remarks
    if clash := next_steps.contradiction(facts, decider):
        yield clash
    condition = facts.pod.condition("PodScheduled")
    if condition and condition.status == "False" and condition.reason != "SchedulingGated":
        yield f"scheduler: {condition.reason}: {condition.message}"
