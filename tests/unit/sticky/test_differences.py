"""VMs that run on a node other than the recorded one, without a held pod that explains it."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.webhook.kube.patching import FIELD_MANAGER
from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from tests.support.vm_world import Driver, VmWorld, vm_at, vmi_at
from tests.unit.sticky.vms import edit_pod, migrate_vm, start_vm, world_with_record


def move(world: VmWorld, node: str) -> None:
    """Migrate the VM to a node, with a pod that has no finalizer."""
    job, pod = world.migrate()
    edit_pod(world, pod, finalizers=[])
    world.bind(pod, node)
    world.migrated(job, pod)


def restart(driver: Driver) -> str:
    """Reconcile with a new controller, and return the unexpected node of the VM."""
    driver.restart()
    results = driver.work()
    assert {result.problem for result in results} <= {""}
    return "".join(result.differs for result in results)


def report(world: VmWorld, **state: Any) -> None:
    """Change what the VMI reports about its last migration."""
    world.api.change(vmi_at("vm"), lambda vmi: vmi["status"]["migrationState"].update(state))


def clear_managed_fields(world: VmWorld) -> None:
    """Remove the owner of the record, as when the webhook restores it."""
    world.api.change(vm_at("vm"), lambda vm: vm["metadata"].pop("managedFields"))


# --- explained by a migration ------------------------------------------------------------------


def test_records_carry_the_field_manager() -> None:
    world, _ = world_with_record()
    (entry,) = world.vm()["metadata"]["managedFields"]
    assert entry["manager"] == FIELD_MANAGER
    assert world.api.queries[-1] == {"fieldManager": FIELD_MANAGER}


def moves_twice(world: VmWorld) -> None:
    move(world, "n3")
    move(world, "n2")


def moves_while_not_sticky(world: VmWorld) -> None:
    world.write("vm", {STICKY: "false"})
    move(world, "n2")
    world.write("vm", {STICKY: None})


def comes_from_another_cluster(world: VmWorld) -> None:
    world.stop()
    start_vm(world, "n9", finalizer=False)
    move(world, "n2")
    report(world, sourceNode="node-of-another-cluster")


def moves_from_an_edit(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n9"})
    world.write("vm", {STICKY_NODE: "n1"})
    move(world, "n2")


def moves_with_an_unknown_author(world: VmWorld) -> None:
    clear_managed_fields(world)
    move(world, "n2")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(lambda world: move(world, "n2"), id="moves"),
        moves_twice,
        moves_while_not_sticky,
        comes_from_another_cluster,
        moves_from_an_edit,
        moves_with_an_unknown_author,
    ],
    ids=lambda event: event.__name__,
)
def test_unwatched_migration_is_followed(event: Callable[[VmWorld], None]) -> None:
    world, driver = world_with_record()
    event(world)

    assert restart(driver) == ""
    assert world.record() == "n2"


def test_later_migration_repairs_a_record_that_differs() -> None:
    world, driver = world_with_record()
    starts_elsewhere(world)
    assert restart(driver) == "n2"

    migrate_vm(world, "n3")
    driver.work()
    assert (world.record(), world.kept()) == ("n3", [])


# --- not explained by a migration --------------------------------------------------------------


def starts_elsewhere(world: VmWorld) -> None:
    world.write("vm", {STICKY: "false"})
    world.stop()
    start_vm(world, "n2", finalizer=False)
    world.write("vm", {STICKY: None})


def starts_elsewhere_and_fails_to_migrate(world: VmWorld) -> None:
    starts_elsewhere(world)
    job, pod = world.migrate()
    edit_pod(world, pod, finalizers=[])
    world.bind(pod, "n3")
    state = {"sourceNode": "n2", "targetNode": "n3", "completed": True, "failed": True}
    world.status(migrationState=state)
    world.end(job, "Failed")


def moves_twice_with_an_unknown_author(world: VmWorld) -> None:
    clear_managed_fields(world)
    moves_twice(world)


@pytest.mark.parametrize(
    "event",
    [starts_elsewhere, starts_elsewhere_and_fails_to_migrate, moves_twice_with_an_unknown_author],
    ids=lambda event: event.__name__,
)
def test_vm_on_unexplained_node_is_reported(event: Callable[[VmWorld], None]) -> None:
    world, driver = world_with_record()
    event(world)

    assert restart(driver) == "n2"
    assert world.record() == "n1"


def is_edited(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n2"})


def is_sent_back(world: VmWorld) -> None:
    """A user requests the node that the VM has just left."""
    move(world, "n2")
    world.write("vm", {STICKY_NODE: "n3"})
    world.write("vm", {STICKY_NODE: "n1"})


def is_confirmed(world: VmWorld) -> None:
    """A second writer owns the same value, as by server-side apply."""
    starts_elsewhere(world)

    def act(vm: dict[str, Any]) -> None:
        entries = vm["metadata"]["managedFields"]
        (own_entry,) = [entry for entry in entries if entry["manager"] == FIELD_MANAGER]
        entries.append({**own_entry, "manager": "flux"})

    world.api.change(vm_at("vm"), act)


def moves_without_an_end_time(world: VmWorld) -> None:
    moves_from_an_edit(world)
    report(world, endTimestamp=None)


@pytest.mark.parametrize(
    "event",
    [is_edited, is_sent_back, is_confirmed, moves_without_an_end_time],
    ids=lambda event: event.__name__,
)
def test_record_written_by_others_is_kept(event: Callable[[VmWorld], None]) -> None:
    world, driver = world_with_record()
    event(world)
    before = dict(world.annotations())

    assert restart(driver) == ""
    assert dict(world.annotations()) == {**before, STICKY_NODE_UID: "vm-1"}


def stops(world: VmWorld) -> None:
    starts_elsewhere(world)
    world.status(phase="Succeeded")


def migrates_again(world: VmWorld) -> None:
    starts_elsewhere(world)
    _, pod = world.migrate()
    edit_pod(world, pod, finalizers=[])
    world.bind(pod, "n3")
    world.status(migrationState={"sourceNode": "n2", "targetNode": "n3"})


@pytest.mark.parametrize(
    ("event", "args"),
    [
        pytest.param(stops, StickyArgs(), id="stopped"),
        pytest.param(migrates_again, StickyArgs(), id="migrating"),
        pytest.param(starts_elsewhere, StickyArgs(on_migration="keep"), id="keep"),
        pytest.param(starts_elsewhere, StickyArgs(affinity="preferred"), id="preferred"),
    ],
)
def test_temporary_or_permitted_difference_is_not_reported(
    event: Callable[[VmWorld], None], args: StickyArgs
) -> None:
    world, driver = world_with_record(VmWorld(args))
    event(world)
    assert restart(driver) == ""
    assert world.record() == "n1"


# --- VMs that are temporarily not sticky -------------------------------------------------------


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "controller restarts"])
def test_migration_while_not_sticky_updates_record(watched: bool) -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY: "false"})
    move(world, "n2")
    if watched:
        driver.work()
    else:
        restart(driver)
    world.stop()
    driver.work()
    world.write("vm", {STICKY: None})
    driver.work()
    assert world.record() == "n2"


@pytest.mark.parametrize("kept_by", ["user", "onMigration", "no migration"])
def test_record_is_kept_while_vm_is_not_sticky(kept_by: str) -> None:
    args = StickyArgs(on_migration="keep" if kept_by == "onMigration" else "follow")
    world, driver = world_with_record(VmWorld(args))
    if kept_by == "user":
        world.write("vm", {STICKY_NODE: "n3"})
    world.write("vm", {STICKY: "false"})
    before = world.record()
    if kept_by == "no migration":
        world.stop()
        start_vm(world, "n2", finalizer=False)
    else:
        move(world, "n2")
    driver.work()
    assert world.record() == before
