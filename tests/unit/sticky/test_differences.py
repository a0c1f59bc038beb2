"""VMs that run on another node than the recorded one, by migrations that no held pod shows."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from holdfast.webhook.kube.patching import FIELD_MANAGER
from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky import node_problems
from tests.support.vm_world import Driver, VmWorld, pod_at, vm_at, vmi_at

OTHERS = [
    pytest.param(StickyArgs(on_migration="keep"), id="keep"),
    pytest.param(StickyArgs(affinity="preferred"), id="preferred"),
]


def recorded(args: StickyArgs | None = None) -> tuple[VmWorld, Driver]:
    world = VmWorld(args)
    start(world, "n1")
    driver = Driver(world)
    driver.work()
    assert world.record() == "n1"
    return world, driver


def start(world: VmWorld, node: str, *, finalizer: bool = True) -> None:
    world.bind(world.start(finalizer=finalizer), node)
    world.ready()


def strip(world: VmWorld, pods: Iterable[str]) -> None:
    for pod in pods:
        world.api.change(pod_at(pod), lambda one: one["metadata"].update(finalizers=[]))


def move(world: VmWorld, node: str) -> None:
    """Migrate the VM to a node, with pods that nobody holds."""
    job, pod = world.migrate()
    strip(world, [pod])
    world.bind(pod, node)
    world.migrated(job, pod)


def restart(driver: Driver) -> str:
    """Have another controller work, and return where the VM runs unexpectedly."""
    driver.restart()
    results = driver.work()
    assert {each.problem for each in results} <= {""}
    return "".join(each.differs for each in results)


def report(world: VmWorld, **state: Any) -> None:
    """Change what the VMI reports about its last migration."""
    world.api.change(vmi_at("vm"), lambda one: one["status"]["migrationState"].update(state))


def is_unknown(world: VmWorld) -> None:
    """Let nobody own the record, as the webhook restores it."""
    world.api.change(vm_at("vm"), lambda one: one["metadata"].pop("managedFields"))


# --- migrations that explain it ----------------------------------------------------------------


def test_records_carry_the_field_manager() -> None:
    world, _ = recorded()
    (entry,) = world.vm()["metadata"]["managedFields"]
    assert entry["manager"] == FIELD_MANAGER
    assert world.api.queries[-1] == {"fieldManager": FIELD_MANAGER}


def moves(world: VmWorld) -> None:
    move(world, "n2")


def moves_twice(world: VmWorld) -> None:
    move(world, "n3")
    move(world, "n2")


def moves_while_not_sticky(world: VmWorld) -> None:
    world.write("vm", {STICKY: "false"})
    move(world, "n2")
    world.write("vm", {STICKY: None})


def comes_from_another_cluster(world: VmWorld) -> None:
    world.stop()
    start(world, "n9", finalizer=False)
    move(world, "n2")
    report(world, sourceNode="node-of-another-cluster")


def moves_from_an_edit(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n9"})
    world.write("vm", {STICKY_NODE: "n1"})
    move(world, "n2")


def moves_with_an_unknown_author(world: VmWorld) -> None:
    is_unknown(world)
    move(world, "n2")


@pytest.mark.parametrize(
    "happens",
    [
        moves,
        moves_twice,
        moves_while_not_sticky,
        comes_from_another_cluster,
        moves_from_an_edit,
        moves_with_an_unknown_author,
    ],
    ids=lambda one: one.__name__,
)
def test_unwatched_migration_is_followed(happens: Callable[[VmWorld], None]) -> None:
    world, driver = recorded()
    happens(world)

    assert restart(driver) == ""
    assert world.record() == "n2"


def test_later_migration_repairs_a_record_that_differs() -> None:
    world, driver = recorded()
    starts_elsewhere(world)
    assert restart(driver) == "n2"

    job, pod = world.migrate()
    world.bind(pod, "n3")
    world.migrated(job, pod)
    driver.work()
    assert (world.record(), world.kept()) == ("n3", [])


# --- what no migration explains ----------------------------------------------------------------


def starts_elsewhere(world: VmWorld) -> None:
    world.write("vm", {STICKY: "false"})
    world.stop()
    start(world, "n2", finalizer=False)
    world.write("vm", {STICKY: None})


def starts_elsewhere_and_fails_to_migrate(world: VmWorld) -> None:
    starts_elsewhere(world)
    job, pod = world.migrate()
    strip(world, [pod])
    world.bind(pod, "n3")
    state = {"sourceNode": "n2", "targetNode": "n3", "completed": True, "failed": True}
    world.status(migrationState=state)
    world.end(job, "Failed")


def moves_twice_with_an_unknown_author(world: VmWorld) -> None:
    is_unknown(world)
    moves_twice(world)


@pytest.mark.parametrize(
    "happens",
    [starts_elsewhere, starts_elsewhere_and_fails_to_migrate, moves_twice_with_an_unknown_author],
    ids=lambda one: one.__name__,
)
def test_vm_that_runs_elsewhere_without_a_reason(happens: Callable[[VmWorld], None]) -> None:
    world, driver = recorded()
    happens(world)

    assert restart(driver) == "n2"
    assert world.record() == "n1"


def is_edited(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n2"})


def is_sent_back(world: VmWorld) -> None:
    """A person asks for the node that the VM has just left."""
    move(world, "n2")
    world.write("vm", {STICKY_NODE: "n3"})
    world.write("vm", {STICKY_NODE: "n1"})


def is_confirmed(world: VmWorld) -> None:
    """A second writer owns the same value, as by server-side apply."""
    starts_elsewhere(world)

    def act(vm: dict[str, Any]) -> None:
        entries = vm["metadata"]["managedFields"]
        (own,) = [one for one in entries if one["manager"] == FIELD_MANAGER]
        entries.append({**own, "manager": "flux"})

    world.api.change(vm_at("vm"), act)


@pytest.mark.parametrize(
    "happens", [is_edited, is_sent_back, is_confirmed], ids=lambda one: one.__name__
)
def test_record_that_others_wrote_stays(happens: Callable[[VmWorld], None]) -> None:
    world, driver = recorded()
    happens(world)
    before = dict(world.annotations())

    assert restart(driver) == ""
    assert dict(world.annotations()) == {**before, STICKY_NODE_UID: "vm-1"}


def test_record_of_a_person_stays_if_the_migration_has_no_time() -> None:
    world, driver = recorded()
    moves_from_an_edit(world)
    report(world, endTimestamp=None)
    assert restart(driver) == ""
    assert world.record() == "n1"


def stops(world: VmWorld) -> None:
    starts_elsewhere(world)
    world.status(phase="Succeeded")


def migrates_again(world: VmWorld) -> None:
    starts_elsewhere(world)
    _, pod = world.migrate()
    strip(world, [pod])
    world.bind(pod, "n3")
    world.status(migrationState={"sourceNode": "n2", "targetNode": "n3"})


@pytest.mark.parametrize("happens", [stops, migrates_again], ids=lambda one: one.__name__)
def test_vm_that_does_not_stay_where_it_is(happens: Callable[[VmWorld], None]) -> None:
    world, driver = recorded()
    happens(world)
    assert restart(driver) == ""
    assert world.record() == "n1"


@pytest.mark.parametrize("args", OTHERS)
def test_vm_that_may_run_elsewhere(args: StickyArgs) -> None:
    world, driver = recorded(args)
    starts_elsewhere(world)
    assert restart(driver) == ""
    assert world.record() == "n1"


def test_advice_for_a_vm_that_runs_elsewhere() -> None:
    assert node_problems.difference(("shop", "db"), "n1", "n2", STICKY_NODE) == (
        "the VM runs on n2, but starts on n1 the next time, which is recorded: no migration "
        "explains this. To keep it on n2: kubectl annotate vm db --namespace shop --overwrite "
        "holdfast.dev/sticky-node=n2"
    )


# --- VMs that are not sticky for a while -------------------------------------------------------


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "controller restarts"])
def test_vm_that_migrated_while_not_sticky_returns_to_where_it_ran_last(watched: bool) -> None:
    world, driver = recorded()
    world.write("vm", {STICKY: "false"})
    move(world, "n2")
    assert (driver.work() if watched else restart(driver)) is not None
    world.stop()
    driver.work()
    world.write("vm", {STICKY: None})
    driver.work()
    assert world.record() == "n2"


@pytest.mark.parametrize("kept_by", ["a person", "onMigration", "no migration"])
def test_record_stays_while_the_vm_is_not_sticky(kept_by: str) -> None:
    args = StickyArgs(on_migration="keep" if kept_by == "onMigration" else "follow")
    world, driver = recorded(args)
    if kept_by == "a person":
        world.write("vm", {STICKY_NODE: "n3"})
    world.write("vm", {STICKY: "false"})
    before = world.record()
    if kept_by == "no migration":
        world.stop()
        start(world, "n2", finalizer=False)
    else:
        move(world, "n2")
    driver.work()
    assert world.record() == before
