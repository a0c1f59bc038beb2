"""`holdfast controller`: releases held pods on time."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import click

from holdfast.webhook import process as lifetime
from holdfast.webhook import sockets
from holdfast.webhook.cli import installation as installed
from holdfast.webhook.cli import options
from holdfast.webhook.errors import StartError
from holdfast.webhook.kube.leader_election import own_namespace
from holdfast.webhook.process import give_back_regularly
from holdfast.webhook.registration.reconciler import Mode
from holdfast.webhook.runtime import controllers, status_server
from holdfast.webhook.telemetry.health import HealthServer
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.telemetry.pages import PageServer


@click.command(epilog="Example: holdfast controller --kubeconfig ~/.kube/config")
@options.process
@options.target
@options.health_host
@click.option(
    "--health-port",
    default=8081,
    show_default=True,
    help="The port for health and metrics; 0 picks a free port.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    help="Elect a leader through a Lease; the other controllers stand by.",
)
@click.option("--namespace", help="Holdfast's namespace; by default, the namespace of this pod.")
@click.option(
    "--status-port",
    type=int,
    help="Serve the status page on this port of 127.0.0.1; 0 picks a free port. Off by default.",
)
@installed.installation
def controller(
    *,
    process: options.Process,
    target: options.Target,
    health_host: str,
    health_port: int,
    leader_elect: bool,
    namespace: str | None,
    status_port: int | None,
    installation: installed.InstallationOptions,
) -> None:
    """Run the controller that releases held pods on time."""
    mode = installation.mode
    if mode is not Mode.NONE and not leader_elect:
        raise StartError(
            f"--certificates={mode.value} is for one controller at a time; add --leader-elect"
        )
    process.set_up_logs()
    metrics = ControllerMetrics()
    place = namespace or (own_namespace() if leader_elect else "")
    mgr = controllers.controller(
        target.kubeconfig,
        target.context,
        process.setup,
        metrics,
        lease_namespace=place if leader_elect else None,
    )
    if mode is Mode.NONE:
        metrics.registered.set(math.nan)  # 0 would be an alert
    else:
        service = installation.service(place)
        mgr.publish(mode, service, installation.plan(service))
    health = HealthServer(
        health_host, health_port, ready=lambda: mgr.synced, exposition=metrics.exposition
    )
    servers: list[PageServer] = [health]
    servers += [status_server.server(status_port, mgr)] if status_port is not None else []
    _run(process, mgr, servers, sockets.written(health_host, health.port))


def _run(
    process: options.Process,
    mgr: controllers.Manager,
    servers: Sequence[PageServer],
    address: str,
) -> None:
    """Serve the pages and run until stopped."""
    for each in servers:
        each.start()
    lifetime.on_signals(mgr.stop)
    if process.exit_with_stdin:
        lifetime.on_end_of_stdin(mgr.stop)
    if process.ready_file is not None:
        lifetime.write_whole(process.ready_file, f"{address}\n")
    ended = threading.Event()
    give_back_regularly(ended)
    try:
        mgr.run()
    finally:
        ended.set()
        for each in servers:
            each.stop()
