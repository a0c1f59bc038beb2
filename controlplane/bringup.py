"""Start the components on free ports, and retry on other ports if one is taken meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from controlplane import components, nodes
from controlplane.api import Api
from controlplane.components import Plan
from controlplane.errors import PortTakenError
from controlplane.kubeconfig import kubeconfig
from controlplane.layout import Layout, write_private
from controlplane.pki import Pki
from controlplane.ports import port_taken
from controlplane.preparation import choose_ports, prepare, server_url
from controlplane.process import Process
from controlplane.processes import Processes
from controlplane.readiness import Readiness
from controlplane.settings import Settings

_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Running:
    """The state between start and stop."""

    bin: Path
    layout: Layout
    processes: Processes
    resources: ExitStack


@dataclass(frozen=True, slots=True)
class Started:
    """The result of a successful attempt."""

    plan: Plan
    pki: Pki
    api: Api


def bring_up(running: Running, settings: Settings) -> Started:
    """Start all components, wait until they are ready, and return the result.

    Raises ControlPlaneError, or PortTakenError if ports were taken in every attempt.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _attempt(running, settings)
        except PortTakenError as error:
            running.processes.stop()
            if settings.port is not None and f"{components.API_SERVER} ended" in str(error):
                raise port_taken(settings.port) from error
            if attempt == _ATTEMPTS:
                raise
            for log in running.layout.logs.iterdir():
                log.unlink()
    raise AssertionError


def _attempt(running: Running, settings: Settings) -> Started:
    layout = running.layout
    pki = Pki(layout.pki)
    ports = choose_ports(settings.port)
    plan = prepare(running.bin, layout, pki, ports, settings)
    admin, files = pki.admin()
    ca = pki.ca.certificate.read_bytes()
    write_private(layout.kubeconfig, kubeconfig(server_url(ports), ca, "admin", admin))
    readiness = Readiness(plan, files, settings.nodes)
    _start_all(running.processes, plan, readiness, settings)
    return Started(plan, pki, readiness.api)


def _start_all(processes: Processes, plan: Plan, readiness: Readiness, settings: Settings) -> None:
    """Start etcd, then the API server, then the others together."""

    def start(name: str, before_start: Callable[[], None] = lambda: None) -> Process:
        command, is_ready = plan.command(name), readiness.of(name)
        return processes.start(name, command, is_ready, before_start=before_start)

    for name in (components.ETCD, components.API_SERVER):
        start(name).wait_ready()
    readiness.leases.make_room()
    others = [start(components.CONTROLLER_MANAGER), start(components.SCHEDULER)]
    others.append(start(components.KWOK, readiness.leases.release))
    for index in range(1, settings.nodes + 1):
        node = nodes.node(index, settings.node_labels(index), settings.node_capacity)
        readiness.api.create("/api/v1/nodes", node)
    for process in others:
        process.wait_ready()
