"""The pods that a row creates for itself, alongside the load."""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import JSON_PATCH, pod_path
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, created, gates
from tests.faults.scenario import PodKey, Scenario

NOT_FOUND = 404


def own_prefix(scenario: Scenario) -> str:
    """Return the name prefix of the pods that a row creates for itself."""
    return f"held-{scenario.mark}-"


def pods_with_gate(scenario: Scenario, gate: str) -> list[str]:
    """Return the names of the row's own pods that have a gate."""
    pods = [pod for pod in scenario.ns.all("pods") if gate in gates(pod)]
    names = [str(pod["metadata"]["name"]) for pod in pods]
    return [name for name in names if name.startswith(own_prefix(scenario))]


def due_times(pods: Iterable[Object]) -> Mapping[PodKey, float]:
    """Return the due times of pods with a delay in seconds, for `Scenario.own`."""
    times = {}
    for pod in pods:
        meta = pod["metadata"]
        key = meta["namespace"], meta["name"]
        times[key] = created(pod) + float(meta["annotations"]["delay"])
    return times


def remove_gate(scenario: Scenario, names: Iterable[str], gate: str) -> None:
    """Remove a gate from pods, at any index."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        for name in names:
            path = pod_path(scenario.ns.namespace, name)
            while gate in (pod_gates := read_gates(cluster, path)):
                pointer = f"/spec/schedulingGates/{pod_gates.index(gate)}"
                operations = [
                    {"op": "test", "path": pointer, "value": {"name": gate}},
                    {"op": "remove", "path": pointer},
                ]
                body = msgspec.json.encode(operations)
                with suppress(ApiStatusError):  # its index has changed
                    cluster.request("PATCH", path, body=body, content_type=JSON_PATCH)


def read_gates(cluster: Cluster, path: str) -> list[str]:
    """Read a pod's gates; a pod that has been deleted has none."""
    try:
        return gates(msgspec.json.decode(cluster.request("GET", path)))
    except ApiStatusError as exc:
        if exc.status != NOT_FOUND:
            raise
        return []
