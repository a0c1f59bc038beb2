"""`holdfast policies` and `holdfast rbac`: manifests that depend on the configuration."""

from pathlib import Path

import click

from holdfast.webhook.cli import commands, options
from holdfast.webhook.policies import builder, roles
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.runtime import pipelines


@commands.command(epilog="Example: holdfast policies --config holdfast.yaml > policies.yaml")
@options.config
@options.own_namespace
@options.option(
    "--service-account",
    default=builder.ACCOUNT,
    help="The controller's ServiceAccount.",
)
@options.webhook_configuration
def policies(
    *, config_path: Path | None, own: str, service_account: str, webhook_configuration: str
) -> None:
    """Print the guard's admission policies, as YAML."""
    profiles = pipelines.load_profiles(pipelines.Setup(config_path))
    names = builder.InstallationNames(own, service_account, webhook_configuration)
    click.echo(builder.manifest(pod_policies.policies(profiles, names)), nl=False)


@commands.command(epilog="Example: holdfast rbac --config holdfast.yaml | kubectl apply -f -")
@options.config
@options.own_namespace
def rbac(*, config_path: Path | None, own: str) -> None:
    """Print the ClusterRole that holdfast.dev/after needs, as YAML."""
    profiles = pipelines.load_profiles(pipelines.Setup(config_path))
    click.echo(roles.after_role(profiles, own), nl=False)
