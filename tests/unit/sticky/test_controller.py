"""The recorder as it runs, with its threads, on a stand-in for an API server."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.webhook.kube import events, reflector
from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT
from holdfast.webhook.kube.events import Event
from holdfast.webhook.model.kubevirt import (
    EPHEMERAL_PROVISIONING,
    STICKY_NODE,
    STICKY_NODE_UID,
    vm_path,
)
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky import sweep
from holdfast.webhook.sticky.controller import FIRST_OF_ONE, StickyController
from holdfast.webhook.sticky.reconciler import CURE, TIMEOUT
from holdfast.webhook.sticky.watches import NO_KUBEVIRT
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue import backoff, fair
from holdfast.webhook.workqueue.fair import SLOW_SECONDS
from tests.support.by_hand import Impatient, ThreadPool
from tests.support.fakes import Document, raising, status_error, unreachable
from tests.support.vm_world import VmWorld, job_at, pod_at, vm_at, vmi_at

PATIENCE = 30.0
NODE = "/api/v1/nodes/n1"
OWN = {STICKY_NODE: "n1", STICKY_NODE_UID: "vm-1"}


class Told(events.EventSink):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)


class Running:
    def __init__(self, world: VmWorld, *, enabled: bool = True) -> None:
        self.world = world
        self.told = Told()
        self.metrics = ControllerMetrics()
        self.leads = True
        self.may_sweep = True
        self.asked_to_sweep = 0
        self.recorder = StickyController(
            world.api,
            lambda _: world.args if enabled else None,
            self.metrics,
            enabled=enabled,
            recorder=self.told,
            may_write=lambda: self.leads,
            may_sweep=self._may_sweep,
        )
        self.died = threading.Event()
        self.threads = ThreadGroup(on_failure=self.died.set)
        self.recorder.add_to(self.threads)

    def _may_sweep(self) -> bool:
        self.asked_to_sweep += 1
        return self.may_sweep

    def eventually(self, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def land(self) -> None:
        """Start the VM, and wait until its node is recorded."""
        self.world.bind(self.world.start(), "n1")
        self.world.ready()
        self.eventually(lambda: self.world.record() == "n1")

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def notes(self, kind: events.ObjectKind, reason: str) -> list[str]:
        found = self.told.events
        return [one.note for one in found if (one.kind, one.reason) == (kind, reason)]


@contextmanager
def running(
    world: VmWorld, *, enabled: bool = True, may_sweep: bool = True, leads: bool = True
) -> Iterator[Running]:
    one = Running(world, enabled=enabled)
    one.may_sweep = may_sweep
    one.leads = leads
    with one.threads:
        try:
            one.eventually(lambda: one.recorder.synced)
            yield one
        finally:
            one.threads.stop()
            one.recorder.wake()
            world.api.close()
    assert not one.died.is_set()


def test_kept_pods_are_counted() -> None:
    world = VmWorld()
    with running(world) as one:
        pod = world.start()
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 1.0)
        world.bind(pod, "n1")
        world.ready()
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 0.0)


def test_landing_is_recorded_told_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.sticky")
    world = VmWorld()
    pod = world.start()
    # before the controller: a pod that changes meanwhile may be let go in a later pass, untold
    world.bind(pod, "n1")
    world.ready()
    with running(world) as one:
        one.eventually(lambda: not world.kept())
        one.eventually(lambda: len(one.told.events) == 2)
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 0.0)

    note = "recorded node n1: the VM starts there again"
    uid = world.api.objects[pod_at(pod)]["metadata"]["uid"]
    assert one.told.events == [
        Event(("default", "vm"), "vm-1", "StickyNodeRecorded", note, kind=events.VM),
        Event(("default", pod), uid, "StickyNodeRecorded", note),
    ]
    assert dict(world.annotations()) == OWN
    assert one.sample("holdfast_vm_records_total", outcome="recorded") == 1.0
    assert f"VM default/vm: {note}" in caplog.messages


def test_migration_is_followed_as_it_happens() -> None:
    world = VmWorld()
    with running(world) as one:
        one.land()
        job, pod = world.migrate()
        world.bind(pod, "n2")
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 1.0)
        world.migrated(job, pod)
        one.eventually(lambda: world.record() == "n2" and not world.kept())
        one.eventually(lambda: len(one.notes(events.VM, events.NODE_RECORDED)) == 2)

    assert one.notes(events.VM, events.NODE_RECORDED)[1] == (
        "recorded node n2 after a migration: the VM starts there again"
    )
    assert one.sample("holdfast_vm_records_total", outcome="followed") == 1.0


def test_migration_without_a_held_pod_is_followed_once_the_vmi_reports_its_end() -> None:
    world = VmWorld()
    with running(world) as one:
        one.land()
        state = {"sourceNode": "n1", "targetNode": "n2"}
        before = len(world.api.requests)
        world.status(nodeName="n2", migrationState=state)
        one.eventually(lambda: ("GET", vm_at("vm")) in world.api.requests[before:])
        assert world.record() == "n1"
        world.status(migrationState={**state, "completed": True})
        one.eventually(lambda: world.record() == "n2")

    assert one.notes(events.VM, events.NODE_DIFFERS) == []


def test_vm_that_runs_elsewhere_without_a_reason_is_reported() -> None:
    world = VmWorld()
    with running(world) as one:
        one.land()
        world.status(nodeName="n2")
        one.eventually(lambda: one.notes(events.VM, events.NODE_DIFFERS))

    assert one.notes(events.VM, events.NODE_DIFFERS)[0].startswith("the VM runs on n2, but starts")
    assert world.record() == "n1"


def test_target_goes_when_its_migration_is_removed() -> None:
    world = VmWorld()
    with running(world) as one:
        one.land()
        job, pod = world.migrate()
        world.bind(pod, "n2")
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 1.0)
        world.api.vanish(job_at(job))
        one.eventually(lambda: not world.kept())

    assert world.record() == "n1"


def test_vm_that_ends_before_it_runs_is_reported() -> None:
    world = VmWorld()
    with running(world) as one:
        pod = world.start()
        world.bind(pod, "n1")
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 1.0)
        world.status(phase="Failed")
        one.eventually(lambda: not world.kept())
        one.eventually(lambda: one.notes(events.POD, events.NODE_NOT_RECORDED))

    assert one.notes(events.POD, events.NODE_NOT_RECORDED) == [
        "no node is recorded, because the VM ended before it ran; it was on n1"
    ]
    assert world.record() == ""


def test_vm_that_opts_in_while_it_runs() -> None:
    world = VmWorld(StickyArgs(select="annotated"))
    with running(world) as one:
        world.bind(world.start(), "n1")
        one.eventually(lambda: not world.kept())
        world.ready()
        world.write("vm", {"holdfast.dev/sticky": "true"})
        one.eventually(lambda: world.record() == "n1")


def test_refusals_of_others_are_told_and_hold_up_no_other_vm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    world = VmWorld(None, "a", "b")
    refused = threading.Event()

    def judge(method: str, path: str) -> None:
        if (method, path) == ("PATCH", vm_at("a")) and not refused.is_set():
            raise status_error(403)

    world.api.on_request = judge
    with running(world) as one:
        for name in ("a", "b"):
            world.bind(world.start(name), "n1")
            world.ready(name)
        one.eventually(lambda: world.record("b") == "n1")
        one.eventually(lambda: one.sample("holdfast_vm_records_total", outcome="retried") >= 2)
        assert world.record("a") == ""
        refused.set()
        one.eventually(lambda: world.record("a") == "n1" and not world.kept("a"))

    (note, *_) = one.notes(events.VM, events.NODE_NOT_RECORDED)
    assert note == (
        "HTTP 403: scripted (bind the ClusterRole holdfast-controller-kubevirt of the manifests to "
        "the controller); it is retried until it succeeds"
    )


def test_one_vm_that_nobody_can_make_sense_of_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    world = VmWorld(None, "a", "b")
    failed = threading.Event()

    def judge(_method: str, path: str) -> None:
        if path == vmi_at("a") and not failed.is_set():
            failed.set()
            raise KeyError("a slip of ours")

    world.api.on_request = judge
    with running(world) as one:
        world.bind(world.start("a"), "n1")
        one.eventually(failed.is_set)
        world.bind(world.start("b"), "n1")
        for name in ("a", "b"):
            world.ready(name)
        one.eventually(lambda: world.record("a") == world.record("b") == "n1")

    assert "VMI default/a" in caplog.messages


def test_who_does_not_lead_follows_and_writes_nothing_until_it_does() -> None:
    world = VmWorld()
    with running(world, leads=False) as one:
        world.bind(world.start(), "n1")
        world.ready()
        one.eventually(lambda: one.sample("holdfast_vm_pods_kept") == 1.0)
        assert world.api.patched == []
        one.leads = True
        one.recorder.wake()
        one.eventually(lambda: not world.kept())

    assert world.record() == "n1"


def test_who_stands_by_keeps_no_list_of_what_was() -> None:
    world = VmWorld(None, *(f"vm-{number}" for number in range(5)))
    with running(world, leads=False) as one:
        for number in range(5):
            name = f"vm-{number}"
            pod = world.start(name, finalizer=False)
            world.bind(pod, "n1")
            world.ready(name)
            one.eventually(lambda: len(one.recorder._queue) == 1)
            world.stop(name)
            one.eventually(lambda: len(one.recorder._queue) == 0)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        pytest.param(None, "which does not exist", id="gone"),
        pytest.param({"unschedulable": True}, "which is cordoned", id="cordoned"),
        pytest.param({}, "which lacks the label", id="without the label"),
    ],
)
def test_vm_that_waits_for_its_node_is_told_why(node: dict[str, bool] | None, why: str) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    if node is not None:
        world.api.put(NODE, {"metadata": {"name": "n1"}, "spec": node})
    with running(world) as one:
        pod = world.start()
        world.unschedulable(pod)
        one.eventually(lambda: one.notes(events.POD, events.NODE_UNAVAILABLE))

    notes = one.notes(events.VM, events.NODE_UNAVAILABLE)
    assert notes[0].startswith(f"the VM waits for its node n1, {why}")
    assert world.kept() == [pod]
    assert dict(world.annotations()) == OWN


def provisions(world: VmWorld, *, uid: str = "") -> str:
    """Start the VM, with a pod that only provisions its volumes and finds no node."""
    pod = world.start(finalizer=False)

    def change(one: Document) -> None:
        one["metadata"]["annotations"] = {EPHEMERAL_PROVISIONING: "true"}
        (owner,) = one["metadata"]["ownerReferences"]
        owner["uid"] = uid or owner["uid"]

    world.api.change(pod_at(pod), change)
    world.unschedulable(pod)
    return pod


@pytest.mark.parametrize("first", ["the pod", "the controller"])
def test_vm_whose_volumes_wait_for_its_node_is_reported(first: str) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    world.api.put(NODE, {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}})
    pod = provisions(world) if first == "the pod" else ""
    with running(world) as one:
        pod = pod or provisions(world)
        one.eventually(lambda: one.notes(events.POD, events.NODE_UNAVAILABLE))
        world.api.vanish(pod_at(pod))
        world.stop()
        one.eventually(lambda: not len(one.recorder._queue))

    assert one.notes(events.VM, events.NODE_UNAVAILABLE)[0].startswith(
        "the VM waits for its node n1, which is cordoned"
    )
    assert one.recorder._watch.provisioners_of(("default", "vm"), "vmi-2") == []


def test_pod_of_another_vmi_that_provisions_volumes_gets_no_event() -> None:
    world = VmWorld()
    world.write("vm", OWN)
    world.api.put(NODE, {"metadata": {"name": "n1"}})
    with running(world) as one:
        provisions(world, uid="vmi-of-before")
        one.eventually(lambda: one.notes(events.VM, events.NODE_UNAVAILABLE))

    assert one.notes(events.POD, events.NODE_UNAVAILABLE) == []


@pytest.mark.parametrize("ready", ["Unknown", "True"])
def test_vm_on_a_node_that_died_before_it_was_reported_is_told_why(ready: str) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    metadata = {"name": "n1", "labels": {"kubevirt.io/schedulable": "true"}}
    node: Document = {"metadata": metadata, "spec": {"unschedulable": True}}
    world.api.put(NODE, node)
    with running(world) as one:
        world.bind(world.start(), "n1")
        one.eventually(lambda: not world.kept() and len(one.recorder._queue) == 1)
        assert one.told.events == []
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        world.api.put(NODE, {**node, "status": status})
        world.api.requests.clear()
        one.recorder.enqueue(("default", "vm"))
        one.eventually(lambda: ("GET", NODE) in world.api.requests)
        if ready == "Unknown":
            one.eventually(lambda: one.notes(events.VM, events.NODE_UNAVAILABLE))
            assert "which is not ready (Unknown)" in one.told.events[0].note
        world.status(phase="Running", nodeName="n1")
        one.eventually(lambda: not len(one.recorder._queue))
    assert len(one.told.events) == (1 if ready == "Unknown" else 0)


@pytest.mark.parametrize("affinity", ["required", "preferred"])
def test_vm_whose_node_is_well_or_not_required_is_the_schedulers_business(affinity: str) -> None:
    world = VmWorld(StickyArgs(affinity=affinity))  # type: ignore[arg-type]
    world.write("vm", OWN)
    labels = {"kubevirt.io/schedulable": "true"} if affinity == "required" else {}
    world.api.put(NODE, {"metadata": {"name": "n1", "labels": labels}, "spec": {}})
    with running(world) as one:
        pod = world.start()
        world.unschedulable(pod)
        if affinity == "required":
            one.eventually(lambda: ("GET", NODE) in world.api.requests)
        world.bind(pod, "n1")
        one.eventually(lambda: not world.kept())

    assert one.notes(events.VM, events.NODE_UNAVAILABLE) == []


@pytest.mark.parametrize("status", [403, 404], ids=["forbidden", "not Kubernetes' own 404"])
def test_nodes_that_cannot_be_read_are_said_in_the_log_alone(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = VmWorld()
    world.write("vm", OWN)

    def judge(_method: str, path: str) -> None:
        if path == NODE:
            raise status_error(status)

    world.api.on_request = judge
    told = f"node n1 of VM default/vm cannot be read: HTTP {status}: scripted"
    with running(world) as one:
        pod = world.start()
        world.unschedulable(pod)
        one.eventually(lambda: told in caplog.messages)

    assert one.told.events == []


def test_without_sticky_vms_only_pods_are_followed_and_let_go() -> None:
    world = VmWorld()
    with running(world, enabled=False) as one:
        pod = world.start()
        one.eventually(lambda: not world.kept())
        one.eventually(lambda: one.told.events)

    assert [one.told.events[0].regarding] == [("default", pod)]
    assert one.told.events[0].warning
    assert {path for kind, path in world.api.requests if kind == "WATCH"} == {"/api/v1/pods"}
    assert world.annotations() == {}


def test_cluster_without_kubevirt_is_said_once_and_its_coming_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.01)
    monkeypatch.setattr(reflector, "BACKOFF_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    world = VmWorld()
    kinds = set(world.api.kinds)
    absent = {path for path in kinds if "kubevirt" in path}
    world.api.kinds -= absent

    def said() -> int:
        return sum(NO_KUBEVIRT in line for line in caplog.messages)

    with running(world) as one:
        one.eventually(lambda: said() == 2)  # VMIs and migrations; VMs come after VMIs
        one.eventually(lambda: one.sample("holdfast_watch_restarts_total", reason="absent") > 9)
        world.api.kinds |= absent
        world.bind(world.start(finalizer=False), "n1")
        world.ready()
        one.eventually(lambda: world.record() == "n1")
        followed = {f"following {path}" for path in absent - {vm_path("", "")}}
        one.eventually(lambda: followed <= set(caplog.messages))
        world.api.kinds -= absent
        one.eventually(lambda: said() == 5)  # again once it is gone
        before = one.sample("holdfast_watch_restarts_total", reason="absent")
        one.eventually(
            lambda: one.sample("holdfast_watch_restarts_total", reason="absent") > before + 9
        )

    assert said() == 5


def test_right_that_is_missing_is_said_once_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT_SECONDS", 0.001)
    world = VmWorld()
    tries = itertools.count()

    def judge(_method: str, path: str) -> None:
        if "kubevirt" in path and next(tries) < 20:
            raise status_error(403)

    world.api.on_request = judge
    with running(world) as one:
        world.bind(world.start(finalizer=False), "n1")
        world.ready()
        one.eventually(lambda: world.record() == "n1")

    said = [line for line in caplog.messages if line.startswith("following /apis/kubevirt.io")]
    assert 1 <= len(said) <= 3
    assert f"HTTP 403: scripted ({CURE}); listing again" in said[0]


def test_thread_that_dies_ends_the_recorder() -> None:
    world = VmWorld()
    world.api.before("GET", raising(KeyError("nobody expected that")))
    one = Running(world)
    with one.threads:
        assert one.died.wait(PATIENCE)
        world.api.close()


def unlabelled() -> tuple[VmWorld, str]:
    """Give a world where a pod is kept that has lost its label, and that pod's name."""
    world = VmWorld()
    pod = world.start()
    world.bind(pod, "n1")
    world.ready()
    world.status(phase="Succeeded")
    world.api.change(pod_at(pod), lambda one: one["metadata"]["labels"].clear())
    world.end_pod(pod)
    return world, pod


def test_sweep_that_fails_is_soon_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_AGAIN_SECONDS", 0.01)
    world, _ = unlabelled()
    with running(world, may_sweep=False) as one:
        one.eventually(lambda: one.asked_to_sweep > 1)
        world.api.before("GET", raising(status_error(429)))
        one.may_sweep = True
        one.eventually(lambda: not world.kept())

    assert "the sweep for orphaned pods failed: HTTP 429: scripted; next try in 0 s" in caplog.text


def test_write_after_one_that_hung_has_the_time_that_webhooks_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair, "SLOW_SECONDS", 0.0)
    world = VmWorld()
    world.api.before("PATCH", raising(unreachable()))
    with running(world) as one:
        world.bind(world.start(), "n1")
        world.ready()
        one.eventually(lambda: not world.kept())

    patience = world.api.patience("PATCH")
    assert patience[:2] == [TIMEOUT, SLOW_ADMISSION_TIMEOUT]


def test_vmis_of_a_namespace_that_hangs_leave_others_a_way() -> None:
    world, pool, now = VmWorld(), ThreadPool(), 0.0

    def hangs() -> None:
        nonlocal now
        now += SLOW_SECONDS
        raise unreachable()

    metrics = ControllerMetrics()
    recorder = StickyController(world.api, lambda _: world.args, metrics, now=lambda: now)
    recorder._loop.changed = recorder._changed = Impatient()
    world.api.before("GET", hangs)
    recorder.enqueue(("default", "vm-0"))
    recorder._loop._dispatch(pool)
    pool.jobs.pop()()
    for number in range(1, 20):
        recorder.enqueue(("default", f"vm-{number}"))
    recorder.enqueue(("other", "vm"))
    recorder._loop._dispatch(pool)
    assert len(pool.jobs) == FIRST_OF_ONE + 1

    while pool.jobs:
        pool.jobs.pop()()
        recorder._loop._dispatch(pool)
    asked = {path for method, path in world.api.requests if method == "GET"}
    assert len(asked) == 21
