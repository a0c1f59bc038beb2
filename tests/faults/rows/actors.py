"""Others act on the same pods: webhooks, admins, quotas."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable
from contextlib import closing, suppress

import msgspec

from tests.e2e.others import Object, other_webhook
from tests.e2e.world import created, gates, pod
from tests.faults.load import GATE
from tests.faults.scene import BOUND, Fault, Scene
from webhook.cluster import JSON_PATCH, Cluster, pod_path
from webhook.errors import ApiStatusError

FOREIGN = "example.com/other"
NOT_FOUND = 404


def reinvoked(scene: Scene) -> None:
    """Have other webhooks change pods before ours and after it, so that ours runs again."""

    calls: Counter[str] = Counter()

    def label(name: str) -> list[Object]:
        calls[name] += 1
        return [{"op": "add", "path": "/metadata/annotations/seen-by", "value": name}]

    def first(seen: Object) -> list[Object]:
        return label("first") if "annotations" in seen["metadata"] else []

    def last(seen: Object) -> list[Object]:
        return label("last") if "annotations" in seen["metadata"] else []

    with (
        other_webhook(scene.arena.plane, "aa-first", first),
        other_webhook(scene.arena.plane, "zz-last", last),
    ):
        scene.go_on(30, 6)
    scene.check("other webhooks that were not called", 2 - len(calls))


def foreign_gates(scene: Scene) -> None:
    """Add gates of others before and after ours, and take them off before or after its release."""
    count = 6 if scene.short else 40
    held = {"name": FOREIGN}
    names = [f"{mine(scene)}{number}" for number in range(count)]
    before, after = names[: count // 2], names[count // 2 :]

    def add(seen: Object) -> list[Object]:
        if seen["metadata"].get("name") not in after or FOREIGN in gates(seen):
            return []
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": held}]

    first = [pod(name, {"delay": "6"}, schedulingGates=[held]) for name in before]
    last = [pod(name, {"delay": "6"}) for name in after]

    def is_called() -> bool:
        (seen,) = scene.world.create_pods(last[:1], dry_run=True)
        return gates(seen) == [GATE, FOREIGN]

    with other_webhook(scene.arena.plane, "zz-gates", add):
        scene.eventually(is_called)
        made = scene.world.create_pods([*first, *last])
    misplaced = [one for one in made if gates(one) != gates_of(one, before)]
    scene.check("pods without both gates in their order", len(misplaced))
    take_off(scene, before, FOREIGN)
    seconds = scene.eventually(lambda: not waiting(scene, GATE))
    scene.check("seconds until ours were gone", seconds, BOUND)
    left = set(waiting(scene, FOREIGN))
    scene.check("gates of others that went with ours", len(set(after) - left))
    scene.check("gates of others that came back", len(set(before) & left))
    take_off(scene, after, FOREIGN)


def gates_of(seen: Object, before: Container[str]) -> list[str]:
    """Give the gates that a pod is to have, by whether the other one was there before ours."""
    return [FOREIGN, GATE] if seen["metadata"]["name"] in before else [GATE, FOREIGN]


def stripped(scene: Scene) -> None:
    """Take our gate off by hand."""
    names = [f"{mine(scene)}{number}" for number in range(6 if scene.short else 40)]
    made = scene.world.create_pods(pod(name, {"delay": "12"}) for name in names)
    take_off(scene, names, GATE)
    due = max(map(created, made)) + 12
    audit, space = scene.arena.audit, scene.world.namespace

    def scheduled() -> bool:
        audit.read()
        return all((space, name) in audit.bindings for name in names)

    seconds = scene.eventually(scheduled, BOUND)
    scene.check("seconds until they were scheduled", seconds, BOUND)
    scene.check("gates that came back", len(waiting(scene, GATE)))
    time.sleep(max(0.0, due + 3 - time.time()))
    audit.read()
    tried = sum(len(audit.releases[space, name]) for name in names)
    scene.check("releases of what is not held", tried)


def recreated(scene: Scene) -> None:
    """Delete pods that wait, and make others of their names that wait for longer."""
    names = [f"{mine(scene)}{number}" for number in range(6 if scene.short else 40)]
    scene.world.create_pods(pod(name, {"delay": "8"}) for name in names)
    scene.go_on(2)
    scene.world.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
    made = scene.world.create_pods(pod(name, {"delay": "14"}) for name in names)
    since = {one["metadata"]["name"]: created(one) for one in made}
    seconds = scene.eventually(lambda: not waiting(scene, GATE), BOUND)
    scene.check("seconds until they were released", seconds, BOUND)
    scene.arena.audit.read()
    releases = scene.arena.audit.releases
    early = [
        name
        for name, at in since.items()
        for one in releases[scene.world.namespace, name]
        if one.worked and at <= one.at < at + 14
    ]
    scene.check("released by their former time", len(early))


def refused(scene: Scene) -> None:
    """Have a validating webhook refuse the releases of some pods, and of no others."""
    names = [f"{mine(scene)}{number}" for number in range(6 if scene.short else 40)]
    path = f"/api/v1/namespaces/{scene.world.namespace}/events"
    selector = f"reason=ReleaseFailed,involvedObject.name={names[0]}"
    query: dict[str, str | int] = {"fieldSelector": selector, "limit": 1}

    def told() -> bool:
        with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
            return bool(msgspec.json.decode(cluster.request("GET", path, query=query))["items"])

    def decide(seen: Object) -> list[Object] | str:
        about = seen["metadata"]["name"].startswith(mine(scene))
        open_still = gates(seen) or seen["spec"].get("nodeName") or not about
        return [] if open_still else "closed for two minutes"

    with other_webhook(scene.arena.plane, "closed", decide, operations=("UPDATE",)):
        scene.world.create_pods(pod(name, {"delay": "8"}) for name in names)
        scene.check("seconds until an Event told it", scene.eventually(told, BOUND), BOUND)
        scene.go_on(120, 10)
        scene.check("released against the refusal", len(names) - len(waiting(scene, GATE)))
    seconds = scene.eventually(lambda: not waiting(scene, GATE), BOUND)
    scene.check("seconds until they were released", seconds, BOUND)


def namespaces(scene: Scene) -> None:
    """Delete a namespace in which pods wait."""
    plane, name = scene.arena.plane, f"{scene.world.namespace}-{scene.mark}-gone"
    world = type(scene.world).in_new_namespace(plane, name)
    names = [f"{mine(scene)}{number}" for number in range(50)]
    made = world.create_pods(pod(one, {"delay": "40"}) for one in names)
    plane.kubectl("delete", "namespace", name, "--wait=false")

    def gone() -> bool:
        return not plane.kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name")

    scene.check("seconds until it was gone", scene.eventually(gone, BOUND), BOUND)
    since = time.time()
    time.sleep(max(0.0, max(map(created, made)) + 43 - since))
    scene.arena.audit.read()
    writes = [write for one in names for write in scene.arena.audit.releases[name, one]]
    scene.check("releases of pods that are gone", sum(write.at > since for write in writes))


def quota(scene: Scene) -> None:
    """Let a namespace reach its quota with pods that wait."""
    plane, name = scene.arena.plane, f"{scene.world.namespace}-{scene.mark}-full"
    world = type(scene.world).in_new_namespace(plane, name)
    world.kubectl("create", "quota", "few", "--hard=pods=5")
    world.eventually(lambda: world.get("quota", "few").get("status", {}).get("hard"))
    world.create_pods(pod(f"{mine(scene)}{number}", {"delay": "12"}) for number in range(5))
    try:
        world.create_pods([pod("one-more", {"delay": "5"})])
        over = 1
    except Exception as exc:  # noqa: BLE001 - whatever the client raises; what it says decides
        over = int("exceeded quota" not in str(exc))
    scene.check("pods over the quota", over)
    held = [each for each in world.all("pods") if gates(each)]
    scene.check("pods not held", 5 - len(held))
    seconds = scene.eventually(lambda: not any(gates(each) for each in world.all("pods")))
    scene.check("seconds until they were released", seconds, BOUND)
    plane.kubectl("delete", "namespace", name, "--wait=false")


def mine(scene: Scene) -> str:
    """Give what the names of the pods begin with that a row makes for itself."""
    return f"held-{scene.mark}-"


def waiting(scene: Scene, gate: str) -> list[str]:
    """Name this row's own pods that carry a gate."""
    pods = [each for each in scene.world.all("pods") if gate in gates(each)]
    names = [str(each["metadata"]["name"]) for each in pods]
    return [name for name in names if name.startswith(mine(scene))]


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


FAULTS = [
    Fault(
        "webhooks-reinvoke",
        7,
        reinvoked,
        broken="adds-again",
        means="Asked again, Holdfast adds nothing that is there: one gate, one term in the end.",
    ),
    Fault(
        "gates-foreign",
        7,
        foreign_gates,
        broken="writes-blindly",
        means="Others' gates stay as they are; the pod runs when the last gate is off.",
    ),
    Fault(
        "gate-stripped",
        7,
        stripped,
        broken="never-forgets",
        means="A person who takes the gate off has decided: the pod is scheduled, and forgotten.",
    ),
    Fault(
        "pods-recreated",
        7,
        recreated,
        broken="early",
        means="A release is meant for one UID: a new pod of the same name waits for its own time.",
    ),
    Fault(
        "release-refused",
        7,
        refused,
        broken="gives-up",
        means="The refusal is told as an Event on the pod; the release is tried again until it "
        "succeeds, and holds up no other.",
    ),
    Fault(
        "namespace-deleted",
        7,
        namespaces,
        broken="never-forgets",
        means="Held pods go with their namespace; nothing of Holdfast's keeps it.",
    ),
    Fault(
        "quota-reached",
        7,
        quota,
        broken="lets-through",
        means="Held pods count, as all pods do; the release of one is no new pod.",
    ),
]
