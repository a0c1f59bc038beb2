"""How each component shows that it is ready."""

from __future__ import annotations

import socket
from collections.abc import Callable

from controlplane import components, nodes
from controlplane.api import Api
from controlplane.components import Plan
from controlplane.errors import ControlPlaneError
from controlplane.leases import NodeLeases
from controlplane.pki import Files


class Readiness:
    """Asks the components of one plan."""

    def __init__(self, plan: Plan, admin: Files, node_count: int) -> None:
        ports, ca = plan.ports, plan.ca.certificate
        self.api = Api(ports.api, ca, admin)
        self._etcd = Api(ports.etcd, plan.etcd_ca.certificate, plan.pairs[components.ETCD])
        self._controller_manager = Api(ports.controller_manager, ca, admin)
        self._scheduler = Api(ports.scheduler, ca, admin)
        self._kwok_port = ports.kwok
        self._node_count = node_count
        self.leases = NodeLeases(self.api, node_count)

    def of(self, name: str) -> Callable[[], bool]:
        """Give the check of a component."""
        return {
            components.ETCD: lambda: self._etcd.ok("/health"),
            components.API_SERVER: lambda: self.api.ok("/readyz"),
            components.CONTROLLER_MANAGER: self._controllers,
            components.SCHEDULER: lambda: self._scheduler.ok("/readyz"),
            components.KWOK: self._nodes,
        }[name]

    def _controllers(self) -> bool:
        """Tell whether pods can be created: that wants the ServiceAccount `default`."""
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return self._controller_manager.ok("/healthz") and self.api.ok(account)

    @staticmethod
    def _answers(port: int) -> bool:
        """Tell whether somebody listens on the port, as kwok does once it watches its nodes."""
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _nodes(self) -> bool:
        """Tell whether kwok holds the launcher's nodes, and they are Ready."""
        if not self._answers(self._kwok_port):
            return False
        try:
            held = self.leases.complete()
            listed = self.api.get("/api/v1/nodes") or {"items": []}
        except ControlPlaneError:
            return False
        names = {nodes.node_name(index) for index in range(1, self._node_count + 1)}
        ready = {one["metadata"]["name"] for one in listed["items"] if nodes.is_ready(one)}
        return held and names <= ready
