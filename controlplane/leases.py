"""The Leases by which kwok holds its nodes.

kwok has a new identity in each life, so one that crashed would keep its nodes from its successor
until the Leases expire, 40 s later. Its process is ours: when it is gone, so is its hold.
"""

from __future__ import annotations

from contextlib import suppress

from controlplane import nodes
from controlplane.api import Api
from controlplane.errors import ControlPlaneError

_NAMESPACE = "kube-node-lease"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases"


class NodeLeases:
    """The Leases of the launcher's own nodes; those of real nodes are left alone."""

    def __init__(self, api: Api, node_count: int) -> None:
        self._api = api
        self._names = {nodes.node_name(index) for index in range(1, node_count + 1)}

    def release(self) -> None:
        """Remove what a kwok that is gone held, as far as the API server answers."""
        with suppress(ControlPlaneError):
            for name in sorted(self._existing()):
                self._api.delete(f"{_LEASES}/{name}")

    def make_room(self) -> None:
        """Make the Leases' namespace; kwok would wait a second for the API server to do so."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        self._api.create("/api/v1/namespaces", namespace)

    def complete(self) -> bool:
        """Return whether every node is held. Raises ControlPlaneError if that cannot be read."""
        return self._names == self._existing()

    def _existing(self) -> set[str]:
        listed = self._api.get(_LEASES) or {"items": []}
        return self._names & {one["metadata"]["name"] for one in listed["items"]}
