"""The sticky controller with its threads, on a fake API server."""

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
from holdfast.webhook.model.kubevirt import EPHEMERAL_PROVISIONING, vm_path
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky import sweep
from holdfast.webhook.sticky.controller import FIRST_OF_ONE, StickyController
from holdfast.webhook.sticky.decision import NOT_ENABLED
from holdfast.webhook.sticky.reconciler import CURE, TIMEOUT
from holdfast.webhook.sticky.watches import NO_KUBEVIRT
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue import backoff, fair
from holdfast.webhook.workqueue.fair import SLOW_SECONDS
from tests.support.fakes import (
    KUBEVIRT,
    Document,
    FakeRecorder,
    failing,
    raising,
    status_error,
    unreachable,
)
from tests.support.manual import RecordingCondition, ThreadPool
from tests.support.vm_world import VmWorld, job_at, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import OWN, edit_pod, start_vm, world_with_running_vm

PATIENCE = 30.0
NODE = "/api/v1/nodes/n1"


class ControllerEnv:
    def __init__(self, world: VmWorld, *, enabled: bool = True) -> None:
        self.world = world
        self.recorder = FakeRecorder()
        self.metrics = ControllerMetrics()
        self.leads = True
        self.may_sweep = True
        self.sweep_checks = 0
        self.controller = StickyController(
            world.api,
            lambda _: world.args if enabled else None,
            self.metrics,
            enabled=enabled,
            recorder=self.recorder,
            may_write=lambda: self.leads,
            may_sweep=self._may_sweep,
        )
        self.died = threading.Event()
        self.threads = ThreadGroup(on_failure=self.died.set)
        self.controller.add_to(self.threads)

    def _may_sweep(self) -> bool:
        self.sweep_checks += 1
        return self.may_sweep

    def eventually(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def start_and_record(self) -> None:
        """Start the VM, and wait until its node is recorded."""
        start_vm(self.world)
        self.eventually(lambda: self.world.record() == "n1")

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def notes(self, kind: events.ObjectKind, reason: str) -> list[str]:
        return [
            event.note
            for event in self.recorder.events
            if (event.kind, event.reason) == (kind, reason)
        ]


@contextmanager
def running_controller(
    world: VmWorld, *, enabled: bool = True, may_sweep: bool = True, leads: bool = True
) -> Iterator[ControllerEnv]:
    env = ControllerEnv(world, enabled=enabled)
    env.may_sweep = may_sweep
    env.leads = leads
    with env.threads:
        try:
            env.eventually(lambda: env.controller.synced)
            yield env
        finally:
            env.threads.stop()
            env.controller.wake()
            world.api.close()
    assert not env.died.is_set()


def test_recorded_node_has_events_metric_and_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.sticky")
    world = VmWorld()
    # before the controller starts: otherwise a later pass may free the pod without an event
    pod = start_vm(world)
    with running_controller(world) as env:
        env.eventually(lambda: not world.kept())
        env.eventually(lambda: len(env.recorder.events) == 2)
        env.eventually(lambda: env.sample("holdfast_vm_pods_kept") == 0.0)

    note = "recorded node n1: the VM starts there again"
    uid = world.api.objects[pod_at(pod)]["metadata"]["uid"]
    assert env.recorder.events == [
        Event(("default", "vm"), "vm-1", "StickyNodeRecorded", note, kind=events.VM),
        Event(("default", pod), uid, "StickyNodeRecorded", note),
    ]
    assert dict(world.annotations()) == OWN
    assert env.sample("holdfast_vm_records_total", outcome="recorded") == 1.0
    assert f"VM default/vm: {note}" in caplog.messages


def test_record_follows_live_migration() -> None:
    world = VmWorld()
    with running_controller(world) as env:
        env.start_and_record()
        job, pod = world.migrate()
        world.bind(pod, "n2")
        env.eventually(lambda: env.sample("holdfast_vm_pods_kept") == 1.0)
        world.migrated(job, pod)
        env.eventually(lambda: world.record() == "n2" and not world.kept())
        env.eventually(lambda: len(env.notes(events.VM, events.NODE_RECORDED)) == 2)

    assert env.notes(events.VM, events.NODE_RECORDED)[1] == (
        "recorded node n2 after a migration: the VM starts there again"
    )
    assert env.sample("holdfast_vm_records_total", outcome="followed") == 1.0


def test_migration_without_held_pod_is_followed_once_completed() -> None:
    world = VmWorld()
    with running_controller(world) as env:
        env.start_and_record()
        state = {"sourceNode": "n1", "targetNode": "n2"}
        before = len(world.api.requests)
        world.status(nodeName="n2", migrationState=state)
        env.eventually(lambda: ("GET", vm_at("vm")) in world.api.requests[before:])
        assert world.record() == "n1"
        world.status(migrationState={**state, "completed": True})
        env.eventually(lambda: world.record() == "n2")

    assert env.notes(events.VM, events.NODE_DIFFERS) == []


def test_vm_on_unexpected_node_is_reported() -> None:
    world = VmWorld()
    with running_controller(world) as env:
        env.start_and_record()
        world.status(nodeName="n2")
        env.eventually(lambda: env.notes(events.VM, events.NODE_DIFFERS))

    assert env.notes(events.VM, events.NODE_DIFFERS)[0].startswith("the VM runs on n2, but starts")
    assert world.record() == "n1"


def test_target_loses_finalizer_when_migration_is_deleted() -> None:
    world = VmWorld()
    with running_controller(world) as env:
        env.start_and_record()
        job, pod = world.migrate()
        world.bind(pod, "n2")
        env.eventually(lambda: env.sample("holdfast_vm_pods_kept") == 1.0)
        world.api.vanish(job_at(job))
        env.eventually(lambda: not world.kept())

    assert world.record() == "n1"


def test_running_vm_that_opts_in_is_recorded() -> None:
    world = VmWorld(StickyArgs(select="annotated"))
    with running_controller(world) as env:
        world.bind(world.start(), "n1")
        env.eventually(lambda: not world.kept())
        world.ready()
        world.write("vm", {"holdfast.dev/sticky": "true"})
        env.eventually(lambda: world.record() == "n1")


def test_rejected_record_is_reported_and_does_not_block_other_vms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    world = VmWorld(None, "a", "b")
    permitted = threading.Event()

    def reject_vm_a(method: str, path: str) -> None:
        if (method, path) == ("PATCH", vm_at("a")) and not permitted.is_set():
            raise status_error(403)

    world.api.on_request = reject_vm_a
    with running_controller(world) as env:
        for name in ("a", "b"):
            world.bind(world.start(name), "n1")
            world.ready(name)
        env.eventually(lambda: world.record("b") == "n1")
        env.eventually(lambda: env.sample("holdfast_vm_records_total", outcome="retried") >= 2)
        assert world.record("a") == ""
        permitted.set()
        env.eventually(lambda: world.record("a") == "n1" and not world.kept("a"))

    (note, *_) = env.notes(events.VM, events.NODE_NOT_RECORDED)
    assert note == (
        "HTTP 403: scripted (bind the ClusterRole holdfast-controller-kubevirt of the manifests to "
        "the controller); it is retried until it succeeds"
    )


def test_unexpected_error_for_one_vm_does_not_block_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    world = VmWorld(None, "a", "b")
    failed = threading.Event()

    def fail_once(_method: str, path: str) -> None:
        if path == vmi_at("a") and not failed.is_set():
            failed.set()
            raise KeyError("a bug")

    world.api.on_request = fail_once
    with running_controller(world) as env:
        world.bind(world.start("a"), "n1")
        env.eventually(failed.is_set)
        world.bind(world.start("b"), "n1")
        for name in ("a", "b"):
            world.ready(name)
        env.eventually(lambda: world.record("a") == world.record("b") == "n1")

    assert "VMI default/a" in caplog.messages


def test_standby_writes_nothing_until_it_leads() -> None:
    world = VmWorld()
    with running_controller(world, leads=False) as env:
        start_vm(world)
        env.eventually(lambda: env.sample("holdfast_vm_pods_kept") == 1.0)
        assert world.api.patched == []
        env.leads = True
        env.controller.wake()
        env.eventually(lambda: not world.kept())

    assert world.record() == "n1"


def test_standby_drops_stopped_vm_from_queue() -> None:
    world = VmWorld()
    with running_controller(world, leads=False) as env:
        start_vm(world, finalizer=False)
        env.eventually(lambda: len(env.controller._queue) == 1)
        world.stop()
        env.eventually(lambda: len(env.controller._queue) == 0)


def test_event_explains_why_vm_waits_for_its_node() -> None:
    world = VmWorld()
    world.write("vm", OWN)
    with running_controller(world) as env:
        pod = world.start()
        world.unschedulable(pod)
        env.eventually(lambda: env.notes(events.POD, events.NODE_UNAVAILABLE))

    notes = env.notes(events.VM, events.NODE_UNAVAILABLE)
    assert notes[0].startswith("the VM waits for its node n1, which does not exist")
    assert world.kept() == [pod]
    assert dict(world.annotations()) == OWN


def start_provisioning(world: VmWorld, *, uid: str = "") -> str:
    """Start the VM with an unschedulable pod that only provisions volumes; return its name."""
    pod = world.start(finalizer=False)

    def change(document: Document) -> None:
        document["metadata"]["annotations"] = {EPHEMERAL_PROVISIONING: "true"}
        (owner,) = document["metadata"]["ownerReferences"]
        owner["uid"] = uid or owner["uid"]

    world.api.change(pod_at(pod), change)
    world.unschedulable(pod)
    return pod


@pytest.mark.parametrize("first", ["the pod", "the controller"])
def test_vm_with_volumes_waiting_for_its_node_is_reported(first: str) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    world.api.put(NODE, {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}})
    pod = start_provisioning(world) if first == "the pod" else ""
    with running_controller(world) as env:
        pod = pod or start_provisioning(world)
        env.eventually(lambda: env.notes(events.POD, events.NODE_UNAVAILABLE))
        world.api.vanish(pod_at(pod))
        world.stop()
        env.eventually(lambda: not len(env.controller._queue))

    assert env.notes(events.VM, events.NODE_UNAVAILABLE)[0].startswith(
        "the VM waits for its node n1, which is cordoned"
    )
    assert env.controller._watch.provisioners_of(("default", "vm"), "vmi-2") == []


def test_provisioning_pod_of_another_vmi_gets_no_event() -> None:
    world = VmWorld()
    world.write("vm", OWN)
    world.api.put(NODE, {"metadata": {"name": "n1"}})
    with running_controller(world) as env:
        start_provisioning(world, uid="earlier-vmi")
        env.eventually(lambda: env.notes(events.VM, events.NODE_UNAVAILABLE))

    assert env.notes(events.POD, events.NODE_UNAVAILABLE) == []


@pytest.mark.parametrize("ready", ["Unknown", "True"])
def test_starting_vm_on_not_ready_node_is_reported(ready: str) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    metadata = {"name": "n1", "labels": {"kubevirt.io/schedulable": "true"}}
    node: Document = {"metadata": metadata, "spec": {"unschedulable": True}}
    world.api.put(NODE, node)
    with running_controller(world) as env:
        world.bind(world.start(), "n1")
        env.eventually(lambda: not world.kept() and len(env.controller._queue) == 1)
        assert env.recorder.events == []
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        world.api.put(NODE, {**node, "status": status})
        world.api.requests.clear()
        env.controller.enqueue(("default", "vm"))
        env.eventually(lambda: ("GET", NODE) in world.api.requests)
        if ready == "Unknown":
            env.eventually(lambda: env.notes(events.VM, events.NODE_UNAVAILABLE))
            assert "which is not ready (Unknown)" in env.recorder.events[0].note
        world.status(phase="Running", nodeName="n1")
        env.eventually(lambda: not len(env.controller._queue))
    assert len(env.recorder.events) == (1 if ready == "Unknown" else 0)


@pytest.mark.parametrize("affinity", ["required", "preferred"])
def test_healthy_or_preferred_node_is_not_reported(affinity: str) -> None:
    world = VmWorld(StickyArgs(affinity=affinity))  # type: ignore[arg-type]
    world.write("vm", OWN)
    labels = {"kubevirt.io/schedulable": "true"} if affinity == "required" else {}
    world.api.put(NODE, {"metadata": {"name": "n1", "labels": labels}, "spec": {}})
    with running_controller(world) as env:
        pod = world.start()
        world.unschedulable(pod)
        if affinity == "required":
            env.eventually(lambda: ("GET", NODE) in world.api.requests)
        world.bind(pod, "n1")
        env.eventually(lambda: not world.kept())

    assert env.notes(events.VM, events.NODE_UNAVAILABLE) == []


@pytest.mark.parametrize("status", [403, 404], ids=["forbidden", "404 without a reason"])
def test_unreadable_node_is_only_logged(status: int, caplog: pytest.LogCaptureFixture) -> None:
    world = VmWorld()
    world.write("vm", OWN)
    world.api.on_request = failing(NODE, status=status)
    message = f"node n1 of VM default/vm cannot be read: HTTP {status}: scripted"
    with running_controller(world) as env:
        pod = world.start()
        world.unschedulable(pod)
        env.eventually(lambda: message in caplog.messages)

    assert env.recorder.events == []


def test_disabled_controller_only_removes_pod_finalizers() -> None:
    world = VmWorld()
    with running_controller(world, enabled=False) as env:
        pod = world.start()
        env.eventually(lambda: not world.kept())
        env.eventually(lambda: env.recorder.events)

    event = env.recorder.events[0]
    assert (event.regarding, event.reason) == (("default", pod), events.NODE_NOT_RECORDED)
    assert (event.note, event.warning) == (NOT_ENABLED, True)
    assert [path for _, path in world.api.requests if path.startswith(KUBEVIRT)] == []
    assert world.annotations() == {}


def test_missing_kubevirt_is_logged_and_later_install_is_detected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.01)
    monkeypatch.setattr(reflector, "BACKOFF_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    world = VmWorld()
    kinds = set(world.api.kinds)
    kubevirt_paths = {path for path in kinds if "kubevirt" in path}
    world.api.kinds -= kubevirt_paths

    def log_count() -> int:
        return sum(NO_KUBEVIRT in line for line in caplog.messages)

    with running_controller(world) as env:
        env.eventually(lambda: log_count() == 2)  # VMIs and migrations; VMs come after VMIs
        env.eventually(lambda: env.sample("holdfast_watch_restarts_total", reason="absent") > 9)
        world.api.kinds |= kubevirt_paths
        start_vm(world, finalizer=False)
        env.eventually(lambda: world.record() == "n1")
        messages = {f"following {path}" for path in kubevirt_paths - {vm_path("", "")}}
        env.eventually(lambda: messages <= set(caplog.messages))
        world.api.kinds -= kubevirt_paths
        env.eventually(lambda: log_count() == 5)  # again once it is gone
        before = env.sample("holdfast_watch_restarts_total", reason="absent")
        env.eventually(
            lambda: env.sample("holdfast_watch_restarts_total", reason="absent") > before + 9
        )

    assert log_count() == 5


def test_missing_permission_is_logged_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(reflector, "BACKOFF_LIMIT_SECONDS", 0.001)
    world = VmWorld()
    tries = itertools.count()

    def forbid(_method: str, path: str) -> None:
        if "kubevirt" in path and next(tries) < 20:
            raise status_error(403)

    world.api.on_request = forbid
    with running_controller(world) as env:
        start_vm(world, finalizer=False)
        env.eventually(lambda: world.record() == "n1")

    lines = [line for line in caplog.messages if line.startswith("following /apis/kubevirt.io")]
    assert 1 <= len(lines) <= 3
    assert f"HTTP 403: scripted ({CURE}); listing again" in lines[0]


def test_thread_crash_stops_controller() -> None:
    world = VmWorld()
    world.api.before("GET", raising(KeyError("unexpected")))
    env = ControllerEnv(world)
    with env.threads:
        assert env.died.wait(PATIENCE)
        world.api.close()


def test_failed_sweep_is_retried_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_AGAIN_SECONDS", 0.01)
    world, pod = world_with_running_vm()
    world.status(phase="Succeeded")
    edit_pod(world, pod, labels={})
    world.end_pod(pod)
    with running_controller(world, may_sweep=False) as env:
        env.eventually(lambda: env.sweep_checks > 1)
        world.api.before("GET", raising(status_error(429)))
        env.may_sweep = True
        env.eventually(lambda: not world.kept())

    assert world.record() == "n1"
    assert "the sweep for orphaned pods failed: HTTP 429: scripted; next try in 0 s" in caplog.text


def test_write_after_hang_uses_slow_admission_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "SLOW_SECONDS", 0.0)
    world = VmWorld()
    world.api.before("PATCH", raising(unreachable()))
    with running_controller(world) as env:
        start_vm(world)
        env.eventually(lambda: not world.kept())

    timeouts = world.api.patience("PATCH")
    assert timeouts[:2] == [TIMEOUT, SLOW_ADMISSION_TIMEOUT]


def test_hanging_namespace_does_not_block_other_namespaces() -> None:
    world, pool, now = VmWorld(), ThreadPool(), 0.0

    def hang() -> None:
        nonlocal now
        now += SLOW_SECONDS
        raise unreachable()

    metrics = ControllerMetrics()
    controller = StickyController(
        world.api,
        lambda _: world.args,
        metrics,
        enabled=True,
        recorder=FakeRecorder(),
        may_write=lambda: True,
        may_sweep=lambda: True,
        now=lambda: now,
    )
    controller._loop.changed = controller._changed = RecordingCondition()
    world.api.before("GET", hang)
    controller.enqueue(("default", "vm-0"))
    controller._loop._dispatch(pool)
    pool.jobs.pop()()
    for number in range(1, 20):
        controller.enqueue(("default", f"vm-{number}"))
    controller.enqueue(("other", "vm"))
    controller._loop._dispatch(pool)
    assert len(pool.jobs) == FIRST_OF_ONE + 1

    while pool.jobs:
        pool.jobs.pop()()
        controller._loop._dispatch(pool)
    paths = {path for method, path in world.api.requests if method == "GET"}
    assert len(paths) == 21
