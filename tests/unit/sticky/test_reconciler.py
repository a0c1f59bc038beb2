"""Reconciling one VM: its record, the finalizers of its pods, and concurrent changes."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pytest

from holdfast.webhook.errors import ResponseTooLargeError
from holdfast.webhook.framework.profiles import scheduler_of
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import STICKY, STICKY_NODE, STICKY_NODE_UID, VirtualMachine
from holdfast.webhook.model.limits import MAX_ANNOTATION_BYTES, MAX_ENTRIES
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report import sticky_vms
from holdfast.webhook.sticky import reconciler
from holdfast.webhook.sticky.decision import NEVER_RAN, NOT_ENABLED, TOO_MANY, RecordChange
from tests.support.fakes import GROUPS, KUBEVIRT, Document, raising, status_error, unreachable
from tests.support.vm_world import Driver, VmWorld, is_kept, job_at, pod_at, vm_at, vmi_at

OWN = {STICKY_NODE: "n1", STICKY_NODE_UID: "vm-1"}


def start_vm(world: VmWorld, node: str = "n1", *, ready: bool = True) -> str:
    pod = world.start()
    world.bind(pod, node)
    if ready:
        world.ready()
    return pod


def world_with_running_vm() -> tuple[VmWorld, str]:
    """Return a world with a running VM, and the name of its pod."""
    world = VmWorld()
    return world, start_vm(world)


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


# --- first nodes -------------------------------------------------------------------------------


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

    (first, on_vm), (second, on_pod) = world.api.patched
    assert (first, second) == (vm_at("vm"), pod_at(pod))
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
    assert [one["op"] for one in on_pod] == ["test", "test", "test", "remove"]
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
    world.api.change(pod_at(pod), lambda one: one["status"].update(phase="Failed"))


def vmi_fails(world: VmWorld, _: str) -> None:
    world.status(phase="Failed")


@pytest.mark.parametrize(
    "event", [pod_is_deleted, pod_fails, vmi_fails], ids=lambda one: one.__name__
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
        world.api.change(pod_at(pod), lambda one: one["status"].update(phase="Failed"))
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
    assert [one.metadata.name for one in result.freed] == [pod]
    assert world.annotations() == {}
    assert [path for _, path in world.api.requests if path.startswith(KUBEVIRT)] == []


# --- pods without a first node -----------------------------------------------------------------


def provision(pod: Document) -> None:
    pod["metadata"]["annotations"] = {kubevirt.EPHEMERAL_PROVISIONING: "true"}


def own_by_pod(pod: Document) -> None:
    pod["metadata"]["labels"]["kubevirt.io"] = "virt-launcher"
    owner = pod["metadata"]["ownerReferences"][0]
    owner.update(apiVersion="v1", kind="Pod")


def disown(pod: Document) -> None:
    del pod["metadata"]["ownerReferences"]


def foreign_group(pod: Document) -> None:
    pod["metadata"]["ownerReferences"][0]["apiVersion"] = "example.com/v1"


def wrong_uid(pod: Document) -> None:
    pod["metadata"]["ownerReferences"][0]["uid"] = "other"


@pytest.mark.parametrize(
    "change",
    [provision, own_by_pod, disown, foreign_group, wrong_uid],
    ids=lambda one: one.__name__,
)
def test_unrelated_pod_loses_finalizer_and_records_nothing(
    change: Callable[[Document], None],
) -> None:
    world = VmWorld()
    pod = world.start()
    world.bind(pod, "n1")
    world.api.change(pod_at(pod), change)
    Driver(world).work()

    assert world.annotations() == {}
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_pod_without_finalizer_records_nothing() -> None:
    world = VmWorld()
    pod = world.start(finalizer=False)
    world.bind(pod, "n1")
    driver = Driver(world)
    driver.work()

    assert world.annotations() == {}
    assert driver.watch.count() == 0


def remove_vmi(world: VmWorld) -> None:
    world.api.vanish(vmi_at("vm"))


def remove_vm(world: VmWorld) -> None:
    world.api.vanish(vm_at("vm"))


def recreate_vm(world: VmWorld) -> None:
    remove_vm(world)
    world.create("vm")


def orphan_vmi(world: VmWorld) -> None:
    world.api.change(vmi_at("vm"), lambda one: one["metadata"].pop("ownerReferences"))


def delete_vm(world: VmWorld) -> None:
    world.api.change(vm_at("vm"), lambda one: one["metadata"].update(finalizers=["kubevirt.io/x"]))
    world.api.delete(vm_at("vm"))


def uninstall(world: VmWorld) -> None:
    world.api.kinds = {path for path in world.api.kinds if not path.startswith(KUBEVIRT)}
    remove_vmi(world)
    remove_vm(world)


def uninstall_except_operator(world: VmWorld) -> None:
    uninstall(world)
    world.api.kinds.add(f"{KUBEVIRT}/kubevirts")


@pytest.mark.parametrize(
    "change",
    [
        remove_vmi,
        remove_vm,
        recreate_vm,
        orphan_vmi,
        delete_vm,
        uninstall,
        uninstall_except_operator,
    ],
    ids=lambda one: one.__name__,
)
def test_pod_of_missing_vm_loses_finalizer(change: Callable[[VmWorld], None]) -> None:
    world, pod = world_with_running_vm()
    change(world)
    Driver(world).work()

    assert not is_kept(world.api.objects[pod_at(pod)])
    assert all(
        not one["metadata"].get("annotations")
        for one in world.api.all(f"{KUBEVIRT}/virtualmachines")
    )


def test_recreated_vm_that_adopts_running_vmi_is_recorded() -> None:
    world, _ = world_with_running_vm()
    recreate_vm(world)
    driver = Driver(world)
    driver.work()
    assert world.annotations() == {}

    uid = world.vm()["metadata"]["uid"]
    world.api.change(
        vmi_at("vm"), lambda one: one["metadata"]["ownerReferences"][0].update(uid=uid)
    )
    driver.work()
    assert dict(world.annotations()) == {STICKY_NODE: "n1", STICKY_NODE_UID: uid}


# --- VMs that were running before --------------------------------------------------------------


def test_vmi_scheduler_name_is_used_to_choose_profile() -> None:
    world = VmWorld()
    pod = world.start(finalizer=False)
    world.bind(pod, "n1")
    world.ready()
    driver = Driver(world)
    driver.work()
    world.api.change(vmi_at("vm"), lambda one: one["spec"].update(schedulerName="batch"))
    driver.settle()

    assert scheduler_of(driver.asked[0]) == "default-scheduler"
    assert scheduler_of(driver.asked[-1]) == "batch"


# --- user edits of the record ------------------------------------------------------------------


def test_record_cleared_by_user_stays_cleared_while_vm_runs() -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: None})
    driver.work()
    driver.restart()
    driver.work()
    assert world.record() == ""

    world.stop()
    start_vm(world, "n3")
    driver.work()
    assert world.record() == "n3"


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
    many = {f"example.com/{number}": "" for number in range(MAX_ENTRIES)}
    for kept in (OWN, {STICKY_NODE_UID: "of another VM"}, {**many, STICKY_NODE_UID: "vm-1"}):
        world = VmWorld()
        annotations = {**kept, STICKY: "false"}
        world.write("vm", annotations)
        start_vm(world)
        Driver(world).work()
        assert dict(world.annotations()) == annotations


def test_record_removed_with_its_uid_is_written_again() -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: None, STICKY_NODE_UID: None})
    driver.work()

    assert dict(world.annotations()) == OWN


# --- migrations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_migration", "node"), [("follow", "n2"), ("keep", "n1")], ids=["follow", "keep"]
)
def test_record_after_successful_migration(on_migration: str, node: str) -> None:
    world = VmWorld(StickyArgs(on_migration=on_migration))  # type: ignore[arg-type]
    world, driver = world_with_record(world)
    migrate_vm(world)
    driver.work()

    assert dict(world.annotations()) == OWN | {STICKY_NODE: node}
    assert world.kept() == []


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


def migration_fails(world: VmWorld) -> None:
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.end(job, "Failed")


def migration_fails_unbound(world: VmWorld) -> None:
    job, _ = world.migrate()
    world.end(job, "Failed")


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


def moves_after_the_record_was_cleared(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: None})
    migrate_vm(world)


@pytest.mark.parametrize(
    ("event", "record"),
    [
        (migration_fails, "n1"),
        (migration_fails_unbound, "n1"),
        (moves_but_is_reported_failed, "n2"),
        (moves_twice, "n3"),
        (moves_and_is_removed, "n2"),
        (moves_after_an_edit, "n9"),
        (moves_after_the_record_was_cleared, ""),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
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
    world.api.change(
        pod_at(pod), lambda one: one["metadata"].update(annotations={kubevirt.MIGRATION_NAME: name})
    )
    driver.work()

    assert world.kept() == [pod]

    world.end(job, "Failed")
    driver.work()

    assert world.kept() == []


def test_migration_search_reduces_page_size_if_too_large() -> None:
    world, driver = world_with_record()
    _, pod = world.migrate()
    world.bind(pod, "n2")
    world.api.change(pod_at(pod), lambda one: one["metadata"].pop("annotations"))
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
        pod_at(pod), lambda one: one["metadata"]["ownerReferences"][0].update(name="%")
    )
    results = Driver(world).work()

    assert [result.problem for result in results] == ["", ""]
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_large_pod_loses_finalizer() -> None:
    world, pod = world_with_running_vm()
    world.api.change(
        pod_at(pod), lambda one: one["metadata"].update(annotations={"example.com/a": "x" * 20_000})
    )
    (result,) = Driver(world).work()

    assert (result.problem, world.record(), world.kept()) == ("", "n1", [])


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2026"])
def test_invalid_timestamp_does_not_block_finalizer_removal(time: str) -> None:
    world, _ = world_with_running_vm()
    writer = {"manager": "curl", "time": time, "fieldsV1": {}}
    changes = {"managedFields": [writer], "deletionTimestamp": "2026-03-01T12:00:00Z"}
    world.api.change(vm_at("vm"), lambda one: one["metadata"].update(changes))
    world.status(migrationState={"endTimestamp": time})
    (result,) = Driver(world).work()

    assert (result.problem, world.kept()) == ("", [])


def test_pending_migration_does_not_hide_record_author() -> None:
    world, driver = world_with_record()
    world.write("vm", {STICKY_NODE: "n9"})
    migrate_vm(world)
    _, waiting = world.migrate()
    driver.work()

    assert (world.record(), world.kept()) == ("n9", [waiting])


def test_migration_label_in_vm_template_is_ignored() -> None:
    world = VmWorld()
    pod = world.start()
    world.bind(pod, "n1")
    world.api.change(
        pod_at(pod),
        lambda one: one["metadata"]["labels"].update({kubevirt.MIGRATION_JOB: "made up"}),
    )
    world.status(phase="Running")
    world.stop()
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n1", [])


def test_unrecorded_vm_is_not_recorded_during_migration() -> None:
    world = VmWorld()
    pod = world.start(finalizer=False)
    world.bind(pod, "n1")
    world.ready()
    job, target = world.migrate()
    world.bind(target, "n2")
    driver = Driver(world)
    driver.work()
    assert world.record() == ""

    world.migrated(job, target)
    driver.work()
    assert world.record() == "n2"


# --- concurrent writes and errors --------------------------------------------------------------


def test_concurrent_vm_change_is_retried_at_once() -> None:
    world, _ = world_with_running_vm()
    world.api.before("PATCH", lambda: world.write("vm", {"team": "a"}))
    (result,) = Driver(world).work()

    assert result.problem == ""
    assert dict(world.annotations()) == {"team": "a", **OWN}


def test_concurrent_user_record_is_kept() -> None:
    world, _ = world_with_running_vm()
    world.api.before("PATCH", lambda: world.write("vm", {STICKY_NODE: "n9"}))
    Driver(world).work()

    assert world.record() == "n9"
    assert world.kept() == []


def test_constantly_changing_vm_reports_a_problem() -> None:
    world, _ = world_with_running_vm()
    change = [lambda number=number: world.write("vm", {"n": str(number)}) for number in range(9)]
    world.api.before("PATCH", *change)
    (result,) = Driver(world).work()

    assert result.problem == "the VM or its pods changed during 8 patches in a row"
    assert len(world.kept()) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 500])
def test_rejected_patch_keeps_finalizer_until_retry_succeeds(status: int) -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", raising(status_error(status, retry_after=7.0)))
    driver = Driver(world)
    (result,) = driver.work()

    assert result.problem.startswith(f"HTTP {status}: scripted")
    assert result.retry_after == 7.0
    assert (world.record(), world.kept()) == ("", [pod])
    driver.settle()
    assert (world.record(), world.kept()) == ("n1", [])


def test_missing_permission_is_reported_with_the_remedy() -> None:
    world, _ = world_with_running_vm()
    driver = Driver(world)
    driver.see()
    world.api.before("GET", raising(status_error(403)))
    result = driver.settle()

    assert result.problem == f"HTTP 403: scripted ({reconciler.CURE})"


def test_failed_finalizer_removal_keeps_record_and_is_retried() -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", lambda: None, raising(unreachable()))
    driver = Driver(world)
    (result,) = driver.work()

    assert (result.change, bool(result.problem)) == (RecordChange.RECORDED, True)
    assert (world.record(), world.kept()) == ("n1", [pod])
    assert driver.settle().problem == ""
    assert world.kept() == []


def test_concurrent_pod_change_is_retried_at_once() -> None:
    world, pod = world_with_running_vm()

    def change() -> None:
        world.api.change(pod_at(pod), lambda one: one["status"].update(phase="Running"))

    world.api.before("PATCH", lambda: None, change)
    (result,) = Driver(world).work()

    assert result.problem == ""
    assert world.kept() == []


def test_pod_bound_during_reconcile_is_recorded() -> None:
    world = VmWorld()
    pod = world.start()
    world.api.delete(pod_at(pod))  # so the pod appears never to be bound

    def run() -> None:
        world.bind(pod, "n2")
        world.ready()

    world.api.before("PATCH", run)
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n2", [])


def test_pod_deleted_during_reconcile_is_not_an_error() -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", lambda: None, lambda: world.api.vanish(pod_at(pod)))
    (result,) = Driver(world).work()

    assert result.problem == ""
    assert world.record() == "n1"


def test_invalid_response_keeps_finalizer() -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.see()
    world.api.change(vm_at("vm"), lambda one: one["metadata"].update(annotations=["odd"]))
    result = driver.settle()

    assert result.problem.startswith("the response for ")
    assert world.kept() == [pod]


def test_former_leader_writes_nothing() -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.leads = False
    (result,) = driver.work()

    assert result.problem == "this controller no longer leads"
    assert (world.record(), world.kept()) == ("", [pod])
    assert world.api.patched == []


# --- 404s that are not NotFound ----------------------------------------------------------------

VMI, VM, JOBS = vmi_at("vm"), vm_at("vm"), job_at("")


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param([VMI], id="the VMI"),
        pytest.param([VM], id="the VM"),
        pytest.param([VMI, KUBEVIRT], id="all of KubeVirt"),
        pytest.param([VMI, KUBEVIRT, GROUPS], id="all APIs"),
    ],
)
def test_proxy_404_keeps_finalizer(paths: Sequence[str]) -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.see()
    world.api.on_request = answer_404(paths)
    result = driver.settle()

    assert result.problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("", [pod])
    world.api.on_request = answer_404([])
    assert driver.settle().problem == ""
    assert (world.record(), world.kept()) == ("n1", [])


def test_proxy_404_does_not_end_migration() -> None:
    world, driver = world_with_record()
    job, pod = world.migrate()
    world.bind(pod, "n2")
    driver.see()
    world.api.on_request = answer_404([job_at(job), JOBS])

    assert driver.settle().problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("n1", [pod])


def test_proxy_404_keeps_orphaned_pod() -> None:
    world = VmWorld()
    pod = world.start()
    driver = Driver(world)
    driver.work()
    strip_label(world, pod)
    driver.see()
    world.api.on_request = answer_404([pod_at(pod)])

    assert driver.settle().problem == f"pod default/{pod}: HTTP 404: scripted"
    assert driver.watch.orphans_of(("default", "vm")) == [("default", pod)]


def answer_404(paths: Sequence[str]) -> Callable[[str, str], None]:
    """Return a hook that answers 404 for these paths, as a proxy without a route does."""

    def on_request(_method: str, path: str) -> None:
        if path in paths:
            raise status_error(404)

    return on_request


# --- pods outside the watch --------------------------------------------------------------------


def strip_label(world: VmWorld, pod: str) -> None:
    world.api.change(pod_at(pod), lambda one: one["metadata"]["labels"].clear())


def test_pod_that_loses_its_label_is_tracked_by_name() -> None:
    world = VmWorld()
    pod = world.start()
    driver = Driver(world)
    driver.work()
    strip_label(world, pod)
    driver.work()
    assert driver.watch.orphans_of(("default", "vm")) == [("default", pod)]

    world.bind(pod, "n2")
    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n2", [])
    assert driver.watch.count() == 0


def test_ended_pod_that_lost_its_label_is_found_at_startup() -> None:
    world, pod = world_with_running_vm()
    world.status(phase="Succeeded")
    strip_label(world, pod)
    world.end_pod(pod)
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n1", [])


def test_node_is_recorded_from_vmi_if_finalizer_is_stripped() -> None:
    world = VmWorld()
    pod = world.start()
    driver = Driver(world)
    driver.work()
    world.api.change(pod_at(pod), lambda one: one["metadata"].update(finalizers=[]))
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
