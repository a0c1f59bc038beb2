"""VMs that start and migrate, and the reconciliation of one."""

from typing import Any

from holdfast.webhook.model.kubevirt import STICKY_NODE, STICKY_NODE_UID
from tests.support.vm_world import Driver, VmWorld, pod_at, vmi_at

OWN = {STICKY_NODE: "n1", STICKY_NODE_UID: "vm-1"}


def start_vm(
    world: VmWorld, node: str = "n1", *, ready: bool = True, finalizer: bool = True
) -> str:
    pod = world.start(finalizer=finalizer)
    world.bind(pod, node)
    if ready:
        world.ready()
    return pod


def world_with_running_vm() -> tuple[VmWorld, str]:
    """Return a world with a running VM, and the name of its pod."""
    world = VmWorld()
    return world, start_vm(world)


def world_with_starting_vm() -> tuple[VmWorld, str, Driver]:
    """Return a world with an unbound pod of a VM, its name, and a driver that has seen it."""
    world = VmWorld()
    pod, driver = world.start(), Driver(world)
    driver.work()
    return world, pod, driver


def world_with_record(world: VmWorld | None = None) -> tuple[VmWorld, Driver]:
    world = world or VmWorld()
    start_vm(world)
    driver = Driver(world)
    driver.work()
    assert dict(world.annotations()) == OWN
    return world, driver


def migrate_vm(world: VmWorld, node: str = "n2") -> str:
    job, pod = world.migrate()
    world.bind(pod, node)
    world.migrated(job, pod)
    return pod


def remove_vmi(world: VmWorld) -> None:
    world.api.vanish(vmi_at("vm"))


def edit_pod(world: VmWorld, pod: str, **metadata: Any) -> None:
    world.api.change(pod_at(pod), lambda document: document["metadata"].update(metadata))
