"""The pods that a row creates for itself, alongside the load."""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import JSON_PATCH, pod_path
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, created, gates
from tests.faults.scenario import Names, Scenario

NOT_FOUND = 404


def mine(scenario: Scenario) -> str:
    """Return the prefix of the names of the pods that a row creates for itself."""
    return f"held-{scenario.mark}-"


def waiting(scenario: Scenario, gate: str) -> list[str]:
    """Name this row's own pods that carry a gate."""
    pods = [each for each in scenario.ns.all("pods") if gate in gates(each)]
    names = [str(each["metadata"]["name"]) for each in pods]
    return [name for name in names if name.startswith(mine(scenario))]


def due_times(made: Iterable[Object]) -> Mapping[Names, float]:
    """Return when pods are due that ask for a delay in seconds, for `Scenario.own`."""
    found = {}
    for one in made:
        about = one["metadata"]
        key = about["namespace"], about["name"]
        found[key] = created(one) + float(about["annotations"]["delay"])
    return found


def take_off(scenario: Scenario, names: Iterable[str], gate: str) -> None:
    """Take a gate off pods by hand, whatever its place."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        for name in names:
            path = pod_path(scenario.ns.namespace, name)
            while gate in (found := gates_now(cluster, path)):
                place = f"/spec/schedulingGates/{found.index(gate)}"
                operations = [
                    {"op": "test", "path": place, "value": {"name": gate}},
                    {"op": "remove", "path": place},
                ]
                body = msgspec.json.encode(operations)
                with suppress(ApiStatusError):  # it has just moved
                    cluster.request("PATCH", path, body=body, content_type=JSON_PATCH)


def gates_now(cluster: Cluster, path: str) -> list[str]:
    """Read a pod's gates; one that has run, and was cleared away, has none."""
    try:
        return gates(msgspec.json.decode(cluster.request("GET", path)))
    except ApiStatusError as exc:
        if exc.status != NOT_FOUND:
            raise
        return []
