"""Output of commands: colored on a terminal, plain in a pipe, always escaped."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import yaml
from rich.console import Console
from rich.text import Text

from holdfast.webhook.errors import CommandError
from holdfast.webhook.model import messages
from holdfast.webhook.report import table as tables

_MOST_NAMED = 20

Styled = tuple[str, str]
"""A line and its style, which may be empty."""

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where libyaml is there


def console(*, stderr: bool = False) -> Console:
    """Create a console, with colors only on a terminal and without NO_COLOR."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def write(lines: Iterable[Styled], to: Console | None = None) -> None:
    """Write lines; the terminal wraps long ones."""
    out = to or console()
    if not out.is_terminal:
        click.echo(
            "".join(f"{messages.escape(line)}\n" for line, _ in lines), nl=False, file=out.file
        )
        return
    text = Text()
    for line, style in lines:
        text.append(messages.escape(line) + "\n", style=style or None)
    out.print(text, end="", soft_wrap=True)


def confirm(question: str, names: Sequence[str] = (), *, can_ask: bool) -> None:
    """Ask about these objects, and abort without a yes. Raises CommandError if it cannot ask."""
    if not can_ask:
        raise CommandError(f"there is no terminal to confirm on ({question}); add --yes")
    write((f"  {name}", "") for name in names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        click.echo(f"  and {len(names) - _MOST_NAMED} more")
    click.confirm(question, abort=True)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int], str] = lambda _: "",
    to: Console | None = None,
) -> list[Styled]:
    """Format a table to the width of the terminal; unlimited in a pipe."""
    out = to or console()
    width = out.width if out.is_terminal else None
    first, *others = tables.lines(
        head, [[messages.escape(cell) for cell in row] for row in rows], width=width
    )
    return [(first, "bold"), *((line, style(number)) for number, line in enumerate(others))]


def write_document(document: Any, output: str) -> None:
    """Write a document as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(yaml.dump(document, Dumper=_Dumper, sort_keys=False), nl=False)
