"""`holdfast controller`: releases held pods on time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import click

from webhook import listening, memory, status, wiring
from webhook import process as lifetime
from webhook.commands import installation as installed
from webhook.commands import options
from webhook.errors import StartError
from webhook.health import HealthServer
from webhook.leader import own_namespace
from webhook.metrics import ControllerMetrics
from webhook.pages import PageServer
from webhook.publisher import Mode


@click.command(epilog="Example: holdfast controller --kubeconfig ~/.kube/config")
@options.process
@options.target
@options.health_host
@click.option("--health-port", default=8081, show_default=True, help="0 takes a free one.")
@click.option(
    "--leader-elect/--no-leader-elect",
    help="Whether several controllers elect one by a Lease; the others stand by.",
)
@click.option("--namespace", help="Where Holdfast is installed; the pod's own without it.")
@click.option(
    "--status-port",
    type=int,
    help="Serve the status page at this port of 127.0.0.1; 0 takes a free one. Off without it.",
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
    installation: installed.Installation,
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
    assembly = wiring.controller(
        target.kubeconfig,
        target.context,
        process.setup,
        metrics,
        lease_namespace=place if leader_elect else None,
    )
    if mode is not Mode.NONE:
        service = installation.service(place)
        assembly.publish(mode, service, installation.plan(service))
    health = HealthServer(
        health_host, health_port, ready=lambda: assembly.synced, exposition=metrics.exposition
    )
    servers: list[PageServer] = [health]
    servers += [status.server(status_port, assembly)] if status_port is not None else []
    _run(process, assembly, servers, listening.written(health_host, health.port))


def _run(
    process: options.Process,
    assembly: wiring.Assembly,
    servers: Sequence[PageServer],
    address: str,
) -> None:
    """Serve the pages, and work until told to stop."""
    for each in servers:
        each.start()
    lifetime.on_signals(assembly.stop)
    if process.exit_with_stdin:
        lifetime.on_end_of_stdin(assembly.stop)
    if process.ready_file is not None:
        lifetime.write_whole(process.ready_file, f"{address}\n")
    ended = threading.Event()
    memory.give_back_regularly(ended)
    try:
        assembly.run()
    finally:
        ended.set()
        for each in servers:
            each.stop()
