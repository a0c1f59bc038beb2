"""Find a command by its name."""

import click

from holdfast.webhook.cli import main


def command(name: str) -> click.Command:
    cmd = main.cli.get_command(click.Context(main.cli), name)
    assert cmd is not None
    return cmd
