"""The status page: health, held pods and recent releases, as HTML. Pure.

It needs no JavaScript and loads nothing. Text from pods is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

from holdfast.webhook.kube.events import Released
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.report import table, timeline
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.report.sticky_vms import StickyVm

MOST_ROWS = 500
"""Maximum rows of a table, earliest due first; `holdfast list -A` shows all."""
MOST_GROUPS = 100
REFRESH_SECONDS = 10
_SECOND_MS = 1_000

_STYLE = """
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1rem auto; padding: 0 1rem }
a { color: LinkText } h2 { font-size: 1.1rem; margin: .5rem 0 }
section, table { margin: 0 0 2rem }
table { border-collapse: collapse; width: 100% } caption { text-align: left }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8888;
  overflow-wrap: anywhere }
.health { border-left: .5rem solid; padding: .25rem .75rem }
.health strong { display: block; font-size: 1.25rem }
.ok { border-color: #1a7f37 } .warning { border-color: #bf8700 } .problem { border-color: #cf222e }
.bad { font-weight: bold } .bad::before { content: "! " }
dl { display: grid; grid-template-columns: fit-content(50%) 1fr; gap: .25rem 1rem;
  overflow-wrap: anywhere }
dd { margin: 0 }
@media (max-width: 40rem) {
  thead { position: absolute; clip-path: inset(50%) }
  tr { display: block; padding: .25rem 0; border-bottom: 1px solid #8888 }
  th, td { display: block; border: 0; padding: 0 }
  td:empty { display: none } td::before { content: attr(data-label) ": " }
}
"""
_HEALTH = {
    Level.OK: ("ok", "Healthy"),
    Level.WARNING: ("warning", "Needs attention"),
    Level.PROBLEM: ("problem", "Not healthy"),
}


class Fact(NamedTuple):
    """A named value, with its health as a level."""

    name: str
    value: str
    level: Level = Level.OK


@dataclass(frozen=True, slots=True)
class HeldPodRow:
    """A row of the table of held pods. `owner` is empty if it is unknown."""

    pod: ObjectKey
    due_ms: int
    held_by: str = ""
    note: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The pods that a page shows: those of a namespace and an owner in it, if not empty."""

    namespace: str = ""
    owner: str = ""
    is_paused: bool = False

    def link(self, text: str, **changes: object) -> str:
        """Return a link to the page with these changes to the selection."""
        parameters = {"namespace": self.namespace, "owner": self.owner, "paused": self.is_paused}
        query = {name: value for name, value in {**parameters, **changes}.items() if value}
        return f'<a href="/?{escape(urlencode(query))}">{escape(text)}</a>'


@dataclass(frozen=True, slots=True)
class Status:
    """The content of the page.

    `held` has the pods of the selected namespace, or all. `paces` maps each pace to its numbers of
    starting and waiting pods, and `windows` maps each configured window to its state. `machines`
    are VMs with their recorded nodes; None without KubeVirt.
    """

    server: str
    now_ms: int
    facts: Sequence[Fact]
    held: Sequence[HeldPodRow]
    released: Sequence[Released] = ()
    machines: Sequence[StickyVm] | None = None
    paces: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    windows: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = Selection()


def page(status: Status) -> bytes:
    """Return the page as HTML."""
    selection = status.selection
    held = sorted(status.held, key=lambda row: (row.due_ms, row.pod))
    if selection.owner:
        held = [row for row in held if row.owner == selection.owner]
    due_times = [row.due_ms for row in held]
    parts = [
        *_head(status, len(held)),
        "<main>",
        *_health(status.facts),
        *timeline.drawn(timeline.HOUR, due_times, status.now_ms),
        *timeline.drawn(timeline.DAY, due_times, status.now_ms),
        *_counts("Paces", ("Pace", "Starting", "Waiting"), status.paces),
        *_counts(
            "Windows",
            ("Window", "State"),
            {name: (state,) for name, state in status.windows.items()},
        ),
        *_groups(status.held, selection, status.now_ms),
        *_held(held, selection, status.now_ms),
        *_released(status.released, status.now_ms),
        *_machines(status.machines),
        *_facts(status.facts),
        "</main></body></html>",
    ]
    return "\n".join(parts).encode()


def _head(status: Status, held: int) -> Iterator[str]:
    selection = status.selection
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    if not selection.is_paused:
        yield f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    yield f"<title>Holdfast: {table.counted(held, 'held pod')}</title>"
    yield f"<style>{_STYLE}{timeline.STYLE}</style></head><body>"
    now = durations.canonical_instant(status.now_ms // _SECOND_MS * _SECOND_MS)
    refresh = f"refreshed every {REFRESH_SECONDS} s ({selection.link('pause', paused=1)})"
    if selection.is_paused:
        refresh = f"not refreshed ({selection.link('continue', paused=0)})"
    source = f"{escape(status.server)}, as of {now}"
    yield f"<header><h1>Holdfast</h1><p>{source}, {refresh}</p></header>"


def _health(facts: Sequence[Fact]) -> Iterator[str]:
    bad_facts = [fact for fact in facts if fact.level is not Level.OK]
    problem = any(fact.level is Level.PROBLEM for fact in bad_facts)
    level = Level.PROBLEM if problem else Level.WARNING if bad_facts else Level.OK
    kind, text = _HEALTH[level]
    reasons = "; ".join(f"{fact.name}: {fact.value}" for fact in bad_facts)
    yield f'<section class="health {kind}" aria-label="Health"><strong>{text}</strong>'
    yield f"{escape(reasons)}</section>"


def _facts(facts: Iterable[Fact]) -> Iterator[str]:
    yield "<section><h2>Details</h2><dl>"
    for name, value, level in facts:
        kind = "" if level is Level.OK else ' class="bad"'
        yield f"<dt>{escape(name)}</dt><dd{kind}>{escape(value)}</dd>"
    yield "</dl></section>"


def _counts(
    title: str, head: Sequence[str], values: Mapping[str, Sequence[object]]
) -> Iterator[str]:
    rows = (
        [escape(str(cell)) for cell in (name, *cells)] for name, cells in sorted(values.items())
    )
    if values:
        yield from _table(title, head, ((row, True) for row in rows))


def _groups(held: Sequence[HeldPodRow], selection: Selection, now_ms: int) -> Iterator[str]:
    """Yield a table of held pods per namespace, or per owner in the selected namespace."""
    kind = "Owner" if selection.namespace else "Namespace"

    def name(held_row: HeldPodRow) -> str:
        return held_row.owner if selection.namespace else held_row.pod[0]

    numbers = Counter(map(name, held))
    first: dict[str, int] = {}
    for row in held:
        first[name(row)] = min(row.due_ms, first.get(name(row), row.due_ms))
    rows = (
        (
            (
                selection.link(group, **{kind.lower(): group}) if group else "(none)",
                str(number),
                _left(first[group], now_ms),
            ),
            True,
        )
        for group, number in numbers.most_common(MOST_GROUPS)
    )
    title = f"Held pods by {kind.lower()}"
    if selection.namespace:
        title = f"Namespace {selection.namespace}, by owner"
        yield f"<p>{selection.link('All namespaces', namespace='', owner='')}</p>"
    yield from _table(title, (kind, "Pods", "Next due in"), rows)


def _held(held: Sequence[HeldPodRow], selection: Selection, now_ms: int) -> Iterator[str]:
    suffix = f" (first {MOST_ROWS})" if len(held) > MOST_ROWS else ""
    owner = f" of {selection.owner}" if selection.owner else ""
    rows = (_held_row(row, now_ms) for row in held[:MOST_ROWS])
    caption = f"{table.counted(len(held), 'held pod')}{owner}{suffix}"
    yield from _table(caption, ("Pod", "Held by", "Due", "Left", "Note"), rows)


def _held_row(row: HeldPodRow, now_ms: int) -> tuple[Sequence[str], bool]:
    name, is_known = escape("/".join(row.pod)), row.due_ms < NEVER_MS
    due = durations.canonical_instant(row.due_ms) if is_known else "not known"
    cells = (name, escape(row.held_by), due, _left(row.due_ms, now_ms), escape(row.note))
    return cells, not is_known or row.due_ms > now_ms


def _left(due_ms: int, now_ms: int) -> str:
    if due_ms >= NEVER_MS:
        return "unknown"
    length = table.duration(abs(due_ms - now_ms))
    return f"overdue {length}" if due_ms <= now_ms else length


def _released(released: Sequence[Released], now_ms: int) -> Iterator[str]:
    newest = sorted(released, key=lambda release: -release.at_ms)
    rows = (
        (
            (
                escape("/".join(release.pod)),
                f"{table.duration(now_ms - release.at_ms)} ago",
                escape(release.note),
            ),
            True,
        )
        for release in newest
    )
    caption = f"Last {table.counted(len(newest), 'release')}"
    yield from _table(caption, ("Pod", "Released", "Note"), rows)


def _machines(machines: Sequence[StickyVm] | None) -> Iterator[str]:
    if machines is None:
        return
    vms = machines[:MOST_ROWS]
    number = len(machines)
    title = f"First {MOST_ROWS} VMs" if number > MOST_ROWS else table.counted(number, "VM")
    head = ("VM", "Returns to", "Runs on", "Note")
    yield from _table(title, head, map(_machine_row, vms))


def _machine_row(vm: StickyVm) -> tuple[Sequence[str], bool]:
    name, note = f"{vm.namespace}/{vm.name}", vm.remark if vm.is_sticky else "not sticky"
    cells = (name, vm.node or "any", vm.runs_on or "not running", note)
    return [*map(escape, cells)], True


def _table(
    caption: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]
) -> Iterator[str]:
    """Yield a table. The cells must already be HTML."""
    cells = "".join(f'<th scope="col">{name}</th>' for name in head)
    title = f"<caption><h2>{escape(caption)}</h2></caption>"
    yield f"<table>{title}<thead><tr>{cells}</tr></thead><tbody>"
    for (first, *others), ok in rows:
        kind = "" if ok else ' class="bad"'
        columns = zip(head[1:], others, strict=True)
        data_cells = "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in columns)
        yield f'<tr><th scope="row"{kind}>{first}</th>{data_cells}</tr>'
    yield "</tbody></table>"
