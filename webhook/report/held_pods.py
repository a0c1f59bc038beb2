"""Held pods, with the reason and the time left, for tables and scripts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.model import durations, messages
from holdfast.webhook.model.annotations import (
    DELAY_GATE,
    DELAY_KEYS,
    HELD_ANNOTATION,
    NEVER_MS,
    OWN_PREFIX,
    PROFILE_ANNOTATION,
    format_hint,
    read_hint,
    read_hold_request,
)
from holdfast.webhook.model.freezes import Freeze, extended
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.report import table

HEAD = ("NAME", "HELD BY", "AGE", "LEFT", "OWNER")
HEAD_WIDE = (*HEAD, "DUE", "GATES", "PROFILE", "REMARK")
PATIENCE_MS = 5_000
"""How late a release may be before it counts as a problem."""
_SHOWN_CHARACTERS = 120
"""Longer texts are cut: they are the creator's, and go to a terminal."""


@dataclass(frozen=True, slots=True)
class HeldPodSummary:
    """One held pod. Times are milliseconds since 1970, by the API server's clock.

    `due_ms` is None if only a plugin knows when it will be released, but not before `earliest_ms`,
    the time of plugin `earliest_by`. `open_ended` if it may be earlier. `ended` says how a hold has
    ended; empty while it lasts.
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
    ended: str = ""
    earliest_ms: int = 0
    earliest_by: str = ""
    open_ended: bool = False

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether its due time has passed."""
        return not self.ended and self.due_ms is not None and self.due_ms <= now_ms

    def remark_at(self, now_ms: int) -> str:
        """Return what it waits for, with the time before which that does not matter."""
        if self.due_ms is not None or self.earliest_ms <= now_ms:
            return self.remark
        until = f"{self.earliest_by} until {durations.canonical_instant(self.earliest_ms)}"
        return "; ".join(filter(None, (until, self.remark)))


def held_pods(
    pods: Iterable[Pod],
    decider: ReleaseDecider,
    freeze_of: Callable[[str], Freeze | None] = lambda _: None,
) -> list[HeldPodSummary]:
    """List the pods that Holdfast holds, in order of their due time.

    `freeze_of` returns the freeze of a namespace.
    """
    found = [
        described(pod, decider, freeze_of(pod.metadata.namespace)) for pod in pods if own_gates(pod)
    ]
    never = NEVER_MS
    return sorted(
        found, key=lambda one: (one.due_ms or never, one.since_ms, one.namespace, one.name)
    )


def described(pod: Pod, decider: ReleaseDecider, freeze: Freeze | None = None) -> HeldPodSummary:
    """Describe a pod that has one of our gates, and may be in a frozen namespace."""
    alone = decider.due(pod)
    due = extended(alone, freeze)
    unknown = unknown_gates(pod, decider)
    is_open = due is alone and due.at_ms >= NEVER_MS
    earliest_ms, earliest_by = decider.earliest(pod) if is_open else (0, "")
    return HeldPodSummary(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        held_by=held_by(pod, freeze if due is not alone else None),
        gates=tuple(pod.gates),
        since_ms=pod.created_ms,
        due_ms=None if unknown or due.at_ms >= NEVER_MS else due.at_ms,
        owner=owner(pod),
        profile=pod.annotations.get(PROFILE_ANNOTATION, "")[:_SHOWN_CHARACTERS],
        remark="" if unknown else "; ".join(filter(None, (due.reason, due.problem))),
        earliest_ms=earliest_ms,
        earliest_by=earliest_by,
        open_ended=due.open_ended,
    )


def own_gates(pod: Pod) -> list[str]:
    """List Holdfast's gates on a pod."""
    return [gate for gate in pod.gates if gate.startswith(OWN_PREFIX)]


def unknown_gates(pod: Pod, decider: ReleaseDecider) -> list[str]:
    """List those of its gates whose plugin is not installed here."""
    profile = decider.profiles.select(pod)
    known = {plugin.gate for plugin in profile.holding} if profile else set()
    return [gate for gate in own_gates(pod) if gate not in {*known, DELAY_GATE}]


def held_by(pod: Pod, freeze: Freeze | None = None) -> str:
    """Name what holds a pod: its request, the plugins of other gates, and a freeze."""
    found = [asked(pod)] if DELAY_GATE in pod.gates else []
    found += [_hold(gate, pod) for gate in own_gates(pod) if gate != DELAY_GATE]
    if freeze is not None:
        found.append(f"freeze={messages.shorten(freeze.reason, _SHOWN_CHARACTERS)}")
    return ", ".join(part for part in found if part) or "nothing"


def _hold(gate: str, pod: Pod) -> str:
    """Name the plugin of a gate, with what the annotation of the same key asks for."""
    name, text = gate.removeprefix(OWN_PREFIX), pod.annotations.get(gate)
    if text is None:
        return name
    plain = text.isascii() and text.isprintable() and len(text) <= _SHOWN_CHARACTERS
    return f"{name}={text if plain else messages.quote(text, _SHOWN_CHARACTERS)}"


def asked(pod: Pod) -> str:
    """Return a pod's request in canonical form, or its hint if the request is invalid."""
    hint = pod.annotations.get(HELD_ANNOTATION, "")
    try:
        return format_hint(read_hold_request(pod.annotations, delay_keys(pod)))
    except InvalidValueError:
        return messages.quote(hint, _SHOWN_CHARACTERS) if hint else "an invalid request"


def delay_keys(pod: Pod) -> Sequence[str]:
    """List the annotations that may carry its delay: the default ones, and the hint's."""
    keys = list(DELAY_KEYS)
    try:
        hinted = read_hint(pod.annotations.get(HELD_ANNOTATION, "")).delay_key
    except InvalidValueError:
        return keys
    return keys if hinted in keys else [*keys, hinted]


def owner(pod: Pod) -> str:
    """Return the pod's controller as `Kind/name`; empty if it has none."""
    owners = pod.metadata.owner_references or ()
    return next((f"{one.kind}/{one.name}" for one in owners if one.controller), "")


def left(one: HeldPodSummary, now_ms: int) -> str:
    """Format the time that is left for a pod."""
    if one.ended:
        return one.ended
    if one.due_ms is None and one.earliest_ms > now_ms:
        return f">={table.duration(one.earliest_ms - now_ms)}"
    if one.due_ms is None:
        return "unknown"
    if one.is_overdue(now_ms):
        return f"overdue {table.duration(now_ms - one.due_ms)}"
    return ("<=" if one.open_ended else "") + table.duration(one.due_ms - now_ms)


def row(one: HeldPodSummary, now_ms: int, *, wide: bool = False) -> list[str]:
    """Format a pod as a table row, without its namespace."""
    cells = [one.name, one.held_by, table.duration(now_ms - one.since_ms), left(one, now_ms)]
    cells.append(one.owner or "-")
    if wide:
        known_ms = one.due_ms or (one.earliest_ms if one.earliest_ms > now_ms else 0)
        at_least = ">=" if one.due_ms is None else ""
        due = f"{at_least}{durations.canonical_instant(known_ms)}" if known_ms else "-"
        cells += [due, ",".join(one.gates), one.profile or "-", one.remark_at(now_ms) or "-"]
    return cells


def document(one: HeldPodSummary, now_ms: int) -> dict[str, Any]:
    """Convert a pod for JSON and YAML output."""
    due = None if one.due_ms is None else durations.canonical_instant(one.due_ms)
    ended = {"ended": one.ended} if one.ended else {}
    return {
        "metadata": {
            "namespace": one.namespace,
            "name": one.name,
            "creationTimestamp": durations.canonical_instant(one.since_ms),
        },
        "heldBy": one.held_by,
        "gates": list(one.gates),
        "due": due,
        "secondsLeft": None if one.due_ms is None else (one.due_ms - now_ms) / 1_000,
        "owner": one.owner or None,
        "profile": one.profile or None,
        "remark": one.remark_at(now_ms) or None,
        **ended,
    }
