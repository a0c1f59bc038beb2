"""The first node of a VM is recorded, and the finalizer of its pod is removed."""

from collections.abc import Callable, Mapping

import pytest

from holdfast.webhook.framework.profiles import scheduler_of
from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID
from holdfast.webhook.model.limits import MAX_ANNOTATION_BYTES, MAX_ENTRIES
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky.decision import NEVER_RAN, NOT_ENABLED, TOO_MANY, RecordChange
from tests.support.fakes import KUBEVIRT
from tests.support.vm_world import Driver, VmWorld, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import (
    OWN,
    remove_vmi,
    start_vm,
    world_with_record,
    world_with_running_vm,
)


def test_first_node_is_recorded_and_finalizer_removed() -> None:
    world, pod = world_with_running_vm()
    (result,) = Driver(world).work()

    assert dict(world.annotations()) == OWN
    assert (result.change, result.node, result.problem) == (RecordChange.RECORDED, "n1", "")
    assert world.api.objects[pod_at(pod)]["metadata"]["finalizers"] == ["example.com/other"]


def test_record_is_written_before_finalizer_is_removed() -> None:
    world, pod = world_with_running_vm()
    version = world.vm()["metadata"]["resourceVersion"]
    Driver(world).work()

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


def test_vm_stopped_before_reconcile_is_recorded() -> None:
    world, pod = world_with_running_vm()
    world.stop()
    assert world.kept() == [pod]
    Driver(world).work()
    world.collect()

    assert dict(world.annotations()) == OWN
    assert world.vmi() is None


def test_node_is_recorded_only_once_vm_has_run() -> None:
    world = VmWorld()
    pod = start_vm(world, ready=False)
    driver = Driver(world)
    for phase in ("Scheduling", "Scheduled", "WaitingForSync"):
        world.status(phase=phase, nodeName="n1")
        driver.work()
        assert (world.record(), world.kept()) == ("", [pod])

    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


def test_bound_pod_of_recorded_vm_loses_finalizer() -> None:
    world, driver = world_with_record()
    world.stop()
    start_vm(world, "n1", ready=False)
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


def test_vm_with_too_many_annotations_is_not_recorded() -> None:
    world = VmWorld()
    world.write("vm", {f"key-{number}": "" for number in range(MAX_ENTRIES - 1)})
    start_vm(world)
    (result,) = Driver(world).work()
    assert (world.record(), world.kept()) == ("", [])
    assert result.remark == TOO_MANY


def test_vm_without_room_for_record_is_not_recorded() -> None:
    world = VmWorld()
    world.write("vm", {"key": "x" * (MAX_ANNOTATION_BYTES - 30)})
    start_vm(world)
    (result,) = Driver(world).work()
    assert (world.record(), world.kept()) == ("", [])
    assert result.remark == TOO_MANY


def pod_is_deleted(world: VmWorld, pod: str) -> None:
    world.api.delete(pod_at(pod))


def pod_fails(world: VmWorld, pod: str) -> None:
    world.api.change(pod_at(pod), lambda document: document["status"].update(phase="Failed"))


def vmi_fails(world: VmWorld, _: str) -> None:
    world.status(phase="Failed")


@pytest.mark.parametrize(
    "event", [pod_is_deleted, pod_fails, vmi_fails], ids=lambda event: event.__name__
)
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
    assert result.remark == f"{NEVER_RAN} n1"
    remove_vmi(world)
    start_vm(world, "n2")
    driver.work()
    assert world.record() == "n2"


def test_vm_with_cleared_record_is_recorded_once_it_has_run() -> None:
    world, driver = world_with_record()
    world.stop()
    world.write("vm", {STICKY_NODE: None})
    pod = start_vm(world, "n2", ready=False)
    driver.work()
    assert (world.record(), world.kept()) == ("", [pod])
    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n2", [])


def test_unbound_pod_keeps_finalizer() -> None:
    world = VmWorld()
    pod = world.start()
    driver = Driver(world)
    driver.work()

    assert world.kept() == [pod]
    assert world.annotations() == {}
    world.bind(pod, "n3")
    world.ready()
    driver.work()
    assert world.record() == "n3"


@pytest.mark.parametrize("ending", ["deleted", "failed"])
def test_pod_that_ends_unbound_loses_finalizer(ending: str) -> None:
    world = VmWorld()
    pod = world.start()
    if ending == "deleted":
        world.api.delete(pod_at(pod))
    else:
        world.api.change(pod_at(pod), lambda document: document["status"].update(phase="Failed"))
    Driver(world).work()

    assert world.annotations() == {}
    assert world.kept() == []


RECORDS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "own": (OWN | {STICKY_NODE: "n9"}, OWN | {STICKY_NODE: "n9"}),
    "user's": ({STICKY_NODE: "n9"}, OWN | {STICKY_NODE: "n9"}),
    "user's, empty UID": (
        {STICKY_NODE: "n9", STICKY_NODE_UID: ""},
        OWN | {STICKY_NODE: "n9"},
    ),
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


@pytest.mark.parametrize(
    ("args", "annotations"),
    [
        pytest.param(StickyArgs(), {STICKY: "false"}, id="opted out"),
        pytest.param(StickyArgs(select="annotated"), {}, id="not opted in"),
        pytest.param(StickyArgs(namespaces=("other",)), {}, id="another namespace"),
    ],
)
def test_vm_that_is_not_sticky_is_not_recorded(
    args: StickyArgs, annotations: Mapping[str, str]
) -> None:
    world = VmWorld(args)
    world.write("vm", annotations)
    start_vm(world)
    Driver(world).work()

    assert dict(world.annotations()) == annotations
    assert world.kept() == []


def test_disabled_sticky_removes_finalizers_with_a_remark() -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world, enabled=False)
    (result,) = driver.work()

    assert result.remark == NOT_ENABLED
    assert [launcher.metadata.name for launcher in result.freed] == [pod]
    assert world.annotations() == {}
    assert [path for _, path in world.api.requests if path.startswith(KUBEVIRT)] == []


def test_vmi_scheduler_name_is_used_to_choose_profile() -> None:
    world = VmWorld()
    pod = world.start(finalizer=False)
    world.bind(pod, "n1")
    world.ready()
    driver = Driver(world)
    driver.work()
    world.api.change(vmi_at("vm"), lambda vmi: vmi["spec"].update(schedulerName="batch"))
    driver.settle()

    assert scheduler_of(driver.asked[0]) == "default-scheduler"
    assert scheduler_of(driver.asked[-1]) == "batch"
