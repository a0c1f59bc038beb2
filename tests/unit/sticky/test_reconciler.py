"""One VM at a time: what is written on it, which pods are let go, and what others do meanwhile."""

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


def landed(world: VmWorld, node: str = "n1", *, ready: bool = True) -> str:
    pod = world.start()
    world.bind(pod, node)
    if ready:
        world.ready()
    return pod


def landing() -> tuple[VmWorld, str]:
    """Make a world whose VM has landed, and name its pod."""
    world = VmWorld()
    return world, landed(world)


def recorded(world: VmWorld | None = None) -> tuple[VmWorld, Driver]:
    world = world or VmWorld()
    landed(world)
    driver = Driver(world)
    driver.work()
    assert dict(world.annotations()) == OWN
    return world, driver


def moved(world: VmWorld, node: str = "n2") -> str:
    job, pod = world.migrate()
    world.bind(pod, node)
    world.migrated(job, pod)
    return pod


# --- landings ----------------------------------------------------------------------------------


def test_first_landing_is_recorded_and_the_pod_let_go() -> None:
    world, pod = landing()
    (settled,) = Driver(world).work()

    assert dict(world.annotations()) == OWN
    assert (settled.change, settled.node, settled.problem) == (RecordChange.RECORDED, "n1", "")
    assert world.api.objects[pod_at(pod)]["metadata"]["finalizers"] == ["example.com/other"]


def test_record_is_written_before_the_pod_is_let_go_and_both_are_guarded() -> None:
    world, pod = landing()
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


def test_key_of_the_sticky_vm_plugin() -> None:
    world = VmWorld(StickyArgs(node_annotation="example.com/sticky-node"))
    landed(world)
    Driver(world).work()

    assert dict(world.annotations()) == {"example.com/sticky-node": "n1", STICKY_NODE_UID: "vm-1"}


def test_landing_that_is_deleted_before_anybody_looked_is_recorded() -> None:
    world, pod = landing()
    world.stop()
    assert world.kept() == [pod]
    Driver(world).work()
    world.collect()

    assert dict(world.annotations()) == OWN
    assert world.vmi() is None


def test_landing_is_recorded_once_the_vm_has_run() -> None:
    world = VmWorld()
    pod = landed(world, ready=False)
    driver = Driver(world)
    for phase in ("Scheduling", "Scheduled", "WaitingForSync"):
        world.status(phase=phase, nodeName="n1")
        driver.work()
        assert (world.record(), world.kept()) == ("", [pod])

    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


def test_pod_of_a_vm_with_a_record_is_let_go_once_it_is_bound() -> None:
    world, driver = recorded()
    world.stop()
    landed(world, "n1", ready=False)
    driver.work()
    assert (world.record(), world.kept()) == ("n1", [])


def test_vm_with_more_annotations_than_the_guard_compares_lets_its_pod_go() -> None:
    world = VmWorld()
    world.write("vm", {f"key-{number}": "" for number in range(MAX_ENTRIES - 1)})
    landed(world)
    (settled,) = Driver(world).work()
    assert (world.record(), world.kept()) == ("", [])
    assert settled.remark == TOO_MANY


def test_vm_without_room_for_the_record_lets_its_pod_go() -> None:
    world = VmWorld()
    world.write("vm", {"key": "x" * (MAX_ANNOTATION_BYTES - 30)})
    landed(world)
    (settled,) = Driver(world).work()
    assert (world.record(), world.kept()) == ("", [])
    assert settled.remark == TOO_MANY


def is_deleted(world: VmWorld, pod: str) -> None:
    world.api.delete(pod_at(pod))


def fails_on_the_node(world: VmWorld, pod: str) -> None:
    world.api.change(pod_at(pod), lambda one: one["status"].update(phase="Failed"))


def fails_as_a_whole(world: VmWorld, _: str) -> None:
    world.status(phase="Failed")


@pytest.mark.parametrize(
    "happens", [is_deleted, fails_on_the_node, fails_as_a_whole], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("restarted", [False, True], ids=["watching", "restarted"])
def test_vm_that_ends_before_it_runs_is_not_recorded(
    happens: Callable[[VmWorld, str], None], restarted: bool
) -> None:
    world = VmWorld()
    pod = landed(world, ready=False)
    driver = Driver(world)
    driver.work()
    happens(world, pod)
    if restarted:
        driver.restart()
    (settled,) = driver.work()

    assert (world.annotations(), world.kept()) == ({}, [])
    assert settled.remark == f"{NEVER_RAN} n1"
    remove_vmi(world)
    landed(world, "n2")
    driver.work()
    assert world.record() == "n2"


def test_vm_whose_record_was_cleared_is_recorded_once_it_has_run() -> None:
    world, driver = recorded()
    world.stop()
    world.write("vm", {STICKY_NODE: None})
    pod = landed(world, "n2", ready=False)
    driver.work()
    assert (world.record(), world.kept()) == ("", [pod])
    world.ready()
    driver.work()
    assert (world.record(), world.kept()) == ("n2", [])


def test_pod_that_is_not_bound_yet_waits() -> None:
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
def test_pod_that_ended_without_being_bound_is_let_go(ending: str) -> None:
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
    "a person's": ({STICKY_NODE: "n9"}, OWN | {STICKY_NODE: "n9"}),
    "a person's, the UID empty": (
        {STICKY_NODE: "n9", STICKY_NODE_UID: ""},
        OWN | {STICKY_NODE: "n9"},
    ),
    "a clone's": ({STICKY_NODE: "n9", STICKY_NODE_UID: "other"}, OWN),
    "cleared": ({STICKY_NODE_UID: "vm-1"}, OWN),
    "emptied": ({STICKY_NODE: "", STICKY_NODE_UID: "vm-1"}, OWN),
    "a clone's, cleared": ({STICKY_NODE_UID: "other"}, OWN),
}


@pytest.mark.parametrize(("before", "after"), RECORDS.values(), ids=RECORDS)
def test_landing_of_a_vm_that_has_a_record(
    before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    world = VmWorld()
    world.write("vm", before)
    landed(world)
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
def test_vm_that_does_not_stick(args: StickyArgs, annotations: Mapping[str, str]) -> None:
    world = VmWorld(args)
    world.write("vm", annotations)
    landed(world)
    Driver(world).work()

    assert dict(world.annotations()) == annotations
    assert world.kept() == []


def test_sticky_that_is_not_enabled_any_more_lets_pods_go_and_says_so() -> None:
    world, pod = landing()
    driver = Driver(world, enabled=False)
    (settled,) = driver.work()

    assert settled.remark == NOT_ENABLED
    assert [one.metadata.name for one in settled.freed] == [pod]
    assert world.annotations() == {}
    assert [path for _, path in world.api.requests if path.startswith(KUBEVIRT)] == []


# --- no landings -------------------------------------------------------------------------------


def label(pod: Document) -> None:
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
    "change", [label, own_by_pod, disown, foreign_group, wrong_uid], ids=lambda one: one.__name__
)
def test_pod_that_is_no_landing_is_let_go_and_records_nothing(
    change: Callable[[Document], None],
) -> None:
    world = VmWorld()
    pod = world.start()
    world.bind(pod, "n1")
    world.api.change(pod_at(pod), change)
    Driver(world).work()

    assert world.annotations() == {}
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_pod_without_the_finalizer_tells_nothing() -> None:
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


def uninstall_but_for_the_operator(world: VmWorld) -> None:
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
        uninstall_but_for_the_operator,
    ],
    ids=lambda one: one.__name__,
)
def test_pod_whose_vm_is_gone_is_let_go(change: Callable[[VmWorld], None]) -> None:
    world, pod = landing()
    change(world)
    Driver(world).work()

    assert not is_kept(world.api.objects[pod_at(pod)])
    assert all(
        not one["metadata"].get("annotations")
        for one in world.api.all(f"{KUBEVIRT}/virtualmachines")
    )


def test_vm_that_a_running_vmi_is_given_back_to_is_recorded_from_that() -> None:
    world, _ = landing()
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


# --- VMs that ran before, and that opt in ------------------------------------------------------


def test_scheduler_of_a_vmi_chooses_the_profile_as_its_pod_would() -> None:
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


# --- what people do to the record --------------------------------------------------------------


def test_record_that_a_person_clears_is_not_written_again_while_the_vm_runs() -> None:
    world, driver = recorded()
    world.write("vm", {STICKY_NODE: None})
    driver.work()
    driver.restart()
    driver.work()
    assert world.record() == ""

    world.stop()
    landed(world, "n3")
    driver.work()
    assert world.record() == "n3"


def test_record_that_the_command_clears_stays_cleared() -> None:
    world, driver = recorded()
    vm = msgspec.convert(world.vm(), VirtualMachine)
    patch = sticky_vms.record(vm, None, world.args)["metadata"]
    world.write("vm", patch["annotations"])
    driver.restart()
    driver.work()

    assert dict(world.annotations()) == {STICKY_NODE_UID: vm.metadata.uid}


@pytest.mark.parametrize("finalizer", [True, False])
def test_cleared_vm_that_restarts_while_it_is_not_sticky_is_recorded_once_it_is(
    *, finalizer: bool
) -> None:
    world, driver = recorded()
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


def test_uid_of_a_vm_that_is_not_sticky_stays_with_a_record_or_if_it_cannot_be_removed() -> None:
    crowd = {f"example.com/{number}": "" for number in range(MAX_ENTRIES)}
    for kept in (OWN, {STICKY_NODE_UID: "of another VM"}, {**crowd, STICKY_NODE_UID: "vm-1"}):
        world = VmWorld()
        annotations = {**kept, STICKY: "false"}
        world.write("vm", annotations)
        landed(world)
        Driver(world).work()
        assert dict(world.annotations()) == annotations


def test_record_that_is_swept_away_with_its_uid_is_written_again() -> None:
    world, driver = recorded()
    world.write("vm", {STICKY_NODE: None, STICKY_NODE_UID: None})
    driver.work()

    assert dict(world.annotations()) == OWN


# --- migrations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_migration", "node"), [("follow", "n2"), ("keep", "n1")], ids=["follow", "keep"]
)
def test_migration_that_succeeded(on_migration: str, node: str) -> None:
    world = VmWorld(StickyArgs(on_migration=on_migration))  # type: ignore[arg-type]
    world, driver = recorded(world)
    moved(world)
    driver.work()

    assert dict(world.annotations()) == OWN | {STICKY_NODE: node}
    assert world.kept() == []


def test_target_is_kept_while_its_migration_runs() -> None:
    world, driver = recorded()
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


def fails(world: VmWorld) -> None:
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.end(job, "Failed")


def fails_unbound(world: VmWorld) -> None:
    job, _ = world.migrate()
    world.end(job, "Failed")


def moves_and_is_called_failed(world: VmWorld) -> None:
    """As when the VM is shut down before KubeVirt has looked."""
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.moved(job, pod)
    world.end(job, "Failed")


def moves_twice(world: VmWorld) -> None:
    first = moved(world)
    moved(world, "n3")
    world.end_pod(first)


def moves_and_is_removed(world: VmWorld) -> None:
    job, pod = world.migrate()
    world.bind(pod, "n2")
    world.migrated(job, pod)
    world.api.vanish(job_at(job))


def moves_after_an_edit(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: "n9"})
    moved(world)


def moves_after_the_record_was_cleared(world: VmWorld) -> None:
    world.write("vm", {STICKY_NODE: None})
    moved(world)


@pytest.mark.parametrize(
    ("happens", "record"),
    [
        (fails, "n1"),
        (fails_unbound, "n1"),
        (moves_and_is_called_failed, "n2"),
        (moves_twice, "n3"),
        (moves_and_is_removed, "n2"),
        (moves_after_an_edit, "n9"),
        (moves_after_the_record_was_cleared, ""),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
@pytest.mark.parametrize("restarted", [False, True], ids=["watching", "restarted"])
def test_record_after_a_migration(
    happens: Callable[[VmWorld], None], record: str, restarted: bool
) -> None:
    world, driver = recorded()
    happens(world)
    if restarted:
        driver.restart()
    driver.work()

    assert (world.record(), world.kept()) == (record, [])


def refuse_percent(_method: str, path: str) -> None:
    """Answer as the API server does for names that it would never look up."""
    if "%25" in path:
        raise status_error(400)


@pytest.mark.parametrize("name", ["", "another", "%"], ids=["missing", "wrong", "no name"])
def test_migration_is_found_although_its_name_on_the_pod_is_not_right(name: str) -> None:
    world, driver = recorded()
    world.api.on_request = refuse_percent
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


def test_search_for_a_migration_reads_no_page_that_is_too_large() -> None:
    world, driver = recorded()
    _, pod = world.migrate()
    world.bind(pod, "n2")
    world.api.change(pod_at(pod), lambda one: one["metadata"].pop("annotations"))
    world.migrate()
    driver.see()
    world.api.queries.clear()
    too_large = raising(ResponseTooLargeError("too large"))
    world.api.before("GET", *[too_large] * 4)
    settled = driver.settle()

    assert (settled.problem, pod in world.kept()) == ("", True)
    assert [query["limit"] for query in world.api.queries[:5]] == [500, 125, 31, 7, 1]


def test_pod_of_an_owner_that_cannot_exist_is_let_go() -> None:
    world, pod = landing()
    world.api.on_request = refuse_percent
    world.api.change(
        pod_at(pod), lambda one: one["metadata"]["ownerReferences"][0].update(name="%")
    )
    settled = Driver(world).work()

    assert [one.problem for one in settled] == ["", ""]
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_large_pod_is_read_again_to_be_let_go() -> None:
    world, pod = landing()
    world.api.change(
        pod_at(pod), lambda one: one["metadata"].update(annotations={"example.com/a": "x" * 20_000})
    )
    (settled,) = Driver(world).work()

    assert (settled.problem, world.record(), world.kept()) == ("", "n1", [])


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2026"])
def test_time_that_a_user_wrote_keeps_no_pod_of_a_deleted_vm(time: str) -> None:
    world, _ = landing()
    writer = {"manager": "curl", "time": time, "fieldsV1": {}}
    changes = {"managedFields": [writer], "deletionTimestamp": "2026-03-01T12:00:00Z"}
    world.api.change(vm_at("vm"), lambda one: one["metadata"].update(changes))
    world.status(migrationState={"endTimestamp": time})
    (settled,) = Driver(world).work()

    assert (settled.problem, world.kept()) == ("", [])


def test_migration_that_has_only_begun_does_not_hide_who_made_the_record() -> None:
    world, driver = recorded()
    world.write("vm", {STICKY_NODE: "n9"})
    moved(world)
    _, waiting = world.migrate()
    driver.work()

    assert (world.record(), world.kept()) == ("n9", [waiting])


def test_label_of_a_migration_in_a_vms_template_makes_no_target() -> None:
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


def test_vm_without_a_record_is_not_recorded_while_it_may_be_moving() -> None:
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


# --- others who write, and refuse --------------------------------------------------------------


def test_vm_that_changes_meanwhile_is_read_and_decided_again_at_once() -> None:
    world, _ = landing()
    world.api.before("PATCH", lambda: world.write("vm", {"team": "a"}))
    (settled,) = Driver(world).work()

    assert settled.problem == ""
    assert dict(world.annotations()) == {"team": "a", **OWN}


def test_record_that_a_person_writes_meanwhile_counts() -> None:
    world, _ = landing()
    world.api.before("PATCH", lambda: world.write("vm", {STICKY_NODE: "n9"}))
    Driver(world).work()

    assert world.record() == "n9"
    assert world.kept() == []


def test_vm_that_never_stays_the_same_is_put_off() -> None:
    world, _ = landing()
    change = [lambda number=number: world.write("vm", {"n": str(number)}) for number in range(9)]
    world.api.before("PATCH", *change)
    (settled,) = Driver(world).work()

    assert settled.problem == "the VM or its pods changed during 8 patches in a row"
    assert len(world.kept()) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 500])
def test_refusal_of_others_keeps_the_pod_and_is_to_be_tried_again(status: int) -> None:
    world, pod = landing()
    world.api.before("PATCH", raising(status_error(status, retry_after=7.0)))
    driver = Driver(world)
    (settled,) = driver.work()

    assert settled.problem.startswith(f"HTTP {status}: scripted")
    assert settled.retry_after == 7.0
    assert (world.record(), world.kept()) == ("", [pod])
    driver.settle()
    assert (world.record(), world.kept()) == ("n1", [])


def test_missing_right_is_told_with_the_cure() -> None:
    world, _ = landing()
    driver = Driver(world)
    driver.see()
    world.api.before("GET", raising(status_error(403)))
    settled = driver.settle()

    assert settled.problem == f"HTTP 403: scripted ({reconciler.CURE})"


def test_pod_that_cannot_be_let_go_keeps_the_record() -> None:
    world, pod = landing()
    world.api.before("PATCH", lambda: None, raising(unreachable()))
    driver = Driver(world)
    (settled,) = driver.work()

    assert (settled.change, bool(settled.problem)) == (RecordChange.RECORDED, True)
    assert (world.record(), world.kept()) == ("n1", [pod])
    assert driver.settle().problem == ""
    assert world.kept() == []


def test_pod_that_changes_meanwhile_is_read_again() -> None:
    world, pod = landing()

    def change() -> None:
        world.api.change(pod_at(pod), lambda one: one["status"].update(phase="Running"))

    world.api.before("PATCH", lambda: None, change)
    (settled,) = Driver(world).work()

    assert settled.problem == ""
    assert world.kept() == []


def test_pod_that_is_bound_meanwhile_is_recorded() -> None:
    world = VmWorld()
    pod = world.start()
    world.api.delete(pod_at(pod))  # so it seems that it never will be

    def run() -> None:
        world.bind(pod, "n2")
        world.ready()

    world.api.before("PATCH", run)
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n2", [])


def test_pod_that_goes_meanwhile_is_nobodys_trouble() -> None:
    world, pod = landing()
    world.api.before("PATCH", lambda: None, lambda: world.api.vanish(pod_at(pod)))
    (settled,) = Driver(world).work()

    assert settled.problem == ""
    assert world.record() == "n1"


def test_answer_that_cannot_be_read_is_asked_for_again() -> None:
    world, pod = landing()
    driver = Driver(world)
    driver.see()
    world.api.change(vm_at("vm"), lambda one: one["metadata"].update(annotations=["odd"]))
    settled = driver.settle()

    assert settled.problem.startswith("the response for ")
    assert world.kept() == [pod]


def test_controller_that_leads_no_more_writes_nothing() -> None:
    world, pod = landing()
    driver = Driver(world)
    driver.leads = False
    (settled,) = driver.work()

    assert settled.problem == "this controller no longer leads"
    assert (world.record(), world.kept()) == ("", [pod])
    assert world.api.patched == []


# --- a 404 that names no object ----------------------------------------------------------------

VMI, VM, JOBS = vmi_at("vm"), vm_at("vm"), job_at("")


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param([VMI], id="the VMI"),
        pytest.param([VM], id="the VM"),
        pytest.param([VMI, KUBEVIRT], id="all of KubeVirt's"),
        pytest.param([VMI, KUBEVIRT, GROUPS], id="whatever is asked for"),
    ],
)
def test_404_that_is_not_kubernetes_own_lets_no_landing_go(lost: Sequence[str]) -> None:
    world, pod = landing()
    driver = Driver(world)
    driver.see()
    world.api.on_request = losing(lost)
    settled = driver.settle()

    assert settled.problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("", [pod])
    world.api.on_request = losing([])
    assert driver.settle().problem == ""
    assert (world.record(), world.kept()) == ("n1", [])


def test_404_that_is_not_kubernetes_own_ends_no_migration() -> None:
    world, driver = recorded()
    job, pod = world.migrate()
    world.bind(pod, "n2")
    driver.see()
    world.api.on_request = losing([job_at(job), JOBS])

    assert driver.settle().problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("n1", [pod])


def test_404_that_is_not_kubernetes_own_lets_no_stray_go() -> None:
    world = VmWorld()
    pod = world.start()
    driver = Driver(world)
    driver.work()
    strip_label(world, pod)
    driver.see()
    world.api.on_request = losing([pod_at(pod)])

    assert driver.settle().problem == f"pod default/{pod}: HTTP 404: scripted"
    assert driver.watch.orphans_of(("default", "vm")) == [("default", pod)]


def losing(paths: Sequence[str]) -> Callable[[str, str], None]:
    """Answer for these paths as a proxy does that does not know them."""

    def judge(_method: str, path: str) -> None:
        if path in paths:
            raise status_error(404)

    return judge


# --- pods that no watch reports ----------------------------------------------------------------


def strip_label(world: VmWorld, pod: str) -> None:
    world.api.change(pod_at(pod), lambda one: one["metadata"]["labels"].clear())


def test_pod_that_loses_its_label_is_followed_by_its_name() -> None:
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


def test_pod_that_lost_its_label_while_nobody_looked_is_found_when_it_has_ended() -> None:
    world, pod = landing()
    world.status(phase="Succeeded")
    strip_label(world, pod)
    world.end_pod(pod)
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n1", [])


def test_finalizer_that_somebody_strips_from_a_bound_pod_leaves_the_vmi_to_tell() -> None:
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


def test_pods_that_wait_are_counted() -> None:
    world = VmWorld(None, "a", "b")
    for name in ("a", "b"):
        world.start(name)
    driver = Driver(world)
    driver.leads = False
    world.api.delete(pod_at(world.kept("b")[0]))
    driver.work()

    assert (driver.watch.count(), driver.watch.count_ended()) == (2, 1)
