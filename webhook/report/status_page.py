"""The status page: health, held pods and recent releases, as HTML. Pure.

It needs no JavaScript and loads nothing. Text from pods is escaped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from holdfast.webhook.controller.history import Released
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.report import table
from holdfast.webhook.report.sticky_vms import StickyVm

MOST_ROWS = 500
"""Rows in a table, those due first; `holdfast list -A` shows all."""
TIMELINE_MINUTES = 60
_BAR_WIDTH, _HEIGHT = 12, 80
_SECOND_MS = 1_000

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">"""
_STYLE = """
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 0 0 2rem }
caption { text-align: left } h2 { font-size: 1.1rem; margin: .5rem 0 }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8888;
  overflow-wrap: anywhere }
.bad { font-weight: bold } .bad::before { content: "! " }
dl { display: grid; grid-template-columns: fit-content(50%) 1fr; gap: .25rem 1rem;
  overflow-wrap: anywhere }
dd { margin: 0 } svg { width: 100%; height: auto } rect { fill: #3d7cc9 }
"""


@dataclass(frozen=True, slots=True)
class HeldPodRow:
    """A row of the table of held pods."""

    pod: ObjectKey
    due_ms: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The content of the page. A fact is a name, a value, and whether the value is healthy."""

    server: str
    now_ms: int
    facts: Sequence[tuple[str, str, bool]]
    held: Sequence[HeldPodRow]
    released: Sequence[Released]
    machines: Sequence[StickyVm] | None = None
    """VMs and the nodes that they return to; None without KubeVirt."""


def page(status: Status) -> bytes:
    """Write the page."""
    held = sorted(status.held, key=lambda one: (one.due_ms, one.pod))
    now = durations.canonical_instant(status.now_ms // _SECOND_MS * _SECOND_MS)
    as_of = f"{escape(status.server)}, as of {now}"
    parts = [
        _HEAD,
        f"<title>Holdfast: {table.counted(len(held), 'held pod')}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<header><h1>Holdfast</h1><p>{as_of}. Reload the page to refresh.</p></header>",
        "<main>",
        *_facts(status.facts),
        *_timeline(held, status.now_ms),
        *_held(held, status.now_ms),
        *_released(status.released, status.now_ms),
        *_machines(status.machines),
        "</main></body></html>",
    ]
    return "\n".join(parts).encode()


def _facts(facts: Iterable[tuple[str, str, bool]]) -> Iterator[str]:
    yield "<section><h2>Status</h2><dl>"
    for name, value, ok in facts:
        kind = "" if ok else ' class="bad"'
        yield f"<dt>{escape(name)}</dt><dd{kind}>{escape(value)}</dd>"
    yield "</dl></section>"


def _timeline(held: Sequence[HeldPodRow], now_ms: int) -> Iterator[str]:
    """Draw the number of pods due in each minute of the next hour; overdue pods come first."""
    counts = [0] * TIMELINE_MINUTES
    for one in held:
        minute = max(0, one.due_ms - now_ms) // 60_000
        if minute < TIMELINE_MINUTES:
            counts[minute] += 1
    text = f"{sum(counts)} of {len(held)} held pods are due in the next hour"
    yield "<section><h2>Next hour</h2>"
    yield f"<p>{text}. Each bar is one minute.</p>"
    width = TIMELINE_MINUTES * _BAR_WIDTH
    yield f'<svg role="img" aria-label="{text}" viewBox="0 0 {width} {_HEIGHT + 4}">'
    yield f'<rect x="0" y="{_HEIGHT}" width="{width}" height="1"/>'
    most = max(*counts, 1)
    for minute, count in enumerate(counts):
        if count:
            height = max(2, _HEIGHT * count // most)
            place = f'x="{minute * _BAR_WIDTH}" y="{_HEIGHT - height}"'
            size = f'width="{_BAR_WIDTH - 2}" height="{height}"'
            yield f"<rect {place} {size}><title>in {minute} min: {count}</title></rect>"
    yield "</svg></section>"


def _held(held: Sequence[HeldPodRow], now_ms: int) -> Iterator[str]:
    shown = held[:MOST_ROWS]
    more = f" (first {MOST_ROWS})" if len(held) > MOST_ROWS else ""
    rows = (_held_row(one, now_ms) for one in shown)
    caption = f"{table.counted(len(held), 'held pod')}{more}"
    yield from _table(caption, ("Pod", "Due", "Left", "Note"), rows)


def _held_row(one: HeldPodRow, now_ms: int) -> tuple[Sequence[str], bool]:
    name = "/".join(one.pod)
    if one.due_ms >= NEVER_MS:
        return (name, "not known", "unknown", one.problem), True
    late = one.due_ms <= now_ms
    length = table.duration(abs(one.due_ms - now_ms))
    left = f"overdue {length}" if late else length
    return (name, durations.canonical_instant(one.due_ms), left, one.problem), not late


def _released(released: Sequence[Released], now_ms: int) -> Iterator[str]:
    newest = sorted(released, key=lambda one: -one.at_ms)
    rows = (
        (("/".join(one.pod), f"{table.duration(now_ms - one.at_ms)} ago", one.note), True)
        for one in newest
    )
    caption = f"Last {table.counted(len(newest), 'release')}"
    yield from _table(caption, ("Pod", "Released", "Note"), rows)


def _machines(machines: Sequence[StickyVm] | None) -> Iterator[str]:
    if machines is None:
        return
    shown = machines[:MOST_ROWS]
    number = len(machines)
    title = f"First {MOST_ROWS} VMs" if number > MOST_ROWS else table.counted(number, "VM")
    head = ("VM", "Returns to", "Runs on", "Note")
    yield from _table(title, head, map(_machine_row, shown))


def _machine_row(one: StickyVm) -> tuple[Sequence[str], bool]:
    name, note = f"{one.namespace}/{one.name}", one.remark if one.is_sticky else "not sticky"
    return (name, one.node or "any", one.runs_on or "not running", note), True


def _table(
    caption: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]
) -> Iterator[str]:
    cells = "".join(f'<th scope="col">{name}</th>' for name in head)
    yield f"<table><caption><h2>{caption}</h2></caption><thead><tr>{cells}</tr></thead><tbody>"
    for (first, *others), ok in rows:
        kind = "" if ok else ' class="bad"'
        rest = "".join(f"<td>{escape(other)}</td>" for other in others)
        yield f'<tr><th scope="row"{kind}>{escape(first)}</th>{rest}</tr>'
    yield "</tbody></table>"
