"""The `holdfast` command: what it is made of, and how it ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import ShellComplete

from webhook.errors import ApiStatusError, HoldfastError, UnreachableError

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "check-config": "Check a configuration file, as a start would.",
        "controller": "Run the controller that releases held pods on time.",
        "dev": "Run server and controller against a cluster, from here, until Ctrl-C.",
        "doctor": "Examine the installation: webhooks, certificates, leader, clocks, overdue pods.",
        "explain": "Say in words why a pod waits: what it asks, who decided, and what to do.",
        "list": "List the pods that are held: by what, since when, for how long still.",
        "policies": "Print the admission policies that guard holds, and Holdfast itself, as YAML.",
        "preview": "Show what Holdfast would make of the pods and templates in files, and why.",
        "release": "Release held pods now, whatever they wait for: those named, or those that -l "
        "selects.",
        "serve": "Run the admission server.",
        "sticky": "Show and change the nodes that VMs come back to.",
        "uninstall": "Take Holdfast out of the cluster, in an order that leaves no pod stuck.",
        "version": "Tell the versions of this command and of the cluster.",
    }
)
"""Each command with its line in the list of all.

It is the function of its name in `webhook.commands.<name>`, which is imported when it is called:
the list needs none of them.
"""


_CURES: Mapping[int, str] = MappingProxyType(
    {
        401: "log in again, or name another --context",
        403: "ask an admin for that right, or name a namespace (-n) where you have it",
    }
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"webhook.commands.{name}"), name)
        assert isinstance(command, click.Command)  # noqa: S101 - by COMMANDS' own rule
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; where there is none, name the one that is nearest."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as exc:  # click knows only commands that are imported
            raise NoSuchCommand(exc.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of all commands without importing one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast")
def cli() -> None:
    """Hold pods back, keep VMs on their node, place workloads: beside the stock scheduler."""


def main() -> None:
    """Run the command; an error of Holdfast's own is one line, and exit status 1."""
    plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    try:
        cli.main(prog_name="kubectl holdfast" if plugin else "holdfast", standalone_mode=True)
    except HoldfastError as exc:
        click.echo(f"holdfast: {told(exc)}", err=True)
        sys.exit(1)


def complete() -> None:
    """Complete a line for kubectl: possible words, then `:4`, which means no names of files."""
    *words, last = sys.argv[1:] or [""]
    found = ShellComplete(cli, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions(words, last)
    for one in found:
        click.echo(f"{one.value}\t{one.help or ''}".rstrip())
    click.echo(":4")


def told(exc: HoldfastError) -> str:
    """Say an error with its cure, where that depends on who asked."""
    if isinstance(exc, UnreachableError):
        return f"{exc}; check that the cluster runs, and --kubeconfig, --context, KUBECONFIG"
    if isinstance(exc, ApiStatusError):
        cure = _CURES.get(exc.status)
        return f"{exc}; {cure}" if cure else str(exc)
    return str(exc)
