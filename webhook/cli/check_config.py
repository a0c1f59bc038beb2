"""`holdfast check-config`: validate a configuration file."""

import json
from pathlib import Path

import click

from holdfast.webhook import plugins
from holdfast.webhook.cli import options
from holdfast.webhook.config import schema as schemas
from holdfast.webhook.runtime import pipelines


@click.command("check-config", epilog="Example: holdfast check-config holdfast.yaml")
@click.argument("file", type=options.FILE, required=False)
@click.option(
    "--schema",
    is_flag=True,
    help="Print the JSON Schema of the file, including all installed plugins.",
)
def check_config(*, file: Path | None, schema: bool) -> None:
    """Check a configuration file."""
    if schema:
        click.echo(json.dumps(schemas.schema(plugins.registry()), indent=2))
        return
    if file is None:
        raise click.MissingParameter(param_type="argument", param_hint="'FILE'")
    profiles = pipelines.load_profiles(pipelines.Setup(file))
    for profile in profiles.by_name.values():
        names = ", ".join(plugin.name for plugin in profile.plugins) or "no plugin"
        click.echo(f"{file}: profile {profile.name}: {names}")
