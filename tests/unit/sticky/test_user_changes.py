"""Users change or clear the record."""

import msgspec
import pytest

from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID, VirtualMachine
from holdfast.webhook.model.limits import MAX_ENTRIES
from holdfast.webhook.report import sticky_vms
from holdfast.webhook.sticky.decision import RecordChange
from tests.support.vm_world import Driver, VmWorld
from tests.unit.sticky.vms import OWN, start_vm, world_with_record


def test_record_cleared_by_command_stays_cleared() -> None:
    world, driver = world_with_record()
    vm = msgspec.convert(world.vm(), VirtualMachine)
    patch = sticky_vms.record(vm, None, world.args)["metadata"]
    world.write("vm", patch["annotations"])
    driver.restart()
    driver.work()

    assert dict(world.annotations()) == {STICKY_NODE_UID: vm.metadata.uid}


@pytest.mark.parametrize("finalizer", [True, False])
def test_cleared_vm_restarted_while_not_sticky_is_recorded_later(*, finalizer: bool) -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: None})
    driver.work()
    world.stop()
    world.write("vm", {STICKY: "false"})
    pod = world.start(finalizer=finalizer)
    driver.work()
    assert world.annotations()[STICKY_NODE_UID] == "vm-1"  # it has not run yet

    world.bind(pod, "n2")
    world.ready()
    (result,) = driver.work()
    assert result.change is RecordChange.UNMARKED
    assert dict(world.annotations()) == {STICKY: "false"}
    assert world.kept() == []

    world.write("vm", {STICKY: "true"})
    driver.work()
    assert dict(world.annotations()) == {**OWN, STICKY: "true", STICKY_NODE: "n2"}


def test_non_sticky_vm_may_keep_uid_annotation() -> None:
    other_keys = {f"example.com/{number}": "" for number in range(MAX_ENTRIES)}
    for existing in (
        OWN,
        {STICKY_NODE_UID: "of another VM"},
        {**other_keys, STICKY_NODE_UID: "vm-1"},
    ):
        world = VmWorld()
        annotations = {**existing, STICKY: "false"}
        world.write("vm", annotations)
        start_vm(world)
        Driver(world).work()
        assert (dict(world.annotations()), world.kept()) == (annotations, [])


def test_record_removed_with_its_uid_is_written_again() -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: None, STICKY_NODE_UID: None})
    driver.work()

    assert dict(world.annotations()) == OWN
