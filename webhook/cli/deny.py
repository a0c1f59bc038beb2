"""`holdfast deny`: deny held pods that wait for an approval."""

from __future__ import annotations

import click

from holdfast.webhook.cli import commands, options
from holdfast.webhook.cli.approve import decide
from holdfast.webhook.cli.selection import PodChoice, pod_choice
from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import reasons

EXAMPLES = """\b
Examples:
  holdfast deny web-0 --reason "change freeze until Monday"
  holdfast deny -l app=web --yes"""


@commands.command(epilog=EXAMPLES)
@pod_choice("deny")
@click.option("--reason", default="", help="The reason, which the pod's Event shows.")
@options.dry_run
@options.target
def deny(*, choice: PodChoice, reason: str, target: options.Target) -> None:
    """Deny held pods that wait for an approval. They stay held.

    You need the same permissions as for `holdfast approve`. Denied pods can still be approved.
    """
    try:
        text = reasons.parse(reason) if reason else ""
    except InvalidValueError as exc:
        raise click.UsageError(f"--reason: {exc}") from None
    decide(target, choice, denied=text)
