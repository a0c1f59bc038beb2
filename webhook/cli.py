"""The `holdfast` command."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click

from webhook import guard, logs, process, wiring
from webhook.errors import HoldfastError, StartError
from webhook.framework import Handle
from webhook.lookup import ClusterLookup
from webhook.metrics import ControllerMetrics, ServerMetrics
from webhook.settings import ServerSettings

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False, path_type=Path)


def _config_option(command: F) -> F:
    return click.option(
        "--config", "config_path", type=_FILE, help="The configuration file; defaults without one."
    )(command)


def _log_option(command: F) -> F:
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default="info", show_default=True)(command)


def _cluster_options(command: F) -> F:
    command = click.option("--context", help="The kubeconfig's context to use.")(command)
    return click.option(
        "--kubeconfig", type=_FILE, help="The kubeconfig; found as kubectl does without one."
    )(command)


def _exit_option(command: F) -> F:
    return click.option(
        "--exit-with-stdin",
        is_flag=True,
        help="End when standard input ends, so that a parent that is killed leaves nothing behind.",
    )(command)


def _ready_option(command: F) -> F:
    return click.option(
        "--ready-file", type=_FILE, help="Written with host:port once everything works."
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("holdfast"), prog_name="holdfast")
def cli() -> None:
    """Hold pods back, keep VMs on their node, place workloads: beside the stock scheduler."""


@cli.command(epilog="Example: holdfast serve --cert tls.crt --key tls.key --port 8443")
@_config_option
@_cluster_options
@click.option("--host", default="0.0.0.0", show_default=True, help="The address to listen on.")  # noqa: S104
@click.option("--port", default=8443, show_default=True, help="The port; 0 takes a free one.")
@click.option("--cert", type=_FILE, required=True, help="The certificate, PEM.")
@click.option("--key", type=_FILE, required=True, help="The certificate's key, PEM.")
@_ready_option
@_exit_option
@_log_option
def serve(
    *,
    config_path: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    host: str,
    port: int,
    cert: Path,
    key: Path,
    ready_file: Path | None,
    exit_with_stdin: bool,
    log_level: str,
) -> None:
    """Run the admission server."""
    from webhook import app, asgi, gunicorn_conf  # noqa: PLC0415 - heavy, and this command's alone

    logs.set_up(log_level.upper())
    metrics = ServerMetrics()
    handle = Handle()
    handle.connect(lookup=ClusterLookup(lambda: wiring.connect(kubeconfig, context)))
    pipeline = wiring.pipeline(config_path, metrics.observe_plugin, handle)

    def make_app() -> asgi.Bridge:
        flask = app.create_app(pipeline, metrics)
        return asgi.Bridge(
            flask.wsgi_app,
            prepare=app.prepare(pipeline),
            on_deadline=app.deadline_reporter(pipeline, metrics),
            body_limit=app.BODY_LIMIT,
        )

    gunicorn_conf.run(
        make_app,
        ServerSettings(
            host=host,
            port=port,
            certfile=cert,
            keyfile=key,
            ready_file=ready_file,
            exit_with_stdin=exit_with_stdin,
        ),
    )


@cli.command(epilog="Example: holdfast controller --kubeconfig ~/.kube/config")
@_config_option
@_cluster_options
@click.option("--health-host", default="0.0.0.0", show_default=True)  # noqa: S104
@click.option("--health-port", default=8081, show_default=True, help="0 takes a free one.")
@_ready_option
@_exit_option
@_log_option
def controller(
    *,
    config_path: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    health_host: str,
    health_port: int,
    ready_file: Path | None,
    exit_with_stdin: bool,
    log_level: str,
) -> None:
    """Run the controller that releases held pods on time."""
    from webhook.health import HealthServer  # noqa: PLC0415

    logs.set_up(log_level.upper())
    metrics = ControllerMetrics()
    _, _, loop = wiring.controller(kubeconfig, context, config_path, metrics)
    health = HealthServer(
        health_host, health_port, ready=lambda: loop.synced, exposition=metrics.exposition
    )
    health.start()
    process.on_signals(loop.stop)
    if exit_with_stdin:
        process.on_end_of_stdin(loop.stop)
    if ready_file is not None:
        process.write_whole(ready_file, f"{health_host}:{health.port}\n")
    try:
        loop.run()
    finally:
        health.stop()
    if loop.failed:
        raise StartError("the controller died; its reason is above")


@cli.command(epilog="Example: holdfast dev --kubeconfig ~/.kube/config")
@_config_option
@_cluster_options
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="This machine's address, as the cluster's API server reaches it.",
)
@click.option("--port", default=0, help="The port; a free one without it.")
@click.option("--health-port", default=0, help="The controller's metrics; a free port without it.")
@_ready_option
@_exit_option
@_log_option
def dev(
    *,
    config_path: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    host: str,
    port: int,
    health_port: int,
    ready_file: Path | None,
    exit_with_stdin: bool,
    log_level: str,
) -> None:
    """Run server and controller against a cluster, from here, until Ctrl-C.

    Makes certificates, registers the webhooks by URL, and unregisters them at the end.
    """
    from webhook import dev as running  # noqa: PLC0415
    from webhook.health import HealthServer  # noqa: PLC0415

    logs.set_up(log_level.upper())
    metrics = ControllerMetrics()
    cluster, pipeline, loop = wiring.controller(kubeconfig, context, config_path, metrics)
    cluster.request("GET", "/version")
    stop = threading.Event()
    process.on_signals(stop.set)
    if exit_with_stdin:
        process.on_end_of_stdin(stop.set)

    health = HealthServer(
        "127.0.0.1", health_port, ready=lambda: loop.synced, exposition=metrics.exposition
    )
    health.start()

    def ready(address: str) -> None:
        click.echo(
            f"holdfast: serving {cluster.server} from {address}; Ctrl-C ends and unregisters"
        )
        click.echo(f"holdfast: the controller's metrics: http://127.0.0.1:{health.port}/metrics")
        if ready_file is not None:
            process.write_whole(ready_file, f"{address}\n")

    arguments = ["--log-level", log_level]
    arguments += ["--config", str(config_path)] if config_path else []
    arguments += ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
    arguments += ["--context", context] if context else []
    try:
        running.run(
            cluster,
            pipeline,
            loop,
            host=host,
            port=port,
            serve_arguments=arguments,
            stop=stop,
            ready=ready,
        )
    finally:
        health.stop()
    click.echo("holdfast: unregistered; pods that are still held wait for the next controller")


@cli.command("check-config", epilog="Example: holdfast check-config holdfast.yaml")
@click.argument("file", type=_FILE)
def check_config(file: Path) -> None:
    """Check a configuration file, as a start would."""
    pipeline = wiring.pipeline(file, wiring.unobserved)
    for profile in pipeline.profiles.values():
        names = ", ".join(plugin.name for plugin in profile.plugins) or "no plugin"
        click.echo(f"{file}: profile {profile.name}: {names}")


@cli.command()
@_config_option
def policies(*, config_path: Path | None) -> None:
    """Print the admission policies that guard holds, and Holdfast itself, as YAML."""
    pipeline = wiring.pipeline(config_path, wiring.unobserved)
    click.echo(guard.manifest(guard.policies(pipeline)), nl=False)


def main() -> None:
    """Run the command; an error of Holdfast's own is one line, and exit status 1."""
    try:
        cli.main(standalone_mode=True)
    except HoldfastError as exc:
        click.echo(f"holdfast: {exc}", err=True)
        sys.exit(1)
