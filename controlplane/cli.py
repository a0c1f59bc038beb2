"""`python -m controlplane`: build it, or run one until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from controlplane.build import ensure
from controlplane.components import NAMES
from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane

_CHECK_INTERVAL = 1.0  # seconds between looks at whether all components still run


@click.group(help="A real Kubernetes on loopback: etcd, its components, and kwok for nodes.")
def main() -> None:
    """Run `python -m controlplane`."""


@main.command()
def build() -> None:
    """Build the programs into the user's cache, and print the folder."""
    with _one_line_errors():
        click.echo(ensure())


@main.command()
@click.option("--nodes", default=3, show_default=True, help="How many nodes kwok pretends.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The API server's; default: a free one."
)
@click.option("--audit", is_flag=True, help="Write an audit log.")
def up(*, nodes: int, port: int | None, audit: bool) -> None:
    """Run a cluster until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore SIGINT
        signal.signal(number, _terminate)
    with _one_line_errors(), ControlPlane(nodes=nodes, port=port, audit=audit) as control_plane:
        click.echo(f"export KUBECONFIG={control_plane.kubeconfig}")
        click.echo(f"export PATH={control_plane.bin}:$PATH")
        if audit:
            click.echo(f"# audit log: {control_plane.audit_log}")
        click.echo("# running; Ctrl-C stops it and removes everything", err=True)
        while True:
            time.sleep(_CHECK_INTERVAL)
            for name in NAMES:
                control_plane.process(name).check()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Show our errors without a trace, and take Ctrl-C for the normal end that it is."""
    try:
        yield
    except ControlPlaneError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"controlplane: {error}{notes}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(0)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """Leave through the with statements, as Ctrl-C does."""
    raise KeyboardInterrupt
