"""Why a pod waits, in words: what it asks, who decided, what holds it, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from webhook import held_pods, holds, tables, values
from webhook.errors import ValueRefusedError
from webhook.held_pods import PATIENCE_MS, HeldPod
from webhook.inspection import NodeState, PodWithStatus
from webhook.pipeline import Pipeline
from webhook.profiles import scheduler_of
from webhook.trace import Trace

_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out. `trace` is what the plugins say when they are asked again."""

    pod: PodWithStatus
    now_ms: int
    trace: Trace
    nodes: Sequence[NodeState] = ()
    vm: Sequence[str] = ()
    """What was found about the VM that the pod runs, in words; empty for other pods."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and lines under it."""

    title: str
    lines: Sequence[str]


def explain(facts: Facts, pipeline: Pipeline) -> list[Section]:
    """Explain a pod: what matters most comes first."""
    pod = facts.pod
    held = held_pods.described(pod, pipeline) if held_pods.own_gates(pod) else None
    sections = [
        Section(f"Pod {pod.metadata.namespace}/{pod.metadata.name}", [_state(facts, held)]),
        Section("What it asks", list(_asks(facts, held))),
        Section("Who decided", list(_decided(facts))),
        Section("Gates", list(_gates(facts, held, pipeline))),
        Section("VM", facts.vm),
        Section("Nodes", list(_nodes(facts))),
        Section("What to do", list(_cures(facts, held))),
    ]
    return [section for section in sections if section.lines]


def _state(facts: Facts, held: HeldPod | None) -> str:
    if held is None:
        return _unheld(facts.pod)
    if held.due_ms is None:
        return f"is held until a plugin lets it go: {', '.join(held_pods.own_gates(facts.pod))}"
    until = values.canonical_instant(held.due_ms)
    if held.is_overdue(facts.now_ms):
        late = tables.duration(facts.now_ms - held.due_ms)
        return f"is held still, though its time came at {until}, {late} ago"
    return f"is held until {until}: {tables.duration(held.due_ms - facts.now_ms)} more"


def _unheld(pod: PodWithStatus) -> str:
    if pod.spec.node_name:
        return f"is not held: it is on {pod.spec.node_name}, {pod.status.phase or 'phase unknown'}"
    if pod.gates:
        return f"is not held by Holdfast; others' gates hold it: {', '.join(pod.gates)}"
    if pod.status.phase not in {"", "Pending"}:
        return f"is not held: {pod.status.phase}"
    return "is not held: the scheduler has not found a node for it yet"


def _asks(facts: Facts, held: HeldPod | None) -> Iterator[str]:
    pod = facts.pod
    created = values.canonical_instant(pod.created_ms)
    yield f"created at {created}, {tables.duration(facts.now_ms - pod.created_ms)} ago"
    keys = [*held_pods.delay_keys(pod), holds.NOT_BEFORE, holds.JITTER, holds.HELD]
    found = [key for key in keys if key in pod.annotations]
    for key in found:
        text = pod.annotations[key]
        yield f"{key}: {values.shown(text, _SHOWN_CHARACTERS)}{_meaning(key, text, facts)}"
    if not found:
        yield "no annotation asks for a delay or a time"
    if held is not None and held.remark:
        yield held.remark


def _meaning(key: str, text: str, facts: Facts) -> str:
    try:
        if key == holds.HELD:
            return ": what Holdfast read when the pod was created"
        if key == holds.NOT_BEFORE:
            return f": not before {values.canonical_instant(values.parse_instant(text))}"
        length = values.parse_delay(text)
        if key == holds.JITTER:
            share = holds.jitter_share_ms(facts.pod.metadata.uid, length)
            return (
                f": a share of {values.canonical_delay(length)}; "
                f"this pod's is {values.canonical_delay(share)}"
            )
        return f": {values.canonical_delay(length)} from its creation"
    except ValueRefusedError as exc:
        return f": cannot be followed: {exc}"


def _decided(facts: Facts) -> Iterator[str]:
    recorded = facts.pod.annotations.get(holds.PROFILE)
    profile = values.shown(facts.trace.profile)
    if not facts.trace.profile:
        yield f"no profile serves schedulerName {values.shown(scheduler_of(facts.pod))}"
        return
    how = "as recorded at its creation" if recorded else "by its schedulerName"
    yield f"profile {profile}, {how}; were it created now, its plugins would say:"
    for step in facts.trace.steps:
        yield f"{step.plugin}: {step.told}"


def _gates(facts: Facts, held: HeldPod | None, pipeline: Pipeline) -> Iterator[str]:
    unknown = held_pods.unknown_gates(facts.pod, pipeline)
    for gate in facts.pod.gates:
        if gate in unknown:
            name = gate.removeprefix(holds.OWN_PREFIX)
            yield f"{gate}: Holdfast's, by its plugin {name!r}, which is not installed here"
        elif gate.startswith(holds.OWN_PREFIX):
            yield f"{gate}: Holdfast's, for {held.held_by if held else 'nothing'}"
        else:
            yield f"{gate}: somebody else's; Holdfast never takes it off"


def _nodes(facts: Facts) -> Iterator[str]:
    for state in facts.nodes:
        yield f"it has to run on {state.name}: {state.problem or 'which takes pods'}"
    condition = facts.pod.condition("PodScheduled")
    if condition and condition.status == "False" and condition.reason != "SchedulingGated":
        yield f"the scheduler says: {condition.reason}: {condition.message}"


def _cures(facts: Facts, held: HeldPod | None) -> Iterator[str]:
    pod = facts.pod
    name = f"{pod.metadata.name} -n {pod.metadata.namespace}"
    if held is not None:
        if held.due_ms is None:
            yield "ask whoever runs that plugin"
        elif held.due_ms + PATIENCE_MS < facts.now_ms:
            yield "no controller releases it: holdfast doctor says why"
        yield f"wait, or release it now: holdfast release {name}"
    if not pod.spec.node_name and pod.status.phase in {"", "Pending"}:
        yield from _to_be_scheduled(facts, "it waits on after that: " if held else "")
    if held is None and not pod.gates:
        yield f"nothing of Holdfast's; its Events say more: kubectl describe pod {name}"


def _to_be_scheduled(facts: Facts, then: str) -> Iterator[str]:
    """Say what keeps it from a node beside Holdfast's gates."""
    pod = facts.pod
    others = [gate for gate in pod.gates if not gate.startswith(holds.OWN_PREFIX)]
    if others:
        yield f"{then}whoever added {_listed(others)} has to take it off"
    if facts.nodes and all(state.problem for state in facts.nodes):
        yield f"{then}make {_listed(state.name for state in facts.nodes)} take pods again"
    condition = pod.condition("PodScheduled")
    if condition and condition.reason == "Unschedulable":
        yield f"{then}mend what the scheduler says: the nodes, or what the pod requires of them"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)
