"""The `holdfast` command, its subcommands and its error output."""

import importlib
import sys
from pathlib import Path

import click
from click.exceptions import NoSuchCommand

from holdfast.webhook import process
from holdfast.webhook.cli import commands, stored_help
from holdfast.webhook.errors import (
    ApiStatusError,
    CredentialsError,
    HoldfastError,
    UnreachableError,
)
from holdfast.webhook.model import messages

COMMANDS = {
    "approve": "Approve held pods that wait for an approval.",
    "check-config": "Validate a configuration file.",
    "completion": "Print the completion script for a shell.",
    "controller": "Run the controller that releases held pods on time.",
    "describe": "Same as explain.",
    "deny": "Deny held pods that wait for an approval. They stay held.",
    "dev": "Run Holdfast on this machine for a cluster, until Ctrl-C.",
    "doctor": "Check webhooks, certificates, the guard, the leader, clocks and overdue pods.",
    "explain": "Explain why a pod is held, and what to do about it.",
    "freeze": "Freeze a namespace: release none of its held pods until it is thawed.",
    "list": "List held pods, with the reason and the time left.",
    "options": "List the global flags.",
    "policies": "Print the guard's admission policies, as YAML.",
    "preview": "Show what Holdfast would change in manifests.",
    "rbac": "Print the ClusterRole that holdfast.dev/after needs, as YAML.",
    "release": "Release held pods now, by name, by workload or by label.",
    "serve": "Run the admission server.",
    "sticky": "Show and change the nodes that VMs return to.",
    "thaw": "Thaw a namespace: end its freeze.",
    "uninstall": "Remove Holdfast from the cluster without leaving pods stuck.",
    "version": "Show the versions of the command, the installation and the cluster.",
}
"""All commands and their short help.

Each command is a function of the same name in the module `holdfast.webhook.cli.<name>`, or in that
of `_MODULES`. Modules are imported only when their command runs, to keep `--help` fast.
"""

SERVERS = ("controller", "dev", "serve")
"""Commands that run Holdfast itself."""
_MODULES = {
    "deny": "approve",
    "describe": "explain",
    "options": "global_options",
    "rbac": "policies",
    "thaw": "freeze",
}
"""The modules of commands whose module has another name."""

_ADVICE = {
    401: "log in again, or choose another --context",
    403: "ask an admin for this permission, or choose a namespace (-n) where you have it",
}


class _LazyGroup(commands.Group):
    """A group whose commands are imported on demand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, treating `help COMMAND` and an empty command line as --help."""
        if args[:1] == ["help"] or not args:
            args = [*args[1:], "--help"]
        text = stored_help.read(args, str(ctx.info_name))
        if text is not None and not ctx.resilient_parsing:  # set during shell completion
            click.echo(text)
            ctx.exit()
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"holdfast.webhook.cli.{_MODULES.get(name, name)}")
        command = getattr(module, name)
        assert isinstance(command, click.Command)  # noqa: S101 - COMMANDS lists only commands
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command, suggesting similar names for an unknown one."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as exc:  # click only knows imported commands
            raise NoSuchCommand(exc.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, is_server in (("Commands", False), ("Commands that run Holdfast", True)):
            with formatter.section(title):
                rows = sorted(row for row in COMMANDS.items() if (row[0] in SERVERS) is is_server)
                formatter.write_dl(rows)


@click.group(cls=_LazyGroup)
@click.version_option(package_name="holdfast", message="holdfast %(version)s")
def cli() -> None:
    """Delay pods, keep VMs on their nodes and place workloads, with the standard scheduler."""


def main() -> None:
    """Run the command. On a HoldfastError, print one line and exit with status 1."""
    process.exit_on_signals()
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    try:
        cli.main(prog_name="kubectl holdfast" if is_plugin else "holdfast", standalone_mode=True)
    except HoldfastError as exc:
        click.echo(error_line(exc), err=True)
        sys.exit(1)


def complete() -> None:
    """Print completions for kubectl, then the directive `:4`, which disables file names."""
    from holdfast.webhook.cli.completion import lines  # noqa: PLC0415 - keeps --help fast

    click.echo("\n".join([*lines(cli, sys.argv[1:]), ":4"]))


def error_line(exc: HoldfastError) -> str:
    """Return an error on one line, in the format of click and kubectl."""
    head, text = "Error", with_advice(exc)
    if isinstance(exc, ApiStatusError) and exc.reason:
        head, text = f"Error from server ({exc.reason})", text.removeprefix(f"HTTP {exc.status}: ")
    return messages.escape(f"{head}: {text}")  # the message may quote another webhook


def with_advice(exc: HoldfastError) -> str:
    """Return the error message, with advice if the API server is unreachable or denies access."""
    if isinstance(exc, UnreachableError) and not isinstance(exc, CredentialsError):
        return (
            f"{exc}; check that the cluster is running, and check --kubeconfig, --context and "
            "KUBECONFIG"
        )
    if isinstance(exc, ApiStatusError):
        advice = _ADVICE.get(exc.status)
        return f"{exc}; {advice}" if advice else str(exc)
    return str(exc)
