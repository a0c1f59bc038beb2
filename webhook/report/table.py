"""Tables in kubectl's style. Pure."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 3
"""Spaces between columns."""
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. A narrow terminal wraps long lines."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [_line(row, widths) for row in (head, *rows)]


def counted(number: int, noun: str) -> str:
    """Format a count: `1 held pod`, `2 held pods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], limit: int) -> str:
    """Join the first names, and count the others: `a, b and 2 more`."""
    text = ", ".join(names[:limit])
    return f"{text} and {len(names) - limit} more" if len(names) > limit else text


def duration(milliseconds: int) -> str:
    """Format a duration in up to two units: `45s`, `2m30s`, `3d4h`.

    Fractions of a second are rounded up, so `0s` means that no time is left.
    """
    seconds = -(-max(0, milliseconds) // 1_000)
    for index, (unit, size) in enumerate(_UNITS):
        if seconds >= size:
            text = f"{seconds // size}{unit}"
            smaller_units = _UNITS[index + 1 :]
            if smaller_units and (count := seconds % size // smaller_units[0][1]):
                text += f"{count}{smaller_units[0][0]}"
            return text
    return "0s"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * GAP).join(cells).rstrip()
