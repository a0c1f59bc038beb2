"""Find a command by its name, and write a file for one."""

from pathlib import Path

import click

from holdfast.webhook.cli import main


def command(name: str) -> click.Command:
    cmd = main.cli.get_command(click.Context(main.cli), name)
    assert cmd is not None
    return cmd


def written(folder: Path, text: str) -> str:
    """Write a file, and return its path."""
    file = folder / "file.yaml"
    file.write_text(text)
    return str(file)
