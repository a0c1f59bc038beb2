"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a `|` in a cell is escaped."""
    return "\n".join(row(cells) for cells in [head, ["---"] * len(head), *rows])


def row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
