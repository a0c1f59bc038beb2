"""Options shared by several commands; each group is passed to its command as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from holdfast.webhook.cli import commands
from holdfast.webhook.cli.commands import FILE
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.registration.configurations import NAME
from holdfast.webhook.runtime import pipelines

if TYPE_CHECKING:
    from holdfast.webhook.cli.connection import CommandCluster, Conduct, DryRun

Function = Callable[..., Any]

option = functools.partial(click.option, show_default=True)
"""`click.option` with the default shown in the help."""

config = click.option(
    "--config",
    "config_path",
    type=FILE,
    help="The configuration file; by default, the built-in defaults.",
)
_NAMESPACE: Any = {
    "default": OWN_NAMESPACE,
    "envvar": "HOLDFAST_NAMESPACE",
    "show_envvar": True,
    "help": "The namespace in which Holdfast is installed.",
}


def or_global(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the flag's value if it follows the subcommand, else the global -n or the default."""
    if ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
        return value
    return commands.chosen(ctx).get("namespace") or value


own_namespace = option(
    "-n",
    "--namespace",
    "own",
    callback=or_global,
    **{**_NAMESPACE, "help": "The namespace in which Holdfast is installed, not that of pods."},
)
holdfast_namespace = option("--holdfast-namespace", "own", **_NAMESPACE)
"""For commands whose --namespace selects pods."""
webhook_configuration = option(
    "--webhook-configuration", default=NAME, help="The name of both webhook configurations."
)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster and how to connect to it, from kubectl's global flags."""

    namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    as_user: str | None = None
    as_groups: tuple[str, ...] = ()
    as_uid: str | None = None
    request_timeout: int = 0
    verbosity: int = 0
    dry_run: DryRun = "none"

    @property
    def overrides(self) -> dict[str, str]:
        """The cluster and the user that replace the context's."""
        values = {"cluster": self.cluster, "user": self.user}
        return {key: value for key, value in values.items() if value}

    @property
    def impersonation(self) -> list[tuple[str, str]]:
        """The impersonation headers. Raises UsageError for a group or UID without a user."""
        if (self.as_groups or self.as_uid) and not self.as_user:
            raise click.UsageError("--as-group and --as-uid need --as")
        headers = [("Impersonate-User", self.as_user), ("Impersonate-Uid", self.as_uid)]
        headers += [("Impersonate-Group", group) for group in self.as_groups]
        return [(name, value) for name, value in headers if value]

    @property
    def conduct(self) -> Conduct:
        """Timeout, verbosity and dry-run mode of requests."""
        from holdfast.webhook.cli.connection import Conduct  # noqa: PLC0415 - slow to import

        return Conduct(self.request_timeout / 1_000, self.verbosity, self.dry_run)

    @property
    def suffix(self) -> str:
        """The suffix of output lines in a dry run, as in kubectl; empty otherwise."""
        return {"none": "", "client": " (dry run)", "server": " (server dry run)"}[self.dry_run]

    def connect(self, on_answer: Callable[..., None] | None = None) -> CommandCluster:
        """Return a connection to the cluster. Raises StartError."""
        from holdfast.webhook.cli import connection  # noqa: PLC0415 - slow to import

        return connection.connect(self, on_answer)

    def arguments(self) -> list[str]:
        """Return the flags that select the cluster, as command-line arguments."""
        flags = {
            "--kubeconfig": self.kubeconfig,
            "--context": self.context,
            "--cluster": self.cluster,
            "--user": self.user,
            "--as": self.as_user,
            "--as-uid": self.as_uid,
        }
        pairs = [(name, str(value)) for name, value in flags.items() if value]
        pairs += [("--as-group", group) for group in self.as_groups]
        return [text for pair in pairs for text in pair]


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects that -A and -l select, as in kubectl."""

    all_namespaces: bool = False
    selector: str = ""

    def within(self, cluster: CommandCluster) -> str:
        """Return the selected namespace; empty for all namespaces."""
        return "" if self.all_namespaces else cluster.namespace


@dataclass(frozen=True, slots=True)
class Installed:
    """Holdfast's namespace, and a configuration file that replaces the installed one."""

    own: str = OWN_NAMESPACE
    config_path: Path | None = None

    def setup(self, cluster: CommandCluster, *, is_quiet: bool = False) -> pipelines.Setup:
        """Return the configuration. Raises ConfigurationError or ClusterError."""
        from holdfast.webhook.cli import configured  # noqa: PLC0415 - it writes to the terminal

        return configured.setup(cluster, self.own, self.config_path, is_quiet=is_quiet)


SCOPE: Sequence[Callable[[Function], Function]] = (
    click.option(
        "-A",
        "--all-namespaces",
        is_flag=True,
        callback=lambda ctx, _, value: value or "all_namespaces" in commands.chosen(ctx),
        help="All namespaces.",
    ),
    click.option("-l", "--selector", default="", help="A label selector, such as app=web."),
)
"""The options of a `Scope`."""


def scope(command: Function) -> Function:
    """Add -A and -l to a command, passed as `scope`."""
    return grouped(command, "scope", Scope, *SCOPE)


def target(command: Function) -> Function:
    """Pass the cluster that the global flags select to a command, as `target`."""

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        flags = {key: value for key, value in commands.chosen().items() if key in _TARGET}
        return command(target=Target(**flags), **given)

    return called


_TARGET = frozenset(Target.__dataclass_fields__)


def installed(command: Function) -> Function:
    """Add --holdfast-namespace and --config to a command, passed as `installed`."""
    return grouped(
        command,
        "installed",
        Installed,
        holdfast_namespace,
        click.option(
            "--config",
            "config_path",
            type=FILE,
            help="The configuration file; by default, the installed configuration, or without "
            "an installation the built-in defaults.",
        ),
    )


def dry_run(command: Function) -> Function:
    """Add --dry-run to a command; its `target` applies it."""
    return click.option(
        "--dry-run",
        type=click.Choice(["none", "client", "server"]),
        default="none",
        expose_value=False,
        callback=lambda ctx, _, value: commands.chosen(ctx).update(dry_run=value),
        help="With client, only print what would be done; with server, also send the requests, "
        "without storing the changes.",
    )(command)


def grouped(
    command: Function,
    name: str,
    kind: type[Any],
    *decorators: Callable[[Function], Function],
) -> Function:
    """Add options to a command, which receives their values as one argument."""
    fields = kind.__dataclass_fields__

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        group = {field: given.pop(field) for field in fields}
        return command(**{name: kind(**group)}, **given)

    decorated: Function = called
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return decorated
