"""`holdfast policies`: the guard's manifests."""

from __future__ import annotations

from pathlib import Path

import click

from webhook import guard, policy, wiring
from webhook.commands import options


@click.command(epilog="Example: holdfast policies --config holdfast.yaml > policies.yaml")
@options.config
def policies(*, config_path: Path | None) -> None:
    """Print the admission policies that guard holds, and Holdfast itself, as YAML."""
    pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved)
    click.echo(policy.manifest(guard.policies(pipeline)), nl=False)
