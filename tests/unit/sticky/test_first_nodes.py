"""The first node of a VM is recorded, and the finalizer of its pod is removed."""

from collections.abc import Callable, Mapping

import pytest

from holdfast.webhook.framework.profiles import scheduler_of
from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID
from holdfast.webhook.model.limits import MAX_ANNOTATION_BYTES, MAX_ENTRIES
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky.decision import TOO_MANY, RecordChange
from tests.support.vm_world import Driver, VmWorld, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import (
    OWN,
    remove_vmi,
    start_vm,
    world_with_running_vm,
    world_with_starting_vm,
)


def test_first_node_is_recorded_before_finalizer_is_removed() -> None:
    world, pod = world_with_running_vm()
    version = world.vm()["metadata"]["resourceVersion"]
    (result,) = Driver(world).work()

    assert dict(world.annotations()) == OWN
    assert (result.change, result.node, result.problem) == (RecordChange.RECORDED, "n1", "")
    assert world.api.objects[pod_at(pod)]["metadata"]["finalizers"] == ["example.com/other"]
    (first_path, on_vm), (second_path, on_pod) = world.api.patched
    assert (first_path, second_path) == (vm_at("vm"), pod_at(pod))
    assert on_vm == [
        {"op": "test", "path": "/metadata/uid", "value": "vm-1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/holdfast.dev~1sticky-node", "value": "n1"},
        {
            "op": "add",
            "path": "/metadata/annotations/holdfast.dev~1sticky-node-uid",
            "value": "vm-1",
        },
    ]
    assert [operation["op"] for operation in on_pod] == ["test", "test", "test", "remove"]
    assert on_pod[2:] == [
        {"op": "test", "path": "/metadata/finalizers/1", "value": STICKY},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]


def test_configured_node_annotation_is_used() -> None:
    world = VmWorld(StickyArgs(node_annotation="example.com/sticky-node"))
    start_vm(world)
    Driver(world).work()

    assert dict(world.annotations()) == {"example.com/sticky-node": "n1", STICKY_NODE_UID: "vm-1"}


def test_node_is_recorded_only_once_vm_has_run() -> None:
    world, pod, driver = world_with_starting_vm()
    assert (world.annotations(), world.kept()) == ({}, [pod])
    world.bind(pod, "n1")
    for phase in ("Scheduling", "Scheduled", "WaitingForSync"):
        world.status(phase=phase, nodeName="n1")
        driver.work()
        assert (world.record(), world.kept()) == ("", [pod])

    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({f"key-{number}": "" for number in range(MAX_ENTRIES - 1)}, id="number"),
        pytest.param({"key": "x" * (MAX_ANNOTATION_BYTES - 30)}, id="size"),
    ],
)
def test_vm_without_room_for_record_is_not_recorded(annotations: Mapping[str, str]) -> None:
    world = VmWorld()
    world.write("vm", annotations)
    start_vm(world)
    (result,) = Driver(world).work()
    assert (world.record(), world.kept()) == ("", [])
    assert result.remark == TOO_MANY


POD_ENDS = [
    pytest.param(lambda world, pod: world.api.delete(pod_at(pod)), id="pod deleted"),
    pytest.param(
        lambda world, pod: world.api.change(
            pod_at(pod), lambda document: document["status"].update(phase="Failed")
        ),
        id="pod failed",
    ),
]
VMI_FAILS = pytest.param(lambda world, _: world.status(phase="Failed"), id="VMI failed")


@pytest.mark.parametrize("event", [*POD_ENDS, VMI_FAILS])
@pytest.mark.parametrize("restarted", [False, True], ids=["watching", "restarted"])
def test_vm_that_ends_before_it_runs_is_not_recorded(
    event: Callable[[VmWorld, str], None], restarted: bool
) -> None:
    world = VmWorld()
    pod = start_vm(world, ready=False)
    driver = Driver(world)
    driver.work()
    event(world, pod)
    if restarted:
        driver.restart()
    (result,) = driver.work()

    assert (world.annotations(), world.kept()) == ({}, [])
    assert result.remark == (
        "no node is recorded, because the VM ended before it ran; it was on n1"
    )
    remove_vmi(world)
    start_vm(world, "n2")
    driver.work()
    assert world.record() == "n2"


@pytest.mark.parametrize("event", POD_ENDS)
def test_pod_that_ends_unbound_loses_finalizer(event: Callable[[VmWorld, str], None]) -> None:
    world = VmWorld()
    event(world, world.start())
    Driver(world).work()

    assert world.annotations() == {}
    assert world.kept() == []


RECORDS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "own": (OWN | {STICKY_NODE: "n9"}, OWN | {STICKY_NODE: "n9"}),
    "user's": ({STICKY_NODE: "n9"}, OWN | {STICKY_NODE: "n9"}),
    "user's, empty UID": ({STICKY_NODE: "n9", STICKY_NODE_UID: ""}, OWN | {STICKY_NODE: "n9"}),
    "clone's": ({STICKY_NODE: "n9", STICKY_NODE_UID: "other"}, OWN),
    "cleared": ({STICKY_NODE_UID: "vm-1"}, OWN),
    "emptied": ({STICKY_NODE: "", STICKY_NODE_UID: "vm-1"}, OWN),
    "clone's, cleared": ({STICKY_NODE_UID: "other"}, OWN),
}


@pytest.mark.parametrize(("before", "after"), RECORDS.values(), ids=RECORDS)
def test_existing_record_at_vm_start(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    world = VmWorld()
    world.write("vm", before)
    start_vm(world)
    Driver(world).work()

    assert dict(world.annotations()) == after
    assert world.kept() == []


def test_vmi_scheduler_name_is_used_to_choose_profile() -> None:
    world = VmWorld()
    start_vm(world, finalizer=False)
    driver = Driver(world)
    driver.work()
    world.api.change(vmi_at("vm"), lambda vmi: vmi["spec"].update(schedulerName="batch"))
    driver.settle()

    assert scheduler_of(driver.asked[0]) == "default-scheduler"
    assert scheduler_of(driver.asked[-1]) == "batch"
