"""The namespaces and pods that a row creates for itself, alongside the load."""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import JSON_PATCH, pod_path
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Namespace, Object, created, gates
from tests.faults.audit import PodKey, Write
from tests.faults.load import GATE
from tests.faults.scenario import Scenario


def extra_namespace(scenario: Scenario, name: str) -> Namespace:
    """Return a further namespace of the row, in which running pods are not deleted regularly."""
    return Namespace(scenario.testbed.plane, f"{name}-{scenario.mark}")


def create_extra_namespace(scenario: Scenario, name: str) -> Namespace:
    ns = extra_namespace(scenario, name)
    scenario.extra_namespaces.append(ns.namespace)
    return Namespace.create_new(ns.plane, ns.namespace)


def own_prefix(scenario: Scenario) -> str:
    """Return the name prefix of the pods that a row creates for itself."""
    return f"held-{scenario.mark}-"


def pods_with_gate(scenario: Scenario, gate: str) -> list[str]:
    """Return the names of the row's own pods that have a gate."""
    names = held_pods(scenario.ns, gate)
    return [name for name in names if name.startswith(own_prefix(scenario))]


def held_pods(ns: Namespace, gate: str = GATE) -> list[str]:
    """Return the names of the pods in a namespace that have a gate."""
    return [str(pod["metadata"]["name"]) for pod in ns.all("pods") if gate in gates(pod)]


def final_releases(scenario: Scenario, ns: Namespace, names: Iterable[str]) -> dict[str, Write]:
    """Return the last write of each of these pods by Holdfast, if it succeeded."""
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    writes = {name: releases[ns.namespace, name] for name in names}
    return {
        name: attempts[-1]
        for name, attempts in writes.items()
        if attempts and attempts[-1].succeeded
    }


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
            while gate in (pod_gates := gates(scenario.ns.find("pod", name) or {"spec": {}})):
                pointer = f"/spec/schedulingGates/{pod_gates.index(gate)}"
                operations = [
                    {"op": "test", "path": pointer, "value": {"name": gate}},
                    {"op": "remove", "path": pointer},
                ]
                body = msgspec.json.encode(operations)
                with suppress(ApiStatusError):  # its index has changed
                    cluster.request("PATCH", path, body=body, content_type=JSON_PATCH)
