"""Tables in kubectl's style. Pure."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 3
"""Spaces between columns."""
LEAST_WIDTH = 4
"""The minimum width of a column."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None
) -> list[str]:
    """Format a table; with a width, cells are cut to fit."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    if width is not None:
        _shrink(widths, width - GAP * (len(head) - 1))
    return [_line(row, widths) for row in table]


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


def _shrink(widths: list[int], room: int) -> None:
    """Shrink the widest column until the table fits or all columns have the minimum width."""
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda column: widths[column])
        if widths[widest] <= LEAST_WIDTH:
            return
        others = sorted(widths)
        step = max(1, widths[widest] - max(others[-2] if len(others) > 1 else 0, LEAST_WIDTH))
        widths[widest] -= min(step, sum(widths) - room)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * GAP).join(cells).rstrip()


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"
