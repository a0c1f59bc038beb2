"""Namespaces with held pods and VMs are deleted, and reach their quota."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e import vms
from tests.e2e.world import Object, World, created, gates, pod
from tests.faults.rows.own import due_times, mine
from tests.faults.scene import BOUND, Fault, Scene
from webhook.vms import STICKY

DELAY = 40.0
"""Seconds for which the pods are held: longer than a namespace takes to go."""
LANDED, WAITS = "landed", "waits"
"""A VM that runs, and one whose pod is held."""


def deleted(scene: Scene) -> None:
    """Delete a namespace with held pods and VMs, and another while both controllers are down."""
    world, names, until = inhabited(scene, "gone")
    began = time.monotonic()
    delete(world)
    scene.eventually(lambda: not any(is_own(scene, one) for one in world.all("pods")))
    since = time.time()
    scene.eventually(lambda: is_gone(world), BOUND)
    scene.check("seconds until it was gone", time.monotonic() - began, BOUND)
    scene.check("seconds by which the held pods went too late to tell", since - until + 5)
    time.sleep(max(0.0, until - time.time()))
    scene.arena.audit.read()
    releases = scene.arena.audit.releases
    late = [one for name in names for one in releases[world.namespace, name] if one.at > since]
    scene.check("releases of pods that are gone", len(late))
    with nobody(scene):
        world, _, _ = inhabited(scene, "left")
        kept = [one for one in world.all("pods") if STICKY in one["metadata"].get("finalizers", ())]
        scene.check("VMs' pods without our finalizer", 2 - len(kept))
        delete(world)
        scene.go_on(10, 4)
        scene.check("namespaces that went without a controller", int(is_gone(world)))
    seconds = scene.eventually(lambda: is_gone(world), BOUND)
    scene.check("seconds until it was gone, with controllers again", seconds, BOUND)


def inhabited(scene: Scene, name: str) -> tuple[World, list[str], float]:
    """Make a namespace with held pods and VMs; name the pods, and tell when they are past due."""
    name = f"{scene.world.namespace}-{scene.mark}-{name}"
    world = type(scene.world).in_new_namespace(scene.arena.plane, name)
    world.create(vms.vm(LANDED))
    world.create(vms.vm(WAITS, template_annotations={"delay": f"{DELAY:.0f}"}))
    vms.landed(world, LANDED)
    world.eventually(lambda: any(gates(one) for one in vms.launchers(world, WAITS)))
    names = [f"{mine(scene)}{number}" for number in range(50)]
    made = world.create_pods(pod(one, {"delay": f"{DELAY:.0f}"}) for one in names)
    scene.own |= due_times(made)
    return world, names, max(map(created, made)) + DELAY + 3


def is_own(scene: Scene, seen: Object) -> bool:
    """Tell whether a pod is one of those that wait, and of no VM."""
    return str(seen["metadata"]["name"]).startswith(mine(scene))


def delete(world: World) -> None:
    """Have a namespace deleted, without waiting."""
    world.plane.kubectl("delete", "namespace", world.namespace, "--wait=false")


def is_gone(world: World) -> bool:
    """Tell whether nothing is left of a namespace."""
    options = ("--ignore-not-found", "-o", "name")
    return not world.plane.kubectl("get", "namespace", world.namespace, *options)


@contextmanager
def nobody(scene: Scene) -> Iterator[None]:
    """Have no controller while the block lasts."""
    since = time.time()
    for each in scene.arena.controllers:
        each.stop()
    try:
        yield
    finally:
        for each in scene.arena.controllers:
            each.start()
        scene.halted.append((since, time.time()))


def quota(scene: Scene) -> None:
    """Let a namespace reach its quota with pods that wait."""
    plane, name = scene.arena.plane, f"{scene.world.namespace}-{scene.mark}-full"
    world = type(scene.world).in_new_namespace(plane, name)
    world.kubectl("create", "quota", "few", "--hard=pods=5")
    world.eventually(lambda: world.get("quota", "few").get("status", {}).get("hard"))
    few = world.create_pods(pod(f"{mine(scene)}{number}", {"delay": "12"}) for number in range(5))
    scene.own |= due_times(few)
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


FAULTS = [
    Fault(
        "namespace-deleted",
        7,
        deleted,
        minutes=3.0,
        alone=True,  # it waits for Kubernetes' own controller, for 58.5 of 60 s beside another lane
        broken="never-forgets",
        caught_by="releases of pods that are gone",
        means="Held pods and VMs go with their namespace. Pods of VMs that carry Holdfast's "
        "finalizer stay, and the namespace with them, while no controller runs; the next one lets "
        "them go.",
    ),
    Fault(
        "quota-reached",
        7,
        quota,
        broken="lets-through",
        caught_by="delayed pods let through",
        means="Held pods count, as all pods do; the release of one is no new pod.",
    ),
]
