"""`holdfast controller`: release held pods on time."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import click

from holdfast.certs import rotation
from holdfast.webhook import process as lifetime
from holdfast.webhook import sockets
from holdfast.webhook.cli import commands, options, server_options
from holdfast.webhook.errors import StartError
from holdfast.webhook.kube.leader_election import own_namespace
from holdfast.webhook.process import give_back_regularly
from holdfast.webhook.registration.reconciler import Mode
from holdfast.webhook.registration.replicas import Service
from holdfast.webhook.runtime import controllers, status_server
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.telemetry.pages import HealthServer, PageServer


@dataclass(frozen=True, slots=True)
class _Installation:
    certificates: str
    webhook_service: str
    webhook_deployment: str
    webhook_health_port: int | None
    webhook_configuration: str
    ca_lifetime: int
    leaf_lifetime: int
    ca_propagation: int

    def publish(self, mgr: controllers.Manager, mode: Mode, namespace: str) -> None:
        service = Service(
            namespace,
            self.webhook_service,
            self.webhook_deployment,
            self.webhook_health_port,
            self.webhook_configuration,
        )
        durations = (self.ca_lifetime, self.leaf_lifetime, self.ca_propagation)
        plan = rotation.Plan(service.dns_names, *(timedelta(milliseconds=ms) for ms in durations))
        mgr.publish(mode, service, plan)


def _installation(command: options.Function) -> options.Function:
    return options.grouped(
        command,
        "installation",
        _Installation,
        options.option(
            "--certificates",
            type=click.Choice([mode.value for mode in Mode]),
            default="none",
            help="Issuer of the webhook's certificates: this controller (self) or cert-manager. "
            "The leader then also registers the webhooks. With none, it does neither.",
        ),
        options.option(
            "--webhook-service", default="holdfast-webhook", help="The webhook's Service."
        ),
        options.option(
            "--webhook-deployment", default="holdfast-webhook", help="The webhook's Deployment."
        ),
        click.option(
            "--webhook-health-port",
            type=int,
            help="The webhook's --health-port, if it runs with --client-ca.",
        ),
        options.webhook_configuration,
        options.option(
            "--ca-lifetime",
            type=commands.DURATION,
            default="8760h",
            help="The lifetime of a CA, which is renewed when a third of it is left.",
        ),
        options.option(
            "--leaf-lifetime",
            type=commands.DURATION,
            default="720h",
            help="The lifetime of a certificate, which is renewed likewise.",
        ),
        options.option(
            "--ca-propagation",
            type=commands.DURATION,
            default="60s",
            help="Time for API servers to see a new CA.",
        ),
    )


@commands.command(epilog="Example: holdfast controller --kubeconfig ~/.kube/config")
@server_options.process
@options.target
@server_options.health_host
@options.option(
    "--health-port", default=8081, help="The port for health and metrics; 0 picks a free port."
)
@click.option(
    "--leader-elect/--no-leader-elect",
    help="Elect a leader through a Lease; the other controllers stand by.",
)
@server_options.namespace
@click.option(
    "--status-port",
    type=int,
    help="Serve the status page on this port of 127.0.0.1; 0 picks a free port. Off by default.",
)
@_installation
def controller(
    *,
    process: server_options.Process,
    target: options.Target,
    health_host: str,
    health_port: int,
    leader_elect: bool,
    namespace: str | None,
    status_port: int | None,
    installation: _Installation,
) -> None:
    """Run the controller that releases held pods on time."""
    mode = Mode(installation.certificates)
    if mode is not Mode.NONE and not leader_elect:
        raise StartError(
            f"--certificates={mode.value} is for one controller at a time; add --leader-elect"
        )
    logs.set_up(process.log_level, process.log_format)
    metrics = ControllerMetrics()
    holdfast_namespace = namespace or (own_namespace() if leader_elect else "")
    mgr = controllers.controller(
        target.connect,
        process.setup,
        metrics,
        lease_namespace=holdfast_namespace if leader_elect else None,
    )
    if mode is Mode.NONE:
        metrics.registered.set(math.nan)  # 0 would trigger an alert
    else:
        installation.publish(mgr, mode, holdfast_namespace)
    health = HealthServer(
        health_host, health_port, ready=lambda: mgr.synced, exposition=metrics.exposition
    )
    servers: list[PageServer] = [health]
    servers += [status_server.server(status_port, mgr)] if status_port is not None else []
    _run(process, mgr, servers, sockets.written(health_host, health.port))


def _run(
    process: server_options.Process,
    mgr: controllers.Manager,
    servers: Sequence[PageServer],
    address: str,
) -> None:
    for server in servers:
        server.start()
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
        for server in servers:
            server.stop()
