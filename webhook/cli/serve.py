"""`holdfast serve`: the admission server."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import click

from holdfast.webhook import sockets
from holdfast.webhook.cli import commands, options, server_options
from holdfast.webhook.errors import StartError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.registration import configurations
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.server import gunicorn_app
from holdfast.webhook.server.handler import AdmissionHandler
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.server.settings import ServerSettings
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ServerMetrics
from holdfast.webhook.telemetry.pages import HealthServer

_ANY_CLIENT = (
    "every certificate of --client-ca is accepted: add --client-name if that CA also signs others "
    "than the API server's, as the cluster's CA does"
)

_log = logging.getLogger("holdfast.server")


@commands.command(epilog="Example: holdfast serve --cert tls.crt --key tls.key --port 8443")
@server_options.process
@options.target
@options.option(
    "--host",
    default=ServerSettings.host,
    help=f"The address to listen on; {sockets.ANY} means all addresses, including IPv4.",
)
@options.option("--port", default=8443, help="The port; 0 picks a free port.")
@click.option("--cert", type=commands.FILE, required=True, help="The certificate (PEM).")
@click.option("--key", type=commands.FILE, required=True, help="The certificate's key (PEM).")
@click.option(
    "--await-certificate",
    is_flag=True,
    help="Start without a usable certificate, and become ready once there is one.",
)
@click.option(
    "--client-ca",
    type=commands.FILE,
    help="Accept only clients with a certificate of this CA (PEM), such as the API server. "
    "Requires --health-port.",
)
@click.option(
    "--client-name",
    "client_names",
    multiple=True,
    help="With --client-ca, accept only certificates with this common name or subject alternative "
    "name. Repeatable. Required if the CA signs certificates of others, as the cluster's CA does.",
)
@options.option(
    "--drain",
    type=commands.DURATION,
    default=f"{ServerSettings.drain:g}s",
    help="How long requests are still accepted after SIGTERM. Responses then carry "
    "Connection: close.",
)
@server_options.health_host
@click.option(
    "--health-port", type=int, help="Also serve health and metrics over plain HTTP on this port."
)
def serve(
    *,
    process: server_options.Process,
    target: options.Target,
    host: str,
    port: int,
    cert: Path,
    key: Path,
    await_certificate: bool,
    client_ca: Path | None,
    client_names: tuple[str, ...],
    drain: int,
    health_host: str,
    health_port: int | None,
) -> None:
    """Run the admission server."""
    _check_clients(client_ca, client_names, health_port)
    logs.set_up(process.log_level, process.log_format)
    if client_ca is not None and not client_names:
        _log.warning(_ANY_CLIENT)
    metrics = ServerMetrics()
    valid_until = 0.0

    def on_certificate(expiry: float) -> None:
        nonlocal valid_until
        valid_until = expiry
        metrics.certificate_expiry.set(expiry)

    def ready() -> bool:
        return time.time() < valid_until

    settings = ServerSettings(
        host=host,
        port=port,
        certfile=cert,
        keyfile=key,
        await_certificate=await_certificate,
        client_ca=client_ca,
        client_names=frozenset(client_names),
        drain=drain / 1_000,
        ready_file=process.ready_file,
        exit_with_stdin=process.exit_with_stdin,
        on_certificate=on_certificate,
        on_reload_failure=metrics.certificate_failures.inc,
    )
    health = None if health_port is None else (health_host, health_port)
    gunicorn_app.run(_application(process.setup, target, metrics, ready, health), settings)


def _check_clients(ca: Path | None, names: tuple[str, ...], health_port: int | None) -> None:
    if ca is not None and health_port is None:
        raise StartError(
            "--client-ca keeps probes and metrics off the main port; give them another port "
            "with --health-port"
        )
    if names and ca is None:
        raise StartError("--client-name needs --client-ca, the CA of the clients' certificates")


def _application(
    setup: pipelines.Setup,
    target: options.Target,
    metrics: ServerMetrics,
    ready: Callable[[], bool],
    health: tuple[str, int] | None,
) -> Callable[[], AsyncHandler]:
    """Build the pipeline at once, to fail early, and return a factory of the handler."""
    handle = Handle()
    lookup = ClusterLookup(target.connect, observe=metrics.observe_lookup)
    handle.connect(lookup=lookup)
    pipeline = pipelines.admission_pipeline(setup, metrics.observe_plugin, handle)
    metrics.configuration.info({"digest": pipelines.digest(setup)})

    def make_app() -> AsyncHandler:
        digest = configurations.digest(pipeline.profiles)
        if health is not None:
            HealthServer(*health, ready=ready, exposition=metrics.exposition, digest=digest).start()
        return AsyncHandler(
            AdmissionHandler(pipeline, metrics, digest=digest, ready=ready),
            on_startup=lambda: pipelines.start_plugins(pipeline.profiles, lookup),
        )

    return make_app
