"""The Leases with which kwok claims its nodes.

kwok has a new identity after each start, so after a crash it would have to wait 40 s for the old
Leases to expire. The launcher runs kwok's process: when it is gone, its Leases can be deleted.
"""

from __future__ import annotations

from contextlib import suppress

from controlplane import nodes
from controlplane.api import Api
from controlplane.errors import ControlPlaneError

_NAMESPACE = "kube-node-lease"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{_NAMESPACE}/leases"


class NodeLeases:
    """The Leases of the launcher's kwok nodes; those of real nodes are left alone."""

    def __init__(self, api: Api, node_count: int) -> None:
        self._api = api
        self._names = {nodes.node_name(index) for index in range(1, node_count + 1)}

    def release(self) -> None:
        """Delete the Leases of a kwok process that is gone; API errors are ignored."""
        with suppress(ControlPlaneError):
            for name in sorted(self._existing()):
                self._api.delete(f"{_LEASES}/{name}")

    def make_room(self) -> None:
        """Create the Leases' namespace; kwok would wait a second for the API server to do so."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        self._api.create("/api/v1/namespaces", namespace)

    def complete(self) -> bool:
        """Return whether every node has a Lease. Raises ControlPlaneError if the list fails."""
        return self._names == self._existing()

    def _existing(self) -> set[str]:
        response = self._api.get(_LEASES) or {"items": []}
        return self._names & {lease["metadata"]["name"] for lease in response["items"]}
