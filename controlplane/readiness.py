"""The readiness check of each component."""

from __future__ import annotations

from collections.abc import Callable

from controlplane import components, nodes
from controlplane.api import Api
from controlplane.components import Plan
from controlplane.errors import ControlPlaneError
from controlplane.leases import NodeLeases
from controlplane.pki import Files
from controlplane.ports import answers


class Readiness:
    """The readiness checks for the components of one plan."""

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
        """Return the readiness check of a component."""
        return {
            components.ETCD: lambda: self._etcd.ok("/health"),
            components.API_SERVER: lambda: self.api.ok("/readyz"),
            components.CONTROLLER_MANAGER: self._controllers,
            components.SCHEDULER: self._scheduling,
            components.KWOK: self._nodes,
        }[name]

    def _controllers(self) -> bool:
        """Return whether pods can be created, which requires the ServiceAccount `default`."""
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        return self._controller_manager.ok("/healthz") and self.api.ok(account)

    def _scheduling(self) -> bool:
        """Return whether the scheduler is ready; before 1.31 it has no /readyz."""
        return self._scheduler.ok("/readyz") or self._scheduler.ok("/healthz")

    def _nodes(self) -> bool:
        """Return whether kwok has the Leases of the launcher's nodes, and they are Ready.

        kwok listens once it watches the nodes.
        """
        if not answers(self._kwok_port):
            return False
        try:
            has_leases = self.leases.complete()
            response = self.api.get("/api/v1/nodes") or {"items": []}
        except ControlPlaneError:
            return False
        names = {nodes.node_name(index) for index in range(1, self._node_count + 1)}
        ready = {node["metadata"]["name"] for node in response["items"] if nodes.is_ready(node)}
        return has_leases and names <= ready
