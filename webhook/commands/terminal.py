"""How commands write: in colour on a terminal, plainly into a pipe, and escaped always."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import yaml
from rich.console import Console
from rich.text import Text

from webhook import tables

Styled = tuple[str, str]
"""A line and its style; an empty style is none."""

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where libyaml is there


def console(*, stderr: bool = False) -> Console:
    """Make the console: colours only on a terminal, and none where NO_COLOR is set."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def safe(text: str) -> str:
    """Escape what would move a terminal's cursor, or hide something."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def write(lines: Iterable[Styled], to: Console | None = None) -> None:
    """Write lines; long ones are left to the terminal to wrap."""
    out = to or console()
    if not out.is_terminal:
        click.echo("".join(f"{safe(line)}\n" for line, _ in lines), nl=False, file=out.file)
        return
    text = Text()
    for line, style in lines:
        text.append(safe(line) + "\n", style=style or None)
    out.print(text, end="", soft_wrap=True)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int], str] = lambda _: "",
    to: Console | None = None,
) -> list[Styled]:
    """Lay a table out: as wide as the terminal; into a pipe as wide as it needs."""
    out = to or console()
    width = out.width if out.is_terminal else None
    first, *others = tables.lines(head, [[safe(cell) for cell in row] for row in rows], width=width)
    return [(first, "bold"), *((line, style(number)) for number, line in enumerate(others))]


def write_document(document: Any, output: str) -> None:
    """Write a document as json or yaml."""
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(yaml.dump(document, Dumper=_Dumper, sort_keys=False), nl=False)
