"""`holdfast check-config`: validate a configuration file."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from holdfast.webhook import plugins, safe_yaml
from holdfast.webhook.cli import commands, server_options, terminal
from holdfast.webhook.config import config, problems
from holdfast.webhook.config import schema as schemas
from holdfast.webhook.errors import CommandError
from holdfast.webhook.report import table
from holdfast.webhook.runtime import pipelines


@commands.command("check-config", epilog="Example: holdfast check-config holdfast.yaml")
@click.argument("file", type=commands.FILE, required=False)
@click.option("-f", "--filename", type=commands.FILE, help="The file; - is standard input.")
@server_options.DISABLE_PLUGIN
@click.option(
    "--schema",
    is_flag=True,
    help="Print the JSON Schema of the file, with all installed plugins.",
)
def check_config(
    *, file: Path | None, filename: Path | None, disable_plugin: tuple[str, ...], schema: bool
) -> None:
    """Validate a configuration file."""
    if schema:
        click.echo(json.dumps(schemas.schema(plugins.registry()), indent=2))
        return
    file = file or filename
    if file is None:
        raise click.MissingParameter(param_type="argument", param_hint="'FILE'")
    try:
        text = safe_yaml.read(sys.stdin.buffer) if str(file) == "-" else config.content(file)
    except safe_yaml.SizeError as exc:
        raise CommandError(f"standard input {exc}: shorten it") from None
    messages = [*problems.find(text, str(file), partial(_build, str(file), disable_plugin))]
    terminal.write([(message, "") for message in messages], err=True)
    if messages:
        count = table.counted(len(messages), "problem")
        raise CommandError(f"{file}: {count}; correct the lines above")
    profiles = pipelines.load_profiles(
        pipelines.Setup(None, disable_plugin, content=(str(file), text))
    )
    for profile in profiles.by_name.values():
        names = ", ".join(plugin.name for plugin in profile.plugins) or "no plugin"
        terminal.write([(f"{file}: profile {profile.name}: {names}", "")])


def _build(source: str, disabled: Sequence[str], document: Any) -> None:
    registry = plugins.registry()
    configuration = config.without(config.read(document, source), disabled, registry, source=source)
    pipelines.build_profiles(configuration, registry, source=source)
