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


def counted(number: int, thing: str) -> str:
    """Format a count: `1 held pod`, `2 held pods`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Sequence[str], most: int) -> str:
    """Join the first names, and count the others: `a, b and 2 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def duration(milliseconds: int) -> str:
    """Format a duration in up to two units: `45s`, `2m30s`, `3d4h`.

    Fractions of a second are rounded up, so `0s` means that no time is left.
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


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * GAP).join(cells).rstrip()
