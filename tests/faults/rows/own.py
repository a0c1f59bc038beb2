"""The pods that a row makes for itself, beside the load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import msgspec

from tests.e2e.world import Object, created, gates
from tests.faults.scene import Names, Scene
from webhook.cluster import JSON_PATCH, Cluster, pod_path
from webhook.errors import ApiStatusError

NOT_FOUND = 404


def mine(scene: Scene) -> str:
    """Give what the names of the pods begin with that a row makes for itself."""
    return f"held-{scene.mark}-"


def waiting(scene: Scene, gate: str) -> list[str]:
    """Name this row's own pods that carry a gate."""
    pods = [each for each in scene.world.all("pods") if gate in gates(each)]
    names = [str(each["metadata"]["name"]) for each in pods]
    return [name for name in names if name.startswith(mine(scene))]


def due_times(made: Iterable[Object]) -> Mapping[Names, float]:
    """Tell when pods are due that ask for a delay in seconds, for `Scene.own`."""
    found = {}
    for one in made:
        about = one["metadata"]
        key = about["namespace"], about["name"]
        found[key] = created(one) + float(about["annotations"]["delay"])
    return found


def take_off(scene: Scene, names: Iterable[str], gate: str) -> None:
    """Take a gate off pods by hand, whatever its place."""
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        for name in names:
            path = pod_path(scene.world.namespace, name)
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
