"""`holdfast check-config`: what a start would say about a configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from webhook import plugins, wiring
from webhook import schema as schemas
from webhook.commands import options


@click.command("check-config", epilog="Example: holdfast check-config holdfast.yaml")
@click.argument("file", type=options.FILE, required=False)
@click.option(
    "--schema",
    is_flag=True,
    help="Print the JSON Schema of such a file instead, with the plugins that are installed.",
)
def check_config(*, file: Path | None, schema: bool) -> None:
    """Check a configuration file, as a start would."""
    if schema:
        click.echo(json.dumps(schemas.schema(plugins.registry()), indent=2))
        return
    if file is None:
        raise click.MissingParameter(param_type="argument", param_hint="'FILE'")
    pipeline = wiring.pipeline(wiring.Setup(file), wiring.unobserved)
    for profile in pipeline.profiles.values():
        names = ", ".join(plugin.name for plugin in profile.plugins) or "no plugin"
        click.echo(f"{file}: profile {profile.name}: {names}")
