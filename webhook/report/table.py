"""Tables in kubectl's style. Pure."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 3
"""Spaces between columns."""
LEAST_WIDTH = 4
"""The minimum width of a column."""
NAMES = frozenset({"NAMESPACE", "NAME"})
"""Columns that are never cut or left out."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None
) -> list[str]:
    """Format a table; with a width, cells are cut and the last columns left out to fit.

    Names are never cut: people copy them.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    shown = [*range(len(head))]
    if width is not None:
        least = [
            widths[at] if head[at] in NAMES else max(len(head[at]), LEAST_WIDTH) for at in shown
        ]
        while _total(least, shown) > width and head[shown[-1]] not in NAMES:
            shown.pop()
        _shrink(widths, least, shown, width)
    return [_line([row[at] for at in shown], [widths[at] for at in shown]) for row in (head, *rows)]


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + GAP * (len(shown) - 1)


def counted(number: int, thing: str) -> str:
    """Format a count: `1 held pod`, `2 held pods`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(milliseconds: int) -> str:
    """Format a duration in up to two units: `45s`, `2m30s`, `3d4h`.

    Fractions of a second are rounded up, so only a duration that is over is `0s`.
    """
    rest = -(-max(0, milliseconds) // 1_000)
    for index, (unit, size) in enumerate(_UNITS):
        if rest >= size:
            text = f"{rest // size}{unit}"
            below = _UNITS[index + 1 :]
            if below and (count := rest % size // below[0][1]):
                text += f"{count}{below[0][0]}"
            return text
    return "0s"


def _shrink(widths: list[int], least: Sequence[int], shown: Sequence[int], room: int) -> None:
    """Shrink the widest column again and again, none below its least width."""
    while _total(widths, shown) > room:
        wide = [at for at in shown if widths[at] > least[at]]
        if not wide:
            return
        widths[max(wide, key=lambda at: widths[at])] -= 1


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * GAP).join(cells).rstrip()


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"
