"""`python -m demo run` and `python -m demo up`, which `make run` and `make up` call."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from controlplane.errors import ControlPlaneError
from demo import playground, walkthrough
from demo.command import CommandError
from holdfast.webhook.errors import HoldfastError

BUILD = Path(__file__).resolve().parent.parent / "build"
INTERRUPTED = 130


@click.group()
def cli() -> None:
    """Try Holdfast on a local Kubernetes control plane."""


@cli.command()
def run() -> None:
    """Hold a pod for 15 s, release it, wait until it runs, and stop."""
    with _one_line_errors():
        outcome = walkthrough.run(BUILD)
        click.echo(
            f"holdfast: delay {outcome.delay_s} s, released after {outcome.released_s:.2f} s, "
            f"running on {outcome.node}"
        )


@cli.command()
@click.option("--nodes", default=3, show_default=True, help="Number of nodes.")
def up(nodes: int) -> None:
    """Run a cluster with Holdfast until Ctrl-C."""
    with _one_line_errors():
        playground.run(BUILD, nodes)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    for number in (signal.SIGINT, signal.SIGTERM):  # background jobs of a script ignore SIGINT
        signal.signal(number, _interrupt)
    try:
        yield
    except (ControlPlaneError, CommandError, HoldfastError, walkthrough.WalkthroughError) as exc:
        notes = "".join(f"\n{note}" for note in getattr(exc, "__notes__", ()))
        click.echo(f"holdfast: {exc}{notes}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("holdfast: stopped; nothing is left running", err=True)
        sys.exit(INTERRUPTED)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt, as Ctrl-C does, so that the with statements clean up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    cli()
