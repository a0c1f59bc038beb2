"""Options of the commands that run Holdfast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.webhook import sockets
from holdfast.webhook.cli import commands, options
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.telemetry import logs

health_host = options.option(
    "--health-host",
    default=sockets.ANY,
    help=f"The address of the health port; {sockets.ANY} means all addresses, including IPv4.",
)
namespace = click.option(
    "-n",
    "--namespace",
    callback=options.or_global,
    help="Holdfast's namespace; by default, the namespace of this pod.",
)


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
        flags = ["--log-level", self.log_level, "--log-format", self.log_format]
        for name in self.disable_plugin:
            flags += ["--disable-plugin", name]
        return [*flags, "--config", str(self.config_path)] if self.config_path else flags


DISABLE_PLUGIN = click.option(
    "--disable-plugin",
    multiple=True,
    envvar="HOLDFAST_DISABLE_PLUGINS",
    show_envvar=True,
    help="Disable a plugin in all profiles. Repeatable.",
)


def process(command: options.Function) -> options.Function:
    """Add the options of long-running commands, passed as `process`."""
    return options.grouped(
        command,
        "process",
        Process,
        options.config,
        DISABLE_PLUGIN,
        click.option(
            "--ready-file",
            type=commands.FILE,
            hidden=True,
            help="A file to write host:port to once everything works.",
        ),
        click.option(
            "--exit-with-stdin",
            is_flag=True,
            hidden=True,
            help="Exit when standard input is closed, so that nothing is left running if the "
            "parent is killed.",
        ),
        options.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            envvar="HOLDFAST_LOG_LEVEL",
            show_envvar=True,
            help="The log level; debug also logs each admitted pod.",
        ),
        options.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            envvar="HOLDFAST_LOG_FORMAT",
            show_envvar=True,
            help="The log format.",
        ),
    )
