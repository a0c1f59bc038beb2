"""`holdfast rbac`: the role that the configured kinds of `holdfast.dev/after` need."""

from pathlib import Path

import click

from holdfast.webhook.cli import commands, options
from holdfast.webhook.policies import roles
from holdfast.webhook.runtime import pipelines


@commands.command(epilog="Example: holdfast rbac --config holdfast.yaml | kubectl apply -f -")
@options.config
@options.own_namespace
def rbac(*, config_path: Path | None, own: str) -> None:
    """Print the ClusterRole that holdfast.dev/after needs, as YAML."""
    profiles = pipelines.load_profiles(pipelines.Setup(config_path))
    click.echo(roles.after_role(profiles, own), nl=False)
