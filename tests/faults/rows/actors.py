"""Others act on the same pods: webhooks, admins."""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from contextlib import closing

import msgspec

from tests.e2e.others import Object, other_webhook
from tests.e2e.world import World, created, gates, pod
from tests.faults.load import GATE
from tests.faults.rows.own import due_times, mine, take_off, waiting
from tests.faults.scene import BOUND, Fault, Scene
from webhook.cluster import Cluster

FOREIGN = "example.com/other"
HANGING = 100
"""Pods whose releases hang: three times as many as there are releases under way at once."""
HANGS = 30.0
"""Seconds for which a webhook hangs: longer than the API server waits for it."""
ELSEWHERE = 5.0
"""Seconds by which others may be late: half of what one that hangs takes."""


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
        scene.own |= due_times(made)
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
    delay = scene.lasts(40, 12)
    made = scene.world.create_pods(pod(name, {"delay": f"{delay:.0f}"}) for name in names)
    times = [created(one) for one in made]
    take_off(scene, names, GATE)
    due = max(times) + delay
    scene.check("seconds until all were off", time.time() - min(times), delay)
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
    # kubectl deletes forty in up to eight seconds: none is to be released before
    first, then = (8, 14) if scene.short else (20, 30)
    scene.world.create_pods(pod(name, {"delay": str(first)}) for name in names)
    scene.go_on(2)
    scene.world.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
    made = scene.world.create_pods(pod(name, {"delay": str(then)}) for name in names)
    scene.own |= due_times(made)
    since = {one["metadata"]["name"]: created(one) for one in made}
    seconds = scene.eventually(lambda: not waiting(scene, GATE), BOUND)
    scene.check("seconds until they were released", seconds, BOUND)
    scene.arena.audit.read()
    releases = scene.arena.audit.releases
    early = [
        name
        for name, at in since.items()
        for one in releases[scene.world.namespace, name]
        if one.worked and at <= one.at < at + then
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
        made = scene.world.create_pods(pod(name, {"delay": "8"}) for name in names)
        scene.own |= due_times(made)
        scene.check("seconds until an Event told it", scene.eventually(told, BOUND), BOUND)
        scene.go_on(120, 10)
        scene.check("released against the refusal", len(names) - len(waiting(scene, GATE)))
    seconds = scene.eventually(lambda: not waiting(scene, GATE), BOUND)
    scene.check("seconds until they were released", seconds, BOUND)


def hanging(scene: Scene) -> None:
    """Have a validating webhook hang at the releases of one namespace's pods, and of no others."""
    plane, name = scene.arena.plane, f"{scene.world.namespace}-{scene.mark}-hangs"
    scene.apart.append(name)
    world, over = type(scene.world).in_new_namespace(plane, name), threading.Event()

    def decide(seen: Object) -> list[Object]:
        if seen["metadata"]["namespace"] == name:
            over.wait(HANGS)
        return []

    names = [f"{mine(scene)}{number}" for number in range(HANGING)]
    with other_webhook(plane, "hangs", decide, operations=("UPDATE",)):
        due = due_times(world.create_pods(pod(one, {"delay": "8"}) for one in names))
        scene.own |= due
        since = max(due.values())
        scene.go_on(max(0.0, since - time.time()))
        scene.go_on(60, 25)
        until = time.time()
        scene.arena.audit.read()
        late = lateness(scene, since, until)
        left = len(waiting_in(world))
    over.set()
    scene.figures["held while it hung"] = left
    scene.check("moments in which nothing hung", int(not left))
    scene.check("seconds late elsewhere", max(late, default=2 * ELSEWHERE), ELSEWHERE)
    seconds = scene.eventually(lambda: not waiting_in(world), BOUND)
    scene.check("seconds until they were released", seconds, BOUND)


def lateness(scene: Scene, since: float, until: float) -> list[float]:
    """Tell how late the load's pods were released, or are, that were due within a span."""
    releases, space = scene.arena.audit.releases, scene.load.namespace
    found = []
    for name, due in list(scene.load.due.items()):
        if since <= due <= until:
            worked = [one.ended for one in releases[space, name] if one.worked]
            found.append(min([until, *worked]) - due)
    return found


def waiting_in(world: World) -> list[str]:
    """Name the pods of a namespace that carry our gate."""
    return [str(one["metadata"]["name"]) for one in world.all("pods") if GATE in gates(one)]


FAULTS = [
    Fault(
        "gates-foreign",
        7,
        foreign_gates,
        broken="writes-blindly",
        caught_by="seconds until ours were gone",
        means="Others' gates stay as they are; the pod runs when the last gate is off.",
    ),
    Fault(
        "gate-stripped",
        7,
        stripped,
        broken="never-forgets",
        caught_by="releases of what is not held",
        means="A person who takes the gate off has decided: the pod is scheduled, and forgotten.",
    ),
    Fault(
        "pods-recreated",
        7,
        recreated,
        broken="goes-by-names",
        caught_by="released by their former time",
        means="A release is meant for one UID: a new pod of the same name waits for its own time.",
    ),
    Fault(
        "release-refused",
        7,
        refused,
        minutes=3.0,
        broken="gives-up",
        caught_by="seconds until they were released",
        means="The refusal is told as an Event on the pod; the release is tried again until it "
        "succeeds, and holds up no other.",
    ),
    Fault(
        "release-hangs",
        7,
        hanging,
        minutes=2.5,
        broken="one-lane",
        caught_by="seconds late elsewhere",
        means="A namespace begins with 8 of the 40 threads, and has one more for each release that "
        "succeeds, up to 32; all those in which releases take long have no more together. So what "
        "hangs leaves others threads, and places for requests in the API server. Pods elsewhere "
        "are released in time.",
    ),
]
