"""`holdfast dev`: run server and controller on this machine."""

import threading

import click

from holdfast.webhook import process as lifetime
from holdfast.webhook.cli import commands, options, server_options
from holdfast.webhook.runtime import controllers
from holdfast.webhook.runtime import dev as running
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.telemetry.pages import HealthServer


@commands.command(epilog="Example: holdfast dev --kubeconfig ~/.kube/config")
@server_options.process
@options.target
@options.option(
    "--host",
    default="127.0.0.1",
    help="The address of this machine for the cluster's API server.",
)
@click.option("--port", default=0, help="The port; by default, a free port.")
@click.option(
    "--health-port",
    default=0,
    help="The port for the controller's metrics; by default, a free port.",
)
def dev(
    *,
    process: server_options.Process,
    target: options.Target,
    host: str,
    port: int,
    health_port: int,
) -> None:
    """Run Holdfast on this machine for a cluster, until Ctrl-C.

    It issues certificates, registers the webhooks by URL, and removes them on exit.
    """
    logs.set_up(process.log_level, process.log_format)
    metrics = ControllerMetrics()
    mgr = controllers.controller(target.connect, process.setup, metrics)
    cluster = mgr.cluster
    cluster.request("GET", "/version")
    stop = threading.Event()
    lifetime.on_signals(stop.set)
    if process.exit_with_stdin:
        lifetime.on_end_of_stdin(stop.set)
    health = HealthServer(
        "127.0.0.1", health_port, ready=lambda: mgr.synced, exposition=metrics.exposition
    )
    health.start()

    def ready(address: str) -> None:
        click.echo(f"holdfast: serving {cluster.server} from {address}; press Ctrl-C to stop")
        click.echo(f"holdfast: the controller's metrics: http://127.0.0.1:{health.port}/metrics")
        if process.ready_file is not None:
            lifetime.write_whole(process.ready_file, f"{address}\n")

    try:
        running.run(
            cluster,
            mgr.profiles,
            mgr,
            host=host,
            port=port,
            serve_arguments=[*process.arguments(), *target.arguments()],
            stop=stop,
            ready=ready,
        )
    finally:
        health.stop()
    click.echo("holdfast: webhooks removed; pods that are still held wait for another controller")
