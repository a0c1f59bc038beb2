"""Bar charts of the due times of held pods, in HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.webhook.report import table

STYLE = """
.bars { display: flex; align-items: flex-end; gap: 1px; height: 5rem; border-bottom: 1px solid }
.bars i { flex: 1; background: #3d7cc9; min-width: 0 }
.axis { display: flex; justify-content: space-between; font-size: .85rem }
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """A period that starts now, and the bars of its chart. Durations are in milliseconds."""

    title: str
    bar: str
    bar_ms: int
    marks: Sequence[str]
    bars: int


HOUR = Scale("Next hour", "minute", 60_000, ("now", "15 min", "30 min", "45 min", "1 h"), 60)
DAY = Scale("Next day", "hour", 3_600_000, ("now", "6 h", "12 h", "18 h", "24 h"), 24)


def drawn(scale: Scale, due_ms: Sequence[int], now_ms: int) -> Iterator[str]:
    """Yield a chart of the pods due in each part of a period; the first includes overdue pods."""
    counts = [0] * scale.bars
    for at_ms in due_ms:
        number = max(0, at_ms - now_ms) // scale.bar_ms
        if number < scale.bars:
            counts[number] += 1
    peak = max(*counts, 1)
    text = f"{sum(counts)} of {table.counted(len(due_ms), 'held pod')} due"
    highest = f"Each bar is one {scale.bar}; the highest is {table.counted(peak, 'pod')}."
    yield f"<section><h2>{scale.title}</h2><p>{text}. {highest if sum(counts) else ''}</p>"
    yield f'<div class="bars" role="img" aria-label="{scale.title}: {text}">'
    for number, count in enumerate(counts):
        height = max(4, 100 * count // peak) if count else 0
        yield f'<i style="height:{height}%" title="{scale.bar} {number + 1}: {count}"></i>'
    yield "</div>"
    marks = "".join(f"<span>{mark}</span>" for mark in scale.marks)
    yield f'<div class="axis" aria-hidden="true">{marks}</div></section>'
