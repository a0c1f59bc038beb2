"""Options that several commands share; each group reaches its command as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from webhook import listening, logs, wiring

if TYPE_CHECKING:
    from webhook.cluster import Cluster

Function = Callable[..., Any]

FILE = click.Path(dir_okay=False, path_type=Path)
LEVELS = click.Choice(["debug", "info", "warning", "error"])

config = click.option(
    "--config", "config_path", type=FILE, help="The configuration file; defaults without one."
)
health_host = click.option(
    "--health-host",
    default=listening.ANY,
    show_default=True,
    help=f"The address of the health port; {listening.ANY} stands for all, of IPv4 too.",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster: as kubectl's options of these names say it."""

    kubeconfig: Path | None = None
    context: str | None = None

    def connect(self, on_answer: Callable[[Any], None] | None = None) -> Cluster:
        """Connect to it. Raises StartError."""
        return wiring.connect(self.kubeconfig, self.context, on_answer)

    def arguments(self) -> list[str]:
        """Write it as a command's arguments again."""
        found = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [*found, "--context", self.context] if self.context else found


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects: as kubectl's options of these names say it."""

    namespace: str | None = None
    all_namespaces: bool = False
    selector: str = ""

    def within(self, cluster: Cluster) -> str:
        """Name the namespace that is meant; empty for all."""
        return "" if self.all_namespaces else self.namespace or cluster.namespace


@dataclass(frozen=True, slots=True)
class Process:
    """How a command that runs until it is stopped is configured, and what it tells."""

    config_path: Path | None = None
    disable_plugin: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: logs.Format = "text"
    ready_file: Path | None = None
    exit_with_stdin: bool = False

    @property
    def setup(self) -> wiring.Setup:
        """What the process does, and without which plugins."""
        return wiring.Setup(self.config_path, self.disable_plugin)

    def set_up_logs(self) -> None:
        """Log as the options say."""
        logs.set_up(self.log_level, self.log_format)

    def arguments(self) -> list[str]:
        """Write configuration and logging as a command's arguments again."""
        found = ["--log-level", self.log_level, "--log-format", self.log_format]
        for name in self.disable_plugin:
            found += ["--disable-plugin", name]
        return [*found, "--config", str(self.config_path)] if self.config_path else found


namespace = click.option("-n", "--namespace", help="The namespace; the context's own without one.")
output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How to write it; json and yaml are for programs.",
)


def scope(command: Function) -> Function:
    """Give a command `scope`: the objects that -n, -A and -l select."""
    return grouped(
        command,
        "scope",
        Scope,
        namespace,
        click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces."),
        click.option("-l", "--selector", default="", help="Those with these labels: app=web."),
    )


def target(command: Function) -> Function:
    """Give a command `target`: the cluster that --kubeconfig and --context name."""
    return grouped(
        command,
        "target",
        Target,
        click.option(
            "--kubeconfig", type=FILE, help="The kubeconfig; found as kubectl does without one."
        ),
        click.option("--context", help="The kubeconfig's context to use."),
    )


def process(command: Function) -> Function:
    """Give a command `process`: the options of whatever runs until it is stopped."""
    return grouped(
        command,
        "process",
        Process,
        config,
        click.option(
            "--disable-plugin",
            multiple=True,
            metavar="NAME",
            envvar="HOLDFAST_DISABLE_PLUGINS",
            show_envvar=True,
            help="Leave a plugin out, whatever the configuration says. Can be repeated.",
        ),
        click.option(
            "--ready-file", type=FILE, help="Written with host:port once everything works."
        ),
        click.option(
            "--exit-with-stdin",
            is_flag=True,
            help="End when standard input ends, so that a parent that is killed leaves nothing "
            "behind.",
        ),
        click.option(
            "--log-level",
            type=LEVELS,
            default="info",
            show_default=True,
            envvar="HOLDFAST_LOG_LEVEL",
            show_envvar=True,
            help="debug also tells each admitted pod.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            envvar="HOLDFAST_LOG_FORMAT",
            show_envvar=True,
            help="Lines for people, or JSON for programs.",
        ),
    )


def grouped(
    command: Function,
    name: str,
    kind: type[Any],
    *decorators: Callable[[Function], Function],
) -> Function:
    """Add options to a command, and hand their values over as one argument of this name."""
    fields = kind.__dataclass_fields__

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        group = {field: given.pop(field) for field in fields}
        return command(**{name: kind(**group)}, **given)

    decorated: Function = called
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return decorated
