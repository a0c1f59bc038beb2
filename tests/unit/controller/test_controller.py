import json
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.webhook.controller import controller as module
from holdfast.webhook.controller.controller import ReleaseController
from holdfast.webhook.framework.plugin import Result, success
from holdfast.webhook.kube import events
from holdfast.webhook.kube.api import boot_time
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue import controller as loops
from holdfast.webhook.workqueue.controller import LONGEST_WAIT
from tests.server.harness import wait_until
from tests.support.builders import GATE, held, make_decider, make_delay, make_pod
from tests.support.fakes import FakeApi, FakeRecorder
from tests.support.scripted import Tightening, decider_of
from tests.unit.controller.world import CREATED_S, KEY, World, pods, single_pod_world

# --- leadership --------------------------------------------------------------------------------


def test_standby_tracks_pods_and_releases_overdue_ones_once_it_leads() -> None:
    world = World(*pods(b="15", a="10", later="1h"), synced=False)
    world.leads = False
    world.sync()
    world.advance(20)
    assert world.dispatch() == LONGEST_WAIT
    assert world.pool.jobs == []
    assert world.recorder.events == []
    assert world.metric("held_pods") == 3
    assert world.controller.synced

    world.leads = True
    world.settle()
    assert world.released == ["a", "b"]


def test_former_leader_does_not_start_queued_releases() -> None:
    world = World(*pods(a="15"))
    world.advance(20)
    world.dispatch()
    world.leads = False  # as after a pause of the process
    world.pool.run()
    assert world.dispatch() == LONGEST_WAIT
    assert world.released == []

    world.leads = True
    world.settle()
    assert world.released == ["a"]


def test_leadership_lost_during_plugin_call_aborts_release() -> None:
    def lose_leadership(_pod: Pod) -> Result:
        world.leads = False
        return success(SetAnnotation("a", "b"))

    world = World(*pods(a="15"), decider=decider_of(make_delay(), Tightening(lose_leadership)))
    world.run(20)
    assert world.released == []


# --- due times ---------------------------------------------------------------------------------


def test_nothing_is_released_early() -> None:
    world = single_pod_world()
    world.run(14.999)
    assert world.api.gates(KEY) == [GATE]

    world.run(0.001)
    assert world.api.gates(KEY) == []


def test_loop_sleeps_until_next_due_time() -> None:
    world = single_pod_world()
    assert world.dispatch() == LONGEST_WAIT

    world.advance(14.5)
    server_time = world.clock.lower_bound(world.local)
    assert server_time is not None
    assert pytest.approx(CREATED_S + 15 - server_time) == world.dispatch()


def test_nothing_is_released_while_server_clock_is_unknown() -> None:
    world = World(*pods(a="0"), clock_known=False)

    assert world.dispatch() == LONGEST_WAIT
    assert world.pool.jobs == []
    assert world.metric("overdue_pods") == 0
    assert world.metric("clock_uncertainty_seconds") == math.inf


@pytest.mark.parametrize("step", [-3_600.0, 3_600.0], ids=["back", "forward"])
def test_releases_follow_server_clock_steps(step: float) -> None:
    world = World(*pods(soon="15", later="2h"))
    world.advance(10)
    world.sync_clock(CREATED_S + 10 + step)
    for _ in range(11):  # a forward step needs to be confirmed
        world.local += 1
        world.sync_clock(CREATED_S + world.local + step)
        world.settle()

    assert (["soon"] if step > 0 else []) == world.released


def test_in_flight_releases_per_namespace_are_limited() -> None:
    world = World(*pods(**{f"p{number:02}": str(number) for number in range(99)}))
    in_flight: list[int] = []

    def count_in_flight() -> None:
        assert world.dispatch() == LONGEST_WAIT
        in_flight.append(world.controller._scheduler.in_flight)

    world.advance(120)
    world.api.before("PATCH", *[count_in_flight] * 50)
    world.settle()
    worker_counts = range(module.FIRST_OF_ONE, module.WORKERS_OF_ONE)
    assert in_flight == [*worker_counts, *[module.WORKERS_OF_ONE] * (50 - len(worker_counts))]
    assert len(set(world.released)) == len(world.released) == 99


def test_worker_takes_next_due_pod_after_release() -> None:
    world = World(*pods(**{f"p{number:02}": str(number) for number in range(99)}))
    world.advance(60)
    world.dispatch()
    world.pool.run()

    first_names = [f"p{number:02}" for number in range(module.FIRST_OF_ONE)]
    later_names = [f"p{number:02}" for number in range(module.FIRST_OF_ONE, 61)]
    # sequential here, parallel with real threads
    assert world.released == [first_names[0], *later_names, *first_names[1:]]


# --- changes to held pods ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "due"),
    [
        pytest.param({"delay": "30"}, 30, id="longer"),
        pytest.param({"delay": "5"}, 5, id="shorter"),
        pytest.param({"delay": None}, 0, id="removed"),
    ],
)
def test_changed_delay_changes_due_time(annotations: dict[str, Any], due: int) -> None:
    world = single_pod_world()
    world.api.annotate(KEY, **annotations)
    world.deliver()
    if due:
        world.run(due - 1)
        assert world.api.gates(KEY) == [GATE]
        world.advance(1)
    world.settle()

    assert world.api.gates(KEY) == []


@pytest.mark.parametrize("how", ["ungated", "deleted", "not listed"])
def test_pod_no_longer_held_is_forgotten(how: str) -> None:
    world = World(*pods(a="15", b="15"))
    key = ("default", "a")
    if how == "ungated":
        world.api.put_pod(make_pod({"delay": "15"}, name="a"))
        world.deliver(key)
    elif how == "deleted":
        world.controller.on_delete(Pod.of(world.api.pods[key]))
    else:
        world.api.delete(key)
        world.sync()
    world.run(60)

    assert world.released == ["b"]


# --- changes during a release ------------------------------------------------------------------


def change_during_release(change: Callable[[World], None]) -> World:
    """Queue the release of a due pod, change the pod, then run the release."""
    world = single_pod_world()
    world.advance(15)
    world.dispatch()
    assert len(world.pool.jobs) == 1
    change(world)
    world.pool.run()
    world.settle()
    return world


def recreate(delay: str) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.controller.on_delete(Pod.of(world.api.pods[KEY]))
        world.api.put_pod(held({"delay": delay}, uid="another"))
        world.deliver()

    return act


def lengthen_unseen(world: World) -> None:
    world.api.annotate(KEY, delay="1h")


def lengthen(world: World) -> None:
    lengthen_unseen(world)
    world.deliver()


@pytest.mark.parametrize(
    "change",
    [lengthen, lengthen_unseen, recreate("1h")],
    ids=["lengthened", "lengthened before the watch reported it", "recreated"],
)
def test_pod_postponed_during_release_stays_held(change: Callable[[World], None]) -> None:
    world = change_during_release(change)
    assert world.api.gates(KEY) == [GATE]

    world.run(3_584)
    assert world.api.gates(KEY) == [GATE]

    world.run(1)
    assert world.api.gates(KEY) == []


def test_due_pod_recreated_during_release_is_released() -> None:
    world = change_during_release(recreate("5"))

    assert world.api.gates(KEY) == []
    assert len(world.released) == 2


def test_pod_deleted_during_release_is_not_an_error() -> None:
    def delete(world: World) -> None:
        world.controller.on_delete(Pod.of(world.api.pods[KEY]))
        world.api.delete(KEY)

    world = change_during_release(delete)

    assert world.metric("releases_total", outcome="gone") == 1
    assert world.metric("held_pods") == 0


# --- with real threads -------------------------------------------------------------------------


def controller_threads(api: FakeApi, now: datetime) -> ThreadGroup:
    """Return the threads of a controller with a known clock."""
    clock, local = ServerClock(), boot_time()
    clock.observe(sent=local, received=local, date=now.timestamp())
    controller = ReleaseController(
        api,
        make_decider(),
        clock,
        ControllerMetrics(),
        recorder=FakeRecorder(),
        leading=lambda: True,
    )
    threads = ThreadGroup(on_failure=lambda: None)
    controller.add_to(threads)
    return threads


def test_shutdown_waits_briefly_for_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that hangs must not keep the Lease from the next controller."""
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    now = datetime.now(UTC).replace(microsecond=0)
    api = FakeApi(held({"delay": "5"}, created=now - timedelta(minutes=1)))
    hung, resume = threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        assert resume.wait(5)

    api.before("PATCH", hang)
    with controller_threads(api, now):
        assert hung.wait(5)
        start = time.monotonic()
    assert time.monotonic() - start < 4
    assert api.gates(KEY) == [GATE]
    resume.set()
    wait_until("the release ends", lambda: not api.gates(KEY))
    api.close()


def test_run_releases_overdue_and_newly_due_pods() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    overdue = [
        held({"delay": str(number)}, name=f"p{number}", created=now - timedelta(minutes=1))
        for number in range(20)
    ]
    api = FakeApi(*overdue, held({"delay": "1h"}, name="later", created=now))
    threads = controller_threads(api, now)
    with threads:
        overdue_keys = [("default", f"p{number}") for number in range(20)]
        wait_until("overdue pods are released", lambda: not any(map(api.gates, overdue_keys)))
        api.put_pod(held({"delay": "5"}, name="new", created=now - timedelta(seconds=10)))
        wait_until("the new pod is released", lambda: not api.gates(("default", "new")))
        api.annotate(("default", "later"), delay="0")
        wait_until("the changed pod is released", lambda: not api.gates(("default", "later")))
    api.close()
    assert not threads.failed
    assert all(json.loads(body)[0]["path"] == "/metadata/uid" for body in api.bodies)


def test_release_without_a_thread_records_event_and_metrics() -> None:
    callbacks: list[Callable[[None], None]] = []

    def begin(_path: str, _body: bytes, *, timeout: float, on_end: Any) -> bool:
        assert timeout
        callbacks.append(on_end)
        return True

    world = World(held({"delay": "15", HELD_ANNOTATION: "delay=15s"}), begin=begin)
    world.advance(15)
    world.dispatch()
    assert world.pool.jobs == []
    assert world.metric("held_pods") == 1

    callbacks[0](None)
    assert world.recorder.notes(events.RELEASED) == ["released 0.000 s after its time"]
    assert world.metric("releases_total", outcome="released") == 1
    assert world.metric("held_pods") == 0
    assert world.released == []
