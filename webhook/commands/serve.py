"""`holdfast serve`: the admission server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from webhook import app, asgi, gunicorn_conf, listening, registration, wiring
from webhook.commands import options
from webhook.errors import StartError
from webhook.framework import Handle
from webhook.health import HealthServer
from webhook.lookup import ClusterLookup
from webhook.metrics import ServerMetrics
from webhook.settings import ServerSettings
from webhook.tls import Validity


@click.command(epilog="Example: holdfast serve --cert tls.crt --key tls.key --port 8443")
@options.process
@options.target
@click.option(
    "--host",
    default=ServerSettings.host,
    show_default=True,
    help=f"The address to listen on; {listening.ANY} stands for all, of IPv4 too.",
)
@click.option("--port", default=8443, show_default=True, help="The port; 0 takes a free one.")
@click.option("--cert", type=options.FILE, required=True, help="The certificate, PEM.")
@click.option("--key", type=options.FILE, required=True, help="The certificate's key, PEM.")
@click.option(
    "--await-certificate",
    is_flag=True,
    help="Start without a usable certificate, and be ready when there is one.",
)
@click.option(
    "--client-ca",
    type=options.FILE,
    help="PEM: serve only clients with a certificate of this CA, as an API server may have. "
    "Needs --health-port.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0.0),
    default=ServerSettings.drain,
    show_default=True,
    help="Seconds after SIGTERM in which requests are still taken, each answered with "
    "Connection: close.",
)
@options.health_host
@click.option(
    "--health-port",
    type=int,
    help="Health and metrics in plain HTTP, beside those on the main port.",
)
def serve(
    *,
    process: options.Process,
    target: options.Target,
    host: str,
    port: int,
    cert: Path,
    key: Path,
    await_certificate: bool,
    client_ca: Path | None,
    drain: float,
    health_host: str,
    health_port: int | None,
) -> None:
    """Run the admission server."""
    if client_ca is not None and health_port is None:
        raise StartError(
            "--client-ca keeps probes and metrics from the main port; give them one of their own "
            "with --health-port"
        )
    process.set_up_logs()
    metrics = ServerMetrics()
    validity = Validity(time.time)

    def on_certificate(expiry: float) -> None:
        validity.extend(expiry)
        metrics.certificate_expiry.set(expiry)

    settings = ServerSettings(
        host=host,
        port=port,
        certfile=cert,
        keyfile=key,
        await_certificate=await_certificate,
        client_ca=client_ca,
        drain=drain,
        ready_file=process.ready_file,
        exit_with_stdin=process.exit_with_stdin,
        on_certificate=on_certificate,
        on_reload_failure=metrics.certificate_failures.inc,
    )
    health = None if health_port is None else (health_host, health_port)
    gunicorn_conf.run(
        _application(process.setup, target, metrics, validity.lasts, health), settings
    )


def _application(
    setup: wiring.Setup,
    target: options.Target,
    metrics: ServerMetrics,
    ready: Callable[[], bool],
    health: tuple[str, int] | None,
) -> Callable[[], asgi.Bridge]:
    """Make the pipeline now, so that what is wrong with it stops the start."""
    handle = Handle()
    lookup = ClusterLookup(
        lambda: wiring.connect(target.kubeconfig, target.context), observe=metrics.observe_lookup
    )
    handle.connect(lookup=lookup)
    pipeline = wiring.pipeline(setup, metrics.observe_plugin, handle)
    metrics.configuration.info({"digest": wiring.digest(setup)})

    def make_app() -> asgi.Bridge:
        flask = app.create_app(pipeline, metrics, ready=ready)
        if health is not None:
            HealthServer(
                *health,
                ready=ready,
                exposition=metrics.exposition,
                conditions=registration.digest(pipeline),
            ).start()
        return asgi.Bridge(
            flask.wsgi_app,
            prepare=app.prepare(pipeline),
            on_startup=lambda: wiring.look_around(pipeline, lookup),
            on_deadline=app.deadline_reporter(pipeline, metrics),
            on_full=app.full_reporter(metrics),
            refuse=app.refuse_pod,
        )

    return make_app
