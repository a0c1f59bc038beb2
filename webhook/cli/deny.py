"""`holdfast deny`: deny held pods that wait for an approval."""

from __future__ import annotations

import click

from holdfast.webhook.cli import commands, options
from holdfast.webhook.cli.approve import approvable, decide
from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import reasons

EXAMPLES = """\b
Examples:
  holdfast deny web-0 --reason "change freeze until Monday"
  holdfast deny deployment/web -n shop"""


@commands.command(epilog=EXAMPLES)
@approvable
@click.option("--reason", default="", help="Why, for the pod's Event.")
@options.dry_run
@options.target
def deny(*, names: tuple[str, ...], reason: str, target: options.Target) -> None:
    """Deny held pods that wait for an approval: they stay held.

    You need the same permissions as for `holdfast approve`, which can still approve them later.
    """
    try:
        text = reasons.parse(reason) if reason else ""
    except InvalidValueError as exc:
        raise click.UsageError(f"--reason: {exc}") from None
    decide(target, names, denied=text)
