"""`holdfast dev`: server and controller against a cluster, from here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import click

from webhook import dev as running
from webhook import process as lifetime
from webhook import wiring
from webhook.commands import options
from webhook.health import HealthServer
from webhook.metrics import ControllerMetrics


@click.command(epilog="Example: holdfast dev --kubeconfig ~/.kube/config")
@options.process
@options.target
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="This machine's address, as the cluster's API server reaches it.",
)
@click.option("--port", default=0, help="The port; a free one without it.")
@click.option("--health-port", default=0, help="The controller's metrics; a free port without it.")
def dev(
    *,
    process: options.Process,
    target: options.Target,
    host: str,
    port: int,
    health_port: int,
) -> None:
    """Run server and controller against a cluster, from here, until Ctrl-C.

    Makes certificates, registers the webhooks by URL, and unregisters them at the end.
    """
    process.set_up_logs()
    metrics = ControllerMetrics()
    assembly = wiring.controller(target.kubeconfig, target.context, process.setup, metrics)
    cluster = assembly.cluster
    cluster.request("GET", "/version")
    stop = threading.Event()
    lifetime.on_signals(stop.set)
    if process.exit_with_stdin:
        lifetime.on_end_of_stdin(stop.set)
    health = HealthServer(
        "127.0.0.1", health_port, ready=lambda: assembly.synced, exposition=metrics.exposition
    )
    health.start()
    try:
        running.run(
            cluster,
            assembly.pipeline,
            assembly,
            host=host,
            port=port,
            serve_arguments=[*process.arguments(), *target.arguments()],
            stop=stop,
            ready=_teller(cluster.server, health.port, process.ready_file),
        )
    finally:
        health.stop()
    click.echo("holdfast: unregistered; pods that are still held wait for the next controller")


def _teller(server: str, health_port: int, ready_file: Path | None) -> Callable[[str], None]:
    """Make what tells people, and whoever waits for the file, that everything works."""

    def ready(address: str) -> None:
        click.echo(f"holdfast: serving {server} from {address}; Ctrl-C ends and unregisters")
        click.echo(f"holdfast: the controller's metrics: http://127.0.0.1:{health_port}/metrics")
        if ready_file is not None:
            lifetime.write_whole(ready_file, f"{address}\n")

    return ready
