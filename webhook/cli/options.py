"""Options shared by several commands; each group reaches its command as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.webhook import sockets
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.registration.configurations import NAME
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.telemetry import logs

if TYPE_CHECKING:
    from holdfast.webhook.kube.client import Cluster

Function = Callable[..., Any]

FILE = click.Path(dir_okay=False, path_type=Path)

option = functools.partial(click.option, show_default=True)
"""Makes an option whose help shows its default."""

config = click.option(
    "--config",
    "config_path",
    type=FILE,
    help="The configuration file; by default, the built-in defaults.",
)
health_host = option(
    "--health-host",
    default=sockets.ANY,
    help=f"The address of the health port; {sockets.ANY} means all addresses, including IPv4.",
)

_NAMESPACE: Any = {
    "default": OWN_NAMESPACE,
    "envvar": "HOLDFAST_NAMESPACE",
    "show_envvar": True,
    "help": "The namespace in which Holdfast is installed.",
}
own_namespace = option("--namespace", "own", **_NAMESPACE)
holdfast_namespace = option("--holdfast-namespace", "own", **_NAMESPACE)
"""For commands whose --namespace is that of pods."""

webhook_configuration = option(
    "--webhook-configuration", default=NAME, help="The name of both webhook configurations."
)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster, as given by kubectl's options of the same names."""

    kubeconfig: Path | None = None
    context: str | None = None

    def connect(self, on_answer: Callable[..., None] | None = None) -> Cluster:
        """Connect to it. Raises StartError."""
        from holdfast.webhook.kube.client import Cluster  # noqa: PLC0415 - slow to import

        return Cluster.connect(self.kubeconfig, self.context, on_answer=on_answer)

    def arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        found = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [*found, "--context", self.context] if self.context else found


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects, as selected by kubectl's options of the same names."""

    namespace: str | None = None
    all_namespaces: bool = False
    selector: str = ""

    def within(self, cluster: Cluster) -> str:
        """Return the namespace; empty for all namespaces."""
        return "" if self.all_namespaces else self.namespace or cluster.namespace


@dataclass(frozen=True, slots=True)
class Process:
    """Configuration and logging of a long-running command."""

    config_path: Path | None = None
    disable_plugin: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: logs.Format = "text"
    ready_file: Path | None = None
    exit_with_stdin: bool = False

    @property
    def setup(self) -> pipelines.Setup:
        """The configuration file and the disabled plugins."""
        return pipelines.Setup(self.config_path, self.disable_plugin)

    def arguments(self) -> list[str]:
        """Return configuration and logging as command-line arguments."""
        found = ["--log-level", self.log_level, "--log-format", self.log_format]
        for name in self.disable_plugin:
            found += ["--disable-plugin", name]
        return [*found, "--config", str(self.config_path)] if self.config_path else found


namespace = click.option("-n", "--namespace", help="The namespace; by default, the context's.")
output = option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    help="The output format; json and yaml are for scripts.",
)


def scope(command: Function) -> Function:
    """Give a command `scope`: the objects that -n, -A and -l select."""
    return grouped(
        command,
        "scope",
        Scope,
        namespace,
        click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."),
        click.option("-l", "--selector", default="", help="A label selector, such as app=web."),
    )


def target(command: Function) -> Function:
    """Give a command `target`: the cluster that --kubeconfig and --context name."""
    return grouped(
        command,
        "target",
        Target,
        click.option(
            "--kubeconfig", type=FILE, help="The kubeconfig; by default, found as kubectl does."
        ),
        click.option("--context", help="The kubeconfig context."),
    )


def process(command: Function) -> Function:
    """Give a command `process`: the options of long-running commands."""
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
            help="Disable a plugin, whatever the configuration says. Can be repeated.",
        ),
        click.option(
            "--ready-file", type=FILE, help="A file to write host:port to once everything works."
        ),
        click.option(
            "--exit-with-stdin",
            is_flag=True,
            help="Exit when standard input is closed, so that nothing is left running if the "
            "parent is killed.",
        ),
        option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            envvar="HOLDFAST_LOG_LEVEL",
            show_envvar=True,
            help="The log level; debug also logs each admitted pod.",
        ),
        option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            envvar="HOLDFAST_LOG_FORMAT",
            show_envvar=True,
            help="The log format.",
        ),
    )


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
