"""Records follow migrations."""

from collections.abc import Callable

import pytest

from holdfast.webhook.errors import ResponseTooLargeError
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import STICKY_NODE
from tests.support.fakes import raising, status_error
from tests.support.vm_world import Driver, VmWorld, is_kept, job_at, pod_at, vm_at
from tests.unit.sticky.vms import (
    edit_pod,
    migrate_vm,
    start_vm,
    world_with_record,
    world_with_running_vm,
)


def test_target_keeps_finalizer_while_migration_runs() -> None:
    world, driver = world_with_record()
    job, pod = world.migrate()
    driver.work()
    world.bind(pod, "n2")
    driver.work()
    world.moved(job, pod)
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [pod])

    world.end(job, "Succeeded")
    driver.work()
    assert (world.record(), world.kept()) == ("n2", [])


def moves_but_is_reported_failed(world: VmWorld) -> None:
    """Fail a migration that moved the VM, as after a shutdown before KubeVirt noticed it."""
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.moved(job, pod)
    world.end(job, "Failed")


def moves_twice(world: VmWorld) -> None:
    first = migrate_vm(world)
    migrate_vm(world, "n3")
    world.end_pod(first)


def moves_and_is_removed(world: VmWorld) -> None:
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.migrated(job, pod)
    world.api.vanish(job_at(job))


def moves_after_an_edit(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n9"})
    migrate_vm(world)


@pytest.mark.parametrize(
    ("event", "record"),
    [
        pytest.param(lambda world: world.end(world.migrate()[0], "Failed"), "n1", id="unbound"),
        (moves_but_is_reported_failed, "n2"),
        (moves_twice, "n3"),
        (moves_and_is_removed, "n2"),
        (moves_after_an_edit, "n9"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("restarted", [False, True], ids=["watching", "restarted"])
def test_record_after_a_migration(
    event: Callable[[VmWorld], None], record: str, restarted: bool
) -> None:
    world, driver = world_with_record()
    event(world)
    if restarted:
        driver.restart()
    driver.work()

    assert (world.record(), world.kept()) == (record, [])


def reject_percent(_method: str, path: str) -> None:
    """Reject invalid names with 400, as the API server does."""
    if "%25" in path:
        raise status_error(400)


@pytest.mark.parametrize("name", ["", "another", "%"], ids=["missing", "wrong", "invalid"])
def test_migration_is_found_despite_wrong_name_on_pod(name: str) -> None:
    world, driver = world_with_record()
    world.api.on_request = reject_percent
    job, pod = world.migrate()
    world.bind(pod, "n2")
    edit_pod(world, pod, annotations={kubevirt.MIGRATION_NAME: name})
    driver.work()
    assert world.kept() == [pod]

    world.end(job, "Failed")
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


def test_migration_search_reduces_page_size_if_too_large() -> None:
    world, driver = world_with_record()
    _, pod = world.migrate()
    world.bind(pod, "n2")
    edit_pod(world, pod, annotations={})
    world.migrate()
    driver.see()
    world.api.queries.clear()
    too_large = raising(ResponseTooLargeError("too large"))
    world.api.before("GET", *[too_large] * 4)
    result = driver.settle()

    assert (result.problem, pod in world.kept()) == ("", True)
    assert [query["limit"] for query in world.api.queries[:5]] == [500, 125, 31, 7, 1]


def test_pod_with_invalid_owner_name_loses_finalizer() -> None:
    world, pod = world_with_running_vm()
    world.api.on_request = reject_percent
    world.api.change(
        pod_at(pod), lambda document: document["metadata"]["ownerReferences"][0].update(name="%")
    )
    results = Driver(world).work()

    assert [result.problem for result in results] == ["", ""]
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_large_pod_loses_finalizer() -> None:
    world, pod = world_with_running_vm()
    edit_pod(world, pod, annotations={"example.com/a": "x" * 20_000})
    (result,) = Driver(world).work()

    assert (result.problem, world.record(), world.kept()) == ("", "n1", [])


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2026"])
def test_invalid_timestamp_does_not_block_finalizer_removal(time: str) -> None:
    world, _ = world_with_running_vm()
    writer = {"manager": "curl", "time": time, "fieldsV1": {}}
    changes = {"managedFields": [writer], "deletionTimestamp": "2026-03-01T12:00:00Z"}
    world.api.change(vm_at("vm"), lambda vm: vm["metadata"].update(changes))
    world.status(migrationState={"endTimestamp": time})
    (result,) = Driver(world).work()

    assert (result.problem, world.kept()) == ("", [])


def test_pending_migration_does_not_hide_record_author() -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: "n9"})
    migrate_vm(world)
    _, target = world.migrate()
    driver.work()

    assert (world.record(), world.kept()) == ("n9", [target])


def test_migration_label_in_vm_template_is_ignored() -> None:
    world = VmWorld()
    pod = start_vm(world, ready=False)
    edit_pod(world, pod, labels={"kubevirt.io": "virt-launcher", kubevirt.MIGRATION_JOB: "made up"})
    world.status(phase="Running")
    world.stop()
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n1", [])


def test_unrecorded_vm_is_not_recorded_during_migration() -> None:
    world = VmWorld()
    start_vm(world, finalizer=False)
    job, target = world.migrate()
    world.bind(target, "n2")
    driver = Driver(world)
    driver.work()
    assert world.record() == ""

    world.migrated(job, target)
    driver.work()
    assert world.record() == "n2"
