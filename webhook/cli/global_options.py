"""`holdfast options`: list the global flags."""

import click

from holdfast.webhook.cli import commands

EXAMPLES = """\b
Examples:
  holdfast options
  holdfast --context production list -n shop
  holdfast list -n shop --context production"""


@commands.command(epilog=EXAMPLES)
def options() -> None:
    """List the global flags.

    They are written before or after the command.
    """
    ctx = click.get_current_context()
    formatter = ctx.make_formatter()
    formatter.write_dl(commands.option_rows(ctx, commands.GLOBALS, global_flags=True))
    click.echo(formatter.getvalue().rstrip("\n"))
