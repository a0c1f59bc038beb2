"""Held pods as people want to see them: by what, since when, for how long still. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from webhook import holds, tables, values
from webhook.errors import ValueRefusedError
from webhook.objects import Pod
from webhook.pipeline import Pipeline

HEAD = ("NAME", "HELD BY", "SINCE", "LEFT", "OWNER")
HEAD_WIDE = (*HEAD, "DUE", "GATES", "PROFILE", "REMARK")
PATIENCE_MS = 5_000
"""How late a release may be before somebody should look."""
_SHOWN_CHARACTERS = 120
"""Of what a pod says of itself: it is the creator's text, and goes to a terminal."""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """One held pod. Times are milliseconds since 1970, by the API server's clock.

    `due_ms` is None where nothing but a plugin knows when it will go.
    """

    namespace: str
    name: str
    held_by: str
    gates: tuple[str, ...]
    since_ms: int
    due_ms: int | None
    owner: str = ""
    profile: str = ""
    remark: str = ""

    def is_overdue(self, now_ms: int) -> bool:
        """Tell whether its time has come."""
        return self.due_ms is not None and self.due_ms <= now_ms


def held_pods(pods: Iterable[Pod], pipeline: Pipeline) -> list[HeldPod]:
    """Pick the pods that Holdfast holds: what is due first comes first."""
    found = [described(pod, pipeline) for pod in pods if own_gates(pod)]
    never = holds.NEVER_MS
    return sorted(
        found, key=lambda one: (one.due_ms or never, one.since_ms, one.namespace, one.name)
    )


def described(pod: Pod, pipeline: Pipeline) -> HeldPod:
    """Say of a pod that carries a gate of ours what holds it, and until when."""
    due = pipeline.due(pod)
    unknown = unknown_gates(pod, pipeline)
    return HeldPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        held_by=held_by(pod),
        gates=tuple(pod.gates),
        since_ms=pod.created_ms,
        due_ms=None if unknown or due.at_ms >= holds.NEVER_MS else due.at_ms,
        owner=owner(pod),
        profile=pod.annotations.get(holds.PROFILE, "")[:_SHOWN_CHARACTERS],
        remark="" if unknown else due.problem,
    )


def own_gates(pod: Pod) -> list[str]:
    """Name the gates by which Holdfast holds a pod."""
    return [gate for gate in pod.gates if gate.startswith(holds.OWN_PREFIX)]


def unknown_gates(pod: Pod, pipeline: Pipeline) -> list[str]:
    """Name those of its gates whose plugin is not here to say when the pod is due."""
    profile = pipeline.profile_for(pod)
    plugins = profile.plugins if profile else ()
    known = {getattr(plugin, "gate", "") for plugin in plugins}  # isinstance would cost the most
    return [gate for gate in own_gates(pod) if gate not in {*known, holds.GATE}]


def held_by(pod: Pod) -> str:
    """Say what holds a pod: what it asks now, and the plugins of other gates."""
    found = [asked(pod)] if holds.GATE in pod.gates else []
    others = [gate for gate in own_gates(pod) if gate != holds.GATE]
    found += [gate.removeprefix(holds.OWN_PREFIX) for gate in others]
    return ", ".join(part for part in found if part) or "nothing"


def asked(pod: Pod) -> str:
    """Write what a pod asks now in canonical form; what its hint says where that is unreadable."""
    hint = pod.annotations.get(holds.HELD, "")
    try:
        return holds.hint(holds.read_ask(pod.annotations, delay_keys(pod)))
    except ValueRefusedError:
        return values.shown(hint, _SHOWN_CHARACTERS) if hint else "what cannot be read"


def delay_keys(pod: Pod) -> Sequence[str]:
    """Name the annotations that may carry its delay: the default ones, and the hint's own."""
    keys = list(holds.DELAY_KEYS)
    try:
        hinted = holds.read_hint(pod.annotations.get(holds.HELD, "")).delay_key
    except ValueRefusedError:
        return keys
    return keys if hinted in keys else [*keys, hinted]


def owner(pod: Pod) -> str:
    """Name the pod's controller as `Kind/name`; empty where it has none."""
    owners = pod.metadata.owner_references or ()
    return next((f"{one.kind}/{one.name}" for one in owners if one.controller), "")


def left(one: HeldPod, now_ms: int) -> str:
    """Say how long a pod still waits."""
    if one.due_ms is None:
        return "unknown"
    if one.is_overdue(now_ms):
        return f"overdue {tables.duration(now_ms - one.due_ms)}"
    return tables.duration(one.due_ms - now_ms)


def row(one: HeldPod, now_ms: int, *, wide: bool = False, namespace: bool = False) -> list[str]:
    """Write a pod as a row of the table."""
    cells = [one.namespace] if namespace else []
    cells += [one.name, one.held_by, tables.duration(now_ms - one.since_ms), left(one, now_ms)]
    cells.append(one.owner or "-")
    if wide:
        due = "-" if one.due_ms is None else values.canonical_instant(one.due_ms)
        cells += [due, ",".join(one.gates), one.profile or "-", one.remark or "-"]
    return cells


def document(one: HeldPod, now_ms: int) -> dict[str, Any]:
    """Write a pod for a program."""
    due = None if one.due_ms is None else values.canonical_instant(one.due_ms)
    return {
        "namespace": one.namespace,
        "name": one.name,
        "heldBy": one.held_by,
        "gates": list(one.gates),
        "since": values.canonical_instant(one.since_ms),
        "due": due,
        "secondsLeft": None if one.due_ms is None else (one.due_ms - now_ms) / 1_000,
        "owner": one.owner or None,
        "profile": one.profile or None,
        "remark": one.remark or None,
    }


def documents(found: Iterable[HeldPod], now_ms: int) -> dict[str, Any]:
    """Write a list of pods for a program."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "HeldPodList",
        "items": [document(one, now_ms) for one in found],
    }
