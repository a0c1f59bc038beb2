"""Output of commands: colored on a terminal, plain in a pipe; lines are always escaped."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import yaml

from holdfast.webhook.errors import CommandError
from holdfast.webhook.model import messages
from holdfast.webhook.report import table as tables

_MOST_NAMED = 20
_CELL = 1_000
"""Maximum characters of a table cell: a longer one would pad every row."""

Styled = tuple[str, str]
"""A line and its style, which may be empty."""

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # 10 times as fast, if libyaml is there


def write(lines: Iterable[Styled], *, err: bool = False) -> None:
    """Write lines, colored on a terminal unless NO_COLOR is set; long lines are not wrapped."""
    stream = sys.stderr if err else sys.stdout
    colored = (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    text = "".join(
        f"{_styled(messages.escape(line), style) if colored else messages.escape(line)}\n"
        for line, style in lines
    )
    click.echo(text, nl=False, file=stream, color=colored)


def report(text: str) -> None:
    """Write a progress line to standard error."""
    write([(text, "")], err=True)


def _styled(line: str, style: str) -> str:
    """Return a line in a style such as `bold red`."""
    words = style.split()
    color = next((word for word in words if word not in {"bold", "dim"}), None)
    return click.style(line, fg=color, bold="bold" in words or None, dim="dim" in words or None)


def check_outcome(problems: Sequence[str], total: int) -> None:
    """Report the failures among `total` objects. Raises CommandError if there are any."""
    if not problems:
        return
    if total == 1:
        raise CommandError(problems[0])
    write([(problem, "red") for problem in problems], err=True)
    raise CommandError(f"{len(problems)} of {total} failed; the reasons are above")


def confirm(question: str, names: Sequence[str] = (), *, can_ask: bool) -> None:
    """Ask for confirmation, and abort on a no. Raises CommandError if `can_ask` is false."""
    if not can_ask:
        raise CommandError(f"cannot ask without a terminal ({question}); add --yes")
    write((f"  {name}", "") for name in names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        click.echo(f"  and {len(names) - _MOST_NAMED} more")
    click.confirm(question, abort=True)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int], str] = lambda _: "",
    *,
    headless: bool = False,
) -> list[Styled]:
    """Return a table as styled lines."""
    cells = [[messages.shorten(messages.escape(cell), _CELL) for cell in row] for row in rows]
    header, *lines = tables.lines(head, cells)
    styled = [(line, style(number)) for number, line in enumerate(lines)]
    return styled if headless else [(header, "bold"), *styled]


def write_text(text: str) -> None:
    """Write text; on a terminal, escape control characters except newlines and tabs."""
    if sys.stdout.isatty():
        text = re.sub(r"[^\n\t]+", lambda match: messages.escape(match[0]), text)
    click.echo(text, nl=False, color=True)


def write_document(document: Any, output: str) -> None:
    """Write a document as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(yaml.dump(document, Dumper=_Dumper, sort_keys=False), nl=False)
