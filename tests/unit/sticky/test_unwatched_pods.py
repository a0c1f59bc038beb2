"""Pods that the watch does not see."""

from tests.support.vm_world import Driver, VmWorld, pod_at
from tests.unit.sticky.vms import edit_pod, world_with_starting_vm


def test_pod_that_loses_its_label_is_tracked_by_name() -> None:
    world, pod, driver = world_with_starting_vm()
    edit_pod(world, pod, labels={})
    driver.work()
    assert driver.watch.orphans_of(("default", "vm")) == [("default", pod)]

    world.bind(pod, "n2")
    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n2", [])
    assert driver.watch.count() == 0


def test_node_is_recorded_from_vmi_if_finalizer_is_stripped() -> None:
    world, pod, driver = world_with_starting_vm()
    edit_pod(world, pod, finalizers=[])
    world.bind(pod, "n1")
    driver.work()
    assert world.record() == ""

    world.ready()
    driver.work()
    assert world.record() == "n1"


def test_waiting_pods_are_counted() -> None:
    world = VmWorld(None, "a", "b")
    for name in ("a", "b"):
        world.start(name)
    driver = Driver(world)
    driver.leads = False
    world.api.delete(pod_at(world.kept("b")[0]))
    driver.work()

    assert (driver.watch.count(), driver.watch.count_ended()) == (2, 1)
