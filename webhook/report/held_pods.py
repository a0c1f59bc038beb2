"""Held pods, with the reason and the time left, for tables and scripts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.report import table
from holdfast.webhook.report.pace_places import PacePlace, ordinal

HEAD = ("NAME", "LEFT", "AGE", "OWNER", "HELD BY")
HEAD_WIDE = (*HEAD, "DUE", "GATES", "PROFILE", "REMARK")
_CELL_CHARACTERS = 40
"""Maximum length of a hold in the table, except in wide output."""
PATIENCE_MS = 5_000
"""Lateness of a release, in milliseconds, above which it is a problem."""
_SHOWN_CHARACTERS = 120
"""Maximum length of text that the pod's creator controls, because it goes to a terminal."""


@dataclass(frozen=True, slots=True)
class HeldPodSummary:
    """One held pod. Times are milliseconds since 1970, by the API server's clock.

    `due_ms` is None if only a plugin knows the time of the release. The release is not before
    `earliest_ms`, which plugin `earliest_by` or a freeze sets. `open_ended` means that the pod may
    be due before `due_ms`. `place` is its place in line for its pace, or 0. `ended` says how the
    hold has ended, and is empty while the pod is held.
    """

    namespace: str
    name: str
    holds: tuple[str, ...]
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
    place: int = 0

    @property
    def held_by(self) -> str:
        """All holds, joined on one line."""
        return ", ".join(self.holds) or "nothing"

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether its due time has passed."""
        return not self.ended and self.due_ms is not None and self.due_ms <= now_ms

    def remark_at(self, now_ms: int) -> str:
        """Return what the pod waits for, and its earliest release time if that lies ahead."""
        if self.due_ms is not None or self.earliest_ms <= now_ms:
            return self.remark
        at = durations.canonical_instant(self.earliest_ms)
        until = self.earliest_by and f"{self.earliest_by} until {at}"
        return "; ".join(filter(None, (until, self.remark)))


def held_pods(
    pods: Iterable[Pod],
    decider: ReleaseDecider,
    freeze_of: Callable[[str], Freeze | None] = lambda _: None,
    places: Mapping[ObjectKey, PacePlace] = MappingProxyType({}),
) -> list[HeldPodSummary]:
    """Return the held pods, sorted by due time or its lower bound.

    `freeze_of` returns the freeze of a namespace. `places` are the pods' places in line.
    """
    summaries = [
        described(pod, decider, freeze_of(pod.metadata.namespace), places.get(pod.key))
        for pod in pods
        if own_gates(pod)
    ]
    return sorted(summaries, key=_order)


def _order(pod: HeldPodSummary) -> tuple[object, ...]:
    due_ms = pod.due_ms or pod.earliest_ms or NEVER_MS
    return due_ms, pod.place, pod.since_ms, pod.namespace, pod.name


def described(
    pod: Pod,
    decider: ReleaseDecider,
    freeze: Freeze | None = None,
    place: PacePlace | None = None,
) -> HeldPodSummary:
    """Return the summary of a pod with a Holdfast gate. Its namespace may be frozen."""
    pod_due = decider.due(pod)
    due = extended(pod_due, freeze)
    unknown = unknown_gates(pod, decider)
    is_open = pod_due.at_ms >= NEVER_MS
    earliest_ms, earliest_by = decider.earliest(pod) if is_open else (0, "")
    if is_open and freeze is not None and earliest_ms < freeze.until_ms < NEVER_MS:
        earliest_ms, earliest_by = freeze.until_ms, ""  # the reason names the freeze
    remark = "" if unknown else "; ".join(filter(None, (due.reason, due.problem)))
    if place is not None:
        remark = remark.replace(place.replaces, str(place))
    return HeldPodSummary(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        holds=tuple(_holds(pod, freeze if due is not pod_due else None)),
        gates=tuple(pod.gates),
        since_ms=pod.created_ms,
        due_ms=None if unknown or due.at_ms >= NEVER_MS else due.at_ms,
        owner=owner(pod),
        profile=pod.annotations.get(PROFILE_ANNOTATION, "")[:_SHOWN_CHARACTERS],
        remark=remark,
        earliest_ms=earliest_ms,
        earliest_by=earliest_by,
        open_ended=due.open_ended,
        place=place.number if place is not None else 0,
    )


def own_gates(pod: Pod) -> list[str]:
    """Return Holdfast's gates on a pod."""
    return [gate for gate in pod.gates if gate.startswith(OWN_PREFIX)]


def unknown_gates(pod: Pod, decider: ReleaseDecider) -> list[str]:
    """Return Holdfast's gates on a pod whose plugin is not installed here."""
    profile = decider.profiles.select(pod)
    profile_gates = {plugin.gate for plugin in profile.holding} if profile else set()
    return [gate for gate in own_gates(pod) if gate not in {*profile_gates, DELAY_GATE}]


def _holds(pod: Pod, freeze: Freeze | None) -> Iterator[str]:
    """Yield the holds of a pod: its delay, the plugins of other gates, and a freeze."""
    gates = sorted(own_gates(pod), key=lambda gate: gate != DELAY_GATE)
    yield from filter(None, (hold_of(gate, pod) for gate in gates))
    if freeze is not None:
        yield f"freeze={messages.shorten(freeze.reason, _SHOWN_CHARACTERS)}"


def hold_of(gate: str, pod: Pod) -> str:
    """Return the hold that a Holdfast gate stands for, with the value of its annotation."""
    if gate == DELAY_GATE:
        return asked(pod)
    name, text = gate.removeprefix(OWN_PREFIX), pod.annotations.get(gate)
    if text is None:
        return name
    is_plain = text.isascii() and text.isprintable() and len(text) <= _SHOWN_CHARACTERS
    return f"{name}={text if is_plain else messages.quote(text, _SHOWN_CHARACTERS)}"


def asked(pod: Pod) -> str:
    """Return a pod's hold request in canonical form, or its hint if the request is invalid."""
    hint = pod.annotations.get(HELD_ANNOTATION, "")
    try:
        hint = format_hint(read_hold_request(pod.annotations, delay_keys(pod)))
        return hint.removeprefix(OWN_PREFIX)
    except InvalidValueError:
        return messages.quote(hint, _SHOWN_CHARACTERS) if hint else "an invalid request"


def delay_keys(pod: Pod) -> Sequence[str]:
    """Return the annotations that may set a pod's delay: the default keys, and the hint's."""
    keys = list(DELAY_KEYS)
    try:
        hinted_key = read_hint(pod.annotations.get(HELD_ANNOTATION, "")).delay_key
    except InvalidValueError:
        return keys
    return keys if hinted_key in keys else [*keys, hinted_key]


def owner(pod: Pod) -> str:
    """Return the pod's controller as `Kind/name`; empty if it has none."""
    owners = pod.metadata.owner_references or ()
    controller = next(
        (f"{reference.kind}/{reference.name}" for reference in owners if reference.controller), ""
    )
    return messages.shorten(controller)  # the API server does not limit its length


def left(pod: HeldPodSummary, now_ms: int) -> str:
    """Format the time left until the release of a pod."""
    if pod.ended:
        return pod.ended
    if pod.due_ms is None and pod.earliest_ms > now_ms:
        return f">={table.duration(pod.earliest_ms - now_ms)}"
    if pod.due_ms is None:
        return f"{ordinal(pod.place)} in line" if pod.place else "unknown"
    if pod.is_overdue(now_ms):
        return f"overdue {table.duration(now_ms - pod.due_ms)}"
    return ("<=" if pod.open_ended else "") + table.duration(pod.due_ms - now_ms)


def row(pod: HeldPodSummary, now_ms: int, *, wide: bool = False) -> list[str]:
    """Format a pod as a table row, without its namespace."""
    age, holds = table.duration(now_ms - pod.since_ms), map(str if wide else _shortened, pod.holds)
    cells = [pod.name, left(pod, now_ms), age, pod.owner or "-", ", ".join(holds) or "nothing"]
    if wide:
        due_ms = pod.due_ms or (pod.earliest_ms if pod.earliest_ms > now_ms else 0)
        at_least = ">=" if pod.due_ms is None else ""
        due = f"{at_least}{durations.canonical_instant(due_ms)}" if due_ms else "-"
        cells += [due, ",".join(pod.gates), pod.profile or "-", pod.remark_at(now_ms) or "-"]
    return cells


def _shortened(hold: str) -> str:
    return hold if len(hold) <= _CELL_CHARACTERS else f"{hold[: _CELL_CHARACTERS - 1].rstrip()}…"


def document(pod: HeldPodSummary, now_ms: int) -> dict[str, Any]:
    """Convert a pod for JSON and YAML output."""
    bound_ms = pod.earliest_ms if pod.earliest_ms > now_ms else None
    due, left_s = _until(pod.due_ms, now_ms)
    least, least_s = _until(None if pod.open_ended else pod.due_ms or bound_ms, now_ms)
    return {
        "metadata": {
            "namespace": pod.namespace,
            "name": pod.name,
            "creationTimestamp": durations.canonical_instant(pod.since_ms),
        },
        "heldBy": pod.held_by,
        "gates": list(pod.gates),
        "due": due,
        "secondsLeft": left_s,
        "earliestDue": least,
        "leastSecondsLeft": least_s,
        "placeInLine": pod.place or None,
        "owner": pod.owner or None,
        "profile": pod.profile or None,
        "remark": pod.remark_at(now_ms) or None,
        **({"ended": pod.ended} if pod.ended else {}),
    }


def _until(at_ms: int | None, now_ms: int) -> tuple[str | None, float | None]:
    if at_ms is None:
        return None, None
    return durations.canonical_instant(at_ms), (at_ms - now_ms) / 1_000
