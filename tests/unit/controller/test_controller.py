import json
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.webhook.controller import controller as module
from holdfast.webhook.controller.controller import ReleaseController
from holdfast.webhook.controller.releaser import RELEASE_TIMEOUT
from holdfast.webhook.framework.handle import Handle, WaitingPods
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Allow, Permit, Plugin, Result, Wait, success
from holdfast.webhook.kube import events
from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT, boot_time
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    HELD_ANNOTATION,
    NEVER_MS,
    RELEASED_ANNOTATION,
    Due,
)
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.model.limits import MAX_GATES
from holdfast.webhook.model.objects import ApiObject, Metadata, ObjectKey, Pod
from holdfast.webhook.plugins.pace.args import KEY as PACE
from holdfast.webhook.plugins.pace.args import PaceArgs
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue import controller as loops
from holdfast.webhook.workqueue.controller import LONGEST_WAIT
from holdfast.webhook.workqueue.fair import SLOW_SECONDS
from tests.support.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    UID,
    held,
    make_decider,
    make_delay,
    make_pod,
    read_pod,
)
from tests.support.by_hand import Impatient, ThreadPool
from tests.support.fakes import FakeApi, raising, status_error, unreachable
from tests.support.scripted import Holding, HoldingToo, Slots, Tightening, decider_of, never
from tests.support.vm_builders import owner_of

KEY = ("default", "web-0")
CREATED_S = CREATED_MS / 1_000


class FakeRecorder(events.EventSink):
    full = False

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def record(self, event: events.Event) -> None:
        self.events.append(event)

    def notes(self, reason: str) -> list[str]:
        return [event.note for event in self.events if event.reason == reason]


class World:
    """A controller without threads, on a clock that only the test advances.

    Local time is seconds since the pods were created. The server's clock is known exactly.
    """

    def __init__(
        self,
        *pods: dict[str, Any],
        synced: bool = True,
        clock_known: bool = True,
        decider: ReleaseDecider | None = None,
        metrics: ControllerMetrics | None = None,
        begin: Callable[..., bool] | None = None,
    ) -> None:
        self.local = 0.0
        self.leads = True
        self.api = FakeApi(*pods)
        self.clock = ServerClock()
        self.metrics = metrics or ControllerMetrics()
        self.recorder = FakeRecorder()
        self.pool = ThreadPool()
        self.waits = Impatient()
        self.controller = ReleaseController(
            self.api,
            decider or make_decider(),
            self.clock,
            self.metrics,
            recorder=self.recorder,
            leading=lambda: self.leads,
            now=lambda: self.local,
            begin=begin,
        )
        self.controller._loop.changed = self.controller._changed = self.waits
        if clock_known:
            self.sync_clock(CREATED_S)
        if synced:
            self.sync()

    def sync_clock(self, date: float) -> None:
        self.clock.observe(sent=self.local, received=self.local, date=date)

    def advance(self, seconds: float) -> None:
        """Advance local time; at a full second, read the server clock."""
        self.local += seconds
        if self.local == int(self.local):
            self.sync_clock(CREATED_S + self.local)

    def sync(self) -> None:
        self.controller.on_sync([Pod.of(pod) for pod in self.api.pods.values()])
        self.freeze()

    def freeze(self, **reasons: str) -> None:
        """List the namespaces, with freeze reasons by name."""
        self.controller.freeze_watch.on_sync([namespace(*each) for each in reasons.items()])

    def deliver(self, key: ObjectKey = KEY) -> None:
        """Deliver the pod's current state, as the watch does."""
        self.controller.on_update(Pod.of(self.api.pods[key]))

    def allow(self, plugin: str) -> None:
        """Allow the release on behalf of a plugin, and deliver the resulting update."""
        self.controller.allow(KEY, plugin)
        self.deliver()

    def dispatch(self) -> float:
        """Run the loop once without running its jobs, and return its sleep time in seconds."""
        self.controller._loop._dispatch(self.pool)
        return self.waits.waits[-1]

    def run_jobs(self) -> None:
        jobs, self.pool.jobs = self.pool.jobs, []
        for job in jobs:
            job()

    def settle(self) -> None:
        """Dispatch and run jobs until none is left."""
        self.dispatch()
        while self.pool.jobs:
            self.run_jobs()
            self.dispatch()

    def run(self, seconds: float) -> None:
        """Advance time, then settle."""
        self.advance(seconds)
        self.settle()

    @property
    def released(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path in self.api.requests if method == "PATCH"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels)


def namespace(name: str, reason: str | None, until: str | None = None) -> ApiObject:
    values = {FREEZE: reason, FREEZE_UNTIL: until}
    annotations = {key: value for key, value in values.items() if value is not None}
    return ApiObject(Metadata(name=name, annotations=annotations))


def pods(**delays: str) -> list[dict[str, Any]]:
    return [
        held({"delay": delay, HELD_ANNOTATION: f"delay={delay}"}, name=name, uid=f"uid-{name}")
        for name, delay in delays.items()
    ]


def single_pod_world(delay: str = "15") -> World:
    return World(held({"delay": delay, HELD_ANNOTATION: f"delay={delay}s"}))


# --- leadership --------------------------------------------------------------------------------


def test_standby_tracks_pods_but_releases_nothing() -> None:
    world = World(*pods(soon="15", later="1h"), synced=False)
    world.leads = False
    world.sync()
    world.advance(20)
    assert world.dispatch() == LONGEST_WAIT
    assert world.pool.jobs == []
    assert world.recorder.events == []
    assert world.metric("held_pods") == 2
    assert world.controller.synced


def test_new_leader_releases_overdue_pods_at_once() -> None:
    world = World(*pods(b="15", a="10", later="1h"))
    world.leads = False
    world.run(20)
    world.leads = True
    world.settle()
    assert world.released == ["a", "b"]


def test_former_leader_does_not_start_queued_releases() -> None:
    world = World(*pods(a="15"))
    world.advance(20)
    world.dispatch()
    world.leads = False  # as after a pause of the process
    world.run_jobs()
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
    growing = range(module.FIRST_OF_ONE, module.WORKERS_OF_ONE)
    assert in_flight == [*growing, *[module.WORKERS_OF_ONE] * (50 - len(growing))]
    assert len(set(world.released)) == len(world.released) == 99


def test_in_flight_releases_do_not_exceed_workers() -> None:
    world = saturated_world()
    assert len(world.pool.jobs) == module.WORKERS


def test_worker_takes_next_due_pod_after_release() -> None:
    world = World(*pods(**{f"p{number:02}": str(number) for number in range(99)}))
    world.advance(60)
    world.dispatch()
    world.run_jobs()

    began = [f"p{number:02}" for number in range(module.FIRST_OF_ONE)]
    behind = [f"p{number:02}" for number in range(module.FIRST_OF_ONE, 61)]
    # sequential here, parallel with real threads
    assert world.released == [began[0], *behind, *began[1:]]


def test_worker_takes_no_pod_after_leadership_is_lost() -> None:
    world = World(*pods(**{f"p{number:02}": "1" for number in range(module.WORKERS + 1)}))
    world.advance(60)
    world.dispatch()
    world.api.before("PATCH", lambda: setattr(world, "leads", False))
    world.pool.jobs[1:] = []
    world.run_jobs()

    assert world.released == ["p00"]


def test_pods_without_holdfast_gates_are_ignored() -> None:
    world = World(make_pod({"delay": "0"}, name="free"), make_pod(gates=["a.io/b"], name="another"))
    world.run(60)

    assert world.released == []
    assert world.metric("held_pods") == 0


# --- changes to held pods ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "due"),
    [
        pytest.param({"delay": "30"}, 30, id="longer"),
        pytest.param({"delay": "5"}, 5, id="shorter"),
        pytest.param({"delay": None}, 0, id="removed"),
        pytest.param({"delay": "soon"}, 15, id="invalid"),
        pytest.param({"delay": "0"}, 0, id="zero"),
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
    gone = ("default", "a")
    if how == "ungated":
        world.api.put_pod(make_pod({"delay": "15"}, name="a"))
        world.deliver(gone)
    elif how == "deleted":
        world.controller.on_delete(Pod.of(world.api.pods[gone]))
    else:
        world.api.delete(gone)
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
    world.run_jobs()
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


# --- failures ----------------------------------------------------------------------------------


def test_retry_after_is_honoured() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(status_error(429, retry_after=29.0)))
    world.run(15)
    world.run(28)
    assert len(world.released) == 1

    world.run(1)
    assert world.api.gates(KEY) == []


def test_one_bad_pod_does_not_delay_another() -> None:
    world = World(*pods(bad="10", good="11", better="12"))
    world.api.before("PATCH", raising(unreachable()))
    world.run(12)

    assert world.released == ["bad", "good", "better"]
    assert world.api.gates(("default", "bad")) == [GATE]
    assert [] == world.api.gates(("default", "good")) == world.api.gates(("default", "better"))


def move_to_namespace(namespace: str, *found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**one, "metadata": {**one["metadata"], "namespace": namespace}} for one in found]


def saturated_world() -> World:
    """Return a world with due pods in more namespaces than the workers can serve."""
    found = pods(**{f"p{number:02}": "1" for number in range(30)})
    spaces = [f"space-{number}" for number in range(1 + module.WORKERS // module.FIRST_OF_ONE)]
    world = World(*[one for space in spaces for one in move_to_namespace(space, *found)])
    world.advance(60)
    world.dispatch()
    return world


def hang_next_release(world: World) -> None:
    """Make the next release hang, then fail."""

    def hang_and_fail() -> None:
        world.advance(SLOW_SECONDS)
        raise unreachable()

    world.api.before("PATCH", hang_and_fail)


def hanging_world(*others: dict[str, Any], namespaces: tuple[str, ...] = ("bad",)) -> World:
    """Return a world at second 40: some namespaces have 200 due pods, and one that hung."""
    many = pods(first="10", **{f"bad-{number:03}": "30" for number in range(200)})
    world = World(
        *[one for space in namespaces for one in move_to_namespace(space, *many)], *others
    )
    world.advance(10)
    world.dispatch()
    jobs, world.pool.jobs = world.pool.jobs, []
    for job in jobs:
        hang_next_release(world)
        job()
    world.advance(40 - world.local)
    return world


def test_busy_namespace_does_not_block_other_namespaces() -> None:
    """This holds before any release is known to hang."""
    many = {f"bad-{number:03}": "20" for number in range(200)}
    world = World(*move_to_namespace("bad", *pods(**many)), *pods(good="25"))
    world.advance(21)
    world.dispatch()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE
    world.advance(5)
    world.dispatch()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE + 1
    world.pool.jobs.pop()()
    assert world.released == ["good"]


def test_hanging_namespaces_do_not_block_other_namespaces() -> None:
    world = hanging_world(*pods(good="35"), namespaces=("bad", "worse", "worst", "vile", "vilest"))
    world.dispatch()

    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    assert world.dispatch() <= LONGEST_WAIT
    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    before = len(world.released)
    world.pool.jobs.pop()()
    assert world.released[before] == "good"
    world.settle()
    assert world.metric("held_pods") == 0
    assert world.metric("releases_total", outcome="released") == 1006


def test_hanging_namespace_does_not_saturate_controller() -> None:
    world = hanging_world()
    world.dispatch()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE
    assert not world.controller.saturated
    assert saturated_world().controller.saturated


def test_slow_namespace_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = hanging_world()
    world.settle()
    (message,) = [line for line in caplog.messages if "took" in line]
    assert message == (
        "release: an attempt in namespace bad took 2.0 s; the namespace counts as slow until no "
        "attempt has for 90 s, and has fewer workers; look for an admission webhook that hangs"
    )


def test_retry_after_hang_uses_slow_admission_timeout() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(unreachable()))
    hang_next_release(world)
    world.run(15)
    for _ in range(2):
        world.run(2)

    assert world.api.patience("PATCH") == [RELEASE_TIMEOUT, RELEASE_TIMEOUT, SLOW_ADMISSION_TIMEOUT]


def test_failed_release_of_deleted_pod_is_not_retried() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(unreachable()))
    world.advance(15)
    world.dispatch()
    world.controller.on_delete(Pod.of(world.api.pods[KEY]))
    world.run_jobs()

    assert world.controller._scheduler._backoff.next_at() == math.inf


def test_worker_crash_stops_controller(caplog: pytest.LogCaptureFixture) -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(ZeroDivisionError()))
    world.advance(15)
    world.dispatch()
    world.run_jobs()
    ended = threading.Event()
    threads = ThreadGroup(on_failure=ended.set)
    threads.add("release", world.controller._loop.run)
    with threads:
        assert ended.wait(5)

    assert threads.failed
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_pod_with_unrepresentable_due_time_is_held() -> None:
    world = World(*pods(endless=str(2**63 - 1), good="1"))
    world.run(1)

    assert world.released == ["good"]


def paced_world(number: int, *plugins: Plugin) -> World:
    """Return a world with `number` pods of one owner, held by a pace of 1."""
    handle = Handle()
    owner = owner_of("ReplicaSet", "web", "rs-1", api_version="apps/v1")
    pods = [
        make_pod({PACE: "1"}, gates=[PACE], name=f"p{n}", uid=f"u{n}", owners=[owner])
        for n in range(number)
    ]
    pace = Pace(PaceArgs(), handle)
    world = World(*pods, synced=False, decider=decider_of(pace, *plugins))

    def follow(*_: Any, **__: Any) -> Callable[[], None]:
        assert pace.slots.watch is not None
        pace.slots.watch.on_sync([msgspec.convert(pod, PacedPod) for pod in pods])
        return lambda: None

    handle.connect(
        waiting=world.controller,
        bounds_ms=world.controller.bounds_ms,
        follow=follow,
        record_event=world.controller.record_event,
    )
    world.sync()
    return world


@pytest.mark.parametrize(
    "plugins", [(), (Tightening(lambda _: success(SetAnnotation("a", "b"))),)], ids=["", "edits"]
)
@pytest.mark.parametrize("number", [1, 2])
def test_rejected_paced_pods_back_off(number: int, plugins: Sequence[Plugin]) -> None:
    """Without backoff, they would trigger each other's rechecks in a hot loop."""
    world = paced_world(number, *plugins)
    world.api.before("PATCH", *[raising(status_error(422))] * 500)
    world.run(1)
    first = number * (1 + len(plugins))
    assert len(world.released) == first

    for _ in range(60):
        world.run(1)
    assert 5 * first <= len(world.released) <= 12 * first


def test_many_rejected_paced_pods_back_off() -> None:
    """Each pod waits for the slot again between two rejections."""
    world = paced_world(15)

    def reject_patches(method: str, _path: str) -> None:
        world.local += 0.02
        if method == "PATCH":
            assert len(world.released) < 400
            raise status_error(422)

    world.api.on_request = reject_patches
    while world.local < 60:
        world.dispatch()
        if world.pool.jobs:
            world.pool.jobs.pop(0)()
        else:
            world.local += 0.05
    assert 100 < len(world.released) < 400  # about ten each


# --- metrics and Events ------------------------------------------------------------------------


def test_metrics() -> None:
    world = World(*pods(a="10", b="20"))
    assert world.metric("held_pods") == 2
    assert world.metric("overdue_pods") == 0

    world.advance(15)
    assert world.metric("overdue_pods") == 1
    assert pytest.approx(1.0, abs=0.02) == world.metric("clock_uncertainty_seconds")

    world.settle()
    assert (world.metric("held_pods"), world.metric("overdue_pods")) == (1, 0)
    assert world.metric("releases_total", outcome="released") == 1
    assert world.metric("release_lateness_seconds_count") == 1
    assert world.metric("release_lateness_seconds_sum") == 5


def test_hold_and_release_record_events() -> None:
    world = single_pod_world()
    world.sync()
    world.deliver()
    world.run(16)

    assert world.recorder.notes("Held") == ["held until 2026-03-01T12:00:15Z by holdfast.dev/delay"]
    assert world.recorder.notes("Released") == ["released 1.000 s after its time"]
    assert not any(event.warning for event in world.recorder.events)

    world = single_pod_world()
    world.controller._count_restart("expired")
    world.api.annotate(KEY, delay="1h")
    world.deliver()
    assert (
        world.recorder.notes("Held")[-1] == "held until 2026-03-01T13:00:00Z by holdfast.dev/delay"
    )
    assert world.metric("watch_restarts_total", reason="expired") == 1
    assert world_held_by(Holding(never)).recorder.notes("Held") == ["held by holdfast.dev/holding"]


def test_event_reports_that_restored_pod_waits_again() -> None:
    world = World(held({"delay": "15"}, labels={"velero.io/restore-name": "monday"}))
    (note,) = world.recorder.notes("Held")
    assert note == (
        "held until 2026-03-01T12:00:15Z by holdfast.dev/delay: restored from a backup, so it "
        "waits again; to release it now, run: holdfast release web-0"
    )


@pytest.mark.parametrize("listed", [False, True], ids=["watched", "listed"])
@pytest.mark.parametrize(
    ("changed", "after", "early"),
    [
        pytest.param({}, 5.0, True, id="early"),
        pytest.param(
            {"annotations": {RELEASED_ANNOTATION: "2026-02-28T12:00:00Z"}}, 5.0, True, id="copied"
        ),
        pytest.param(
            {"annotations": {RELEASED_ANNOTATION: "2026-03-01T12:00:05Z"}},
            5.0,
            False,
            id="by Holdfast",
        ),
        pytest.param({"deletionTimestamp": "2026-03-01T12:00:05Z"}, 5.0, False, id="deleted"),
        pytest.param({"uid": "another"}, 5.0, False, id="another pod"),
        pytest.param({}, 14.5, False, id="due within clock uncertainty"),
        pytest.param({}, 20.0, False, id="due"),
    ],
)
def test_gate_removed_early_by_another_client(
    changed: dict[str, Any], after: float, *, early: bool, listed: bool
) -> None:
    world = single_pod_world()
    world.advance(after)
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    pod["metadata"].update(changed)
    (world.sync if listed else world.deliver)()
    who = "by someone else; the API server's audit log names the user"
    notes = [f"gate removed 9s before its due time {who}"] if early else []
    assert world.recorder.notes(events.RELEASED_EARLY) == notes
    assert world.metric("releases_total", outcome="early") == int(early)


def test_listed_pods_get_no_event_when_recorder_is_full() -> None:
    world = World(*pods(a="15", b="15"), synced=False)
    world.recorder.full = True
    world.sync()
    assert world.recorder.events == []
    assert world.metric("held_pods") == 2

    world.api.annotate(("default", "a"), delay="1h")
    world.deliver(("default", "a"))
    assert len(world.recorder.notes("Held")) == 1


def test_failed_release_records_an_event() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(status_error(500)))
    world.run(15)

    (event,) = [one for one in world.recorder.events if one.reason == "ReleaseFailed"]
    assert event.warning
    assert event.note == "HTTP 500: scripted; it is retried until it succeeds"


def test_invalid_delay_records_warnings() -> None:
    world = World(held({"delay": "soon", HELD_ANNOTATION: "delay=15s"}))
    world.run(15)

    problem = "; using annotation holdfast.dev/held instead"
    assert all(event.warning and event.note.endswith(problem) for event in world.recorder.events)
    assert [event.reason for event in world.recorder.events] == ["Held", "Released"]


def test_pod_without_annotations_is_released_without_warning() -> None:
    world = World(held())
    world.settle()

    (event,) = world.recorder.events
    problem = "no annotation asks for a hold: released at once"
    assert (event.reason, event.warning) == ("Released", False)
    assert event.note.endswith(f"its time: {problem}")


@pytest.mark.parametrize("rejected", [False, True], ids=["written", "rejected"])
def test_release_event_reports_plugin_warning_or_rejected_edits(rejected: bool) -> None:
    def tighten(_pod: Pod) -> Result:
        return success(SetAnnotation("a", "1"), warnings=["mind"])

    world = World(held({"delay": "15"}), decider=decider_of(make_delay(), Tightening(tighten)))
    world.api.before("PATCH", *[raising(status_error(422))] * rejected)
    world.run(16)

    (event,) = [one for one in world.recorder.events if one.reason == "Released"]
    problem = "released without what was to be added: HTTP 422: scripted"
    assert event.warning
    assert event.note == f"released 1.000 s after its time: {problem if rejected else 'mind'}"
    assert ("a" in world.api.pods[KEY]["metadata"]["annotations"]) != rejected


def test_release_event_describes_pod_as_released() -> None:
    world = single_pod_world()
    world.api.annotate(KEY, delay="soon")  # the watch has not delivered this yet
    world.run(16)

    (note,) = world.recorder.notes("Released")
    assert note.startswith("released 1.000 s after its time: annotation delay: ")
    assert note.endswith("; using annotation holdfast.dev/held instead")


def test_pod_due_before_sync_is_released_late() -> None:
    world = World(*pods(a="15"), synced=False)
    world.advance(60)
    world.sync()
    world.settle()

    assert world.recorder.notes("Held") == []
    assert world.recorder.notes("Released") == ["released 45.000 s after its time"]


def test_pod_released_by_plugin_is_not_late() -> None:
    world = world_held_by(Holding(never))
    world.advance(3_600)
    world.allow("holding")
    world.settle()

    assert world.recorder.notes("Released") == ["released 0.000 s after its time"]
    assert world.metric("release_lateness_seconds_sum") == 0


# --- held pods seen by plugins -----------------------------------------------------------------


def world_held_by(*plugins: Holding, delay: str | None = None) -> World:
    """Return a world with one pod held by these plugins, and by the delay if given."""
    gates = [plugin.gate for plugin in plugins]
    found: list[Plugin] = [make_delay(), *plugins]
    pod = held({"delay": delay} if delay else {}, gates=[GATE, *gates] if delay else gates)
    return World(pod, decider=decider_of(*found))


def test_release_event_names_the_approver() -> None:
    marks = {"holdfast.dev/approval": "release 2.4", "holdfast.dev/approved-by": "jane"}
    world = World(held(marks, gates=["holdfast.dev/approval"]))
    world.run(5)
    (note,) = world.recorder.notes("Released")
    assert note == "released: approved by jane"


def test_release_event_omits_approver_without_approval_annotation() -> None:
    world = World(held({"holdfast.dev/approved-by": "boss"}, gates=["holdfast.dev/approval"]))
    world.run(5)
    (note,) = world.recorder.notes("Released")
    assert "boss" not in note


APPROVAL = "holdfast.dev/approval"


def world_awaiting_approval(**marks: str) -> World:
    return World(held({APPROVAL: "x", **marks}, gates=[APPROVAL]), synced=False)


def test_held_event_names_plugin_once_and_follows_reason() -> None:
    world = world_awaiting_approval()
    world.sync()
    marks = world.api.pods[KEY]["metadata"]["annotations"]
    marks["holdfast.dev/denied-by"] = "lee"
    world.deliver()
    world.deliver()
    marks["holdfast.dev/denied-reason"] = "not today"
    world.deliver()
    assert world.recorder.notes("Held") == [
        f"held by {APPROVAL}: x",
        f"held by {APPROVAL}: denied by lee",
        f"held by {APPROVAL}: denied by lee: not today",
    ]


@pytest.mark.parametrize(
    ("annotations", "gates", "until"),
    [
        pytest.param(
            {"delay": "1h", APPROVAL: "x"}, [GATE, APPROVAL], "until at least ", id="never"
        ),
        pytest.param({"delay": "1h"}, [GATE, "holdfast.dev/pace"], "until at least ", id="pace"),
        pytest.param({"delay": "1h"}, [GATE], "until ", id="delay"),
    ],
)
def test_held_event_names_due_time_alongside_other_holds(
    annotations: dict[str, str], gates: list[str], until: str
) -> None:
    world = World(held(annotations, gates=gates))
    (note,) = world.recorder.notes("Held")
    assert note.startswith(f"held {until}2026-03-01T13:00:00Z by holdfast.dev/delay")


@pytest.mark.parametrize("key", [APPROVAL, "holdfast.dev/window"])
def test_removed_annotation_is_not_a_warning(key: str) -> None:
    world = World(held({}, gates=[key]))
    world.settle()
    (event,) = world.recorder.events
    assert (event.reason, event.warning) == ("Released", False)
    assert f"annotation {key} was removed" in event.note


@pytest.mark.parametrize(
    ("marks", "early"),
    [
        pytest.param({}, True, id="waiting"),
        pytest.param({"holdfast.dev/denied-by": "lee"}, True, id="denied"),
        pytest.param({"holdfast.dev/approved-by": "jane"}, False, id="approved"),
        pytest.param({"holdfast.dev/allowed": "approval"}, False, id="allowed"),
    ],
)
def test_release_without_approval_is_early(marks: dict[str, str], *, early: bool) -> None:
    world = world_awaiting_approval()
    world.sync()
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    released = {RELEASED_ANNOTATION: "2026-03-01T12:00:05Z"}
    pod["metadata"]["annotations"].update({**marks, **released})
    world.deliver()
    assert len(world.recorder.notes(events.RELEASED_EARLY)) == early
    assert world.recorder.notes(events.RELEASED) == []  # the leader may have released it


@pytest.mark.parametrize("after", [5.0, 20.0], ids=["early", "due"])
def test_early_release_by_user_records_an_event(after: float) -> None:
    world = single_pod_world()
    world.advance(after)
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    pod["metadata"]["annotations"][RELEASED_ANNOTATION] = "2026-03-01T12:00:05Z"
    world.deliver()
    note = (
        "released 9s before its due time at a user's request; the API server's audit log names "
        "the user"
    )
    assert world.recorder.notes(events.RELEASED) == ([note] if after < 15 else [])


def test_plugins_see_the_held_pods() -> None:
    world = World(*pods(a="10", b="20"), make_pod(name="free"), held({"delay": "x"}, name="bad"))
    seen: WaitingPods = world.controller
    due = seen.get(("default", "bad"))

    assert sorted(seen) == [("default", "a"), ("default", "b"), ("default", "bad")]
    assert Due(CREATED_MS + 20_000) == seen.get(("default", "b"))
    assert due is not None
    assert (due.at_ms, due.problem[:17]) == (CREATED_MS, "annotation delay:")
    assert seen.get(("default", "free")) is None


def test_held_pods_may_change_during_iteration() -> None:
    world = World(*pods(a="10", b="20"))
    for key in world.controller:
        world.controller.on_delete(Pod.of(world.api.pods[key]))

    assert list(world.controller) == []


def test_pod_allowed_by_its_plugin_is_released_at_once() -> None:
    world = world_held_by(Holding(never))
    world.run(60)
    assert world.released == []

    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY) == []
    assert list(world.controller) == []


def test_plugin_releases_pod_with_forged_allowed_annotation() -> None:
    world = world_held_by(Holding(never))
    world.api.annotate(KEY, **{ALLOWED_ANNOTATION: ",".join(["planted"] * 100)})
    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY) == []


def test_release_records_plugin_metrics() -> None:
    metrics = ControllerMetrics()
    plugins = make_delay(), Tightening(lambda _: success())
    decider = decider_of(*plugins, observe=metrics.observe_plugin)
    world = World(held({"delay": "15"}), decider=decider, metrics=metrics)
    world.run(15)

    labels = {"extension_point": "release", "status": "Success", "profile": "*"}
    execution = "plugin_execution_duration_seconds_count"
    assert world.metric(execution, plugin="tightening", **labels) == 1
    assert world.metric("framework_extension_point_duration_seconds_count", **labels) == 1


def test_possibly_released_pod_keeps_its_slot_after_429() -> None:
    slots = Slots()
    world = world_held_by(slots)
    world.api.after("PATCH", raising(unreachable()))
    world.run(5)
    world.api.before("PATCH", raising(status_error(429)))
    world.run(60)

    assert (world.api.gates(KEY), list(world.controller)) == ([], [])
    assert slots.free == 0


def test_pod_held_by_another_plugin_stays_held() -> None:
    world = world_held_by(Holding(never), HoldingToo(never))
    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY)
    assert world.controller.get(KEY) == Due(NEVER_MS)

    world.allow("holding-too")
    world.settle()
    assert world.api.gates(KEY) == []


def test_pod_allowed_by_its_plugin_stays_held_until_delay_ends() -> None:
    world = world_held_by(Holding(never), delay="1h")
    world.allow("holding")
    world.settle()
    assert Due(CREATED_MS + HOUR) == world.controller.get(KEY)

    world.run(3_599)
    assert world.api.gates(KEY)

    world.run(1)
    assert world.api.gates(KEY) == []


class RecheckingPermit:
    """Requests a recheck during its second call, which still returns Wait."""

    def __init__(self) -> None:
        self.calls = 0
        self.world: World | None = None

    def __call__(self, _pod: Pod, _now_ms: int) -> Permit:
        self.calls += 1
        if self.calls == 2:
            assert self.world is not None
            self.world.controller.recheck(KEY)
        return Wait() if self.calls <= 2 else Allow()


@pytest.mark.parametrize("how", ["watched", "listed", "attempted"])
def test_recheck_during_permit_is_not_lost(how: str) -> None:
    permit = RecheckingPermit()
    world = permit.world = world_held_by(Holding(permit))
    if how == "watched":
        world.deliver()
    elif how == "listed":
        world.sync()
    else:
        world.controller.recheck(KEY)
    world.settle()

    assert permit.calls == 3
    assert world.api.gates(KEY) == []


class SubscribedPermit:
    """Requests a recheck when its answer changes, if its last answer was Wait."""

    def __init__(self) -> None:
        self.allows = self.waits = False
        self.world: World | None = None
        self.after: list[Callable[[], None]] = []

    def __call__(self, _pod: Pod, _now_ms: int) -> Permit:
        self.waits = not self.allows
        answer = Allow() if self.allows else Wait()
        if self.after:
            self.after.pop()()
        return answer

    def change(self, *, allows: bool) -> None:
        self.allows = allows
        if self.waits:
            assert self.world is not None
            self.world.controller.recheck(KEY)


@pytest.mark.parametrize("how", ["watched", "listed"])
def test_permit_result_older_than_recheck_is_discarded(how: str) -> None:
    permit = SubscribedPermit()
    world = permit.world = world_held_by(Holding(permit), delay="20")

    def allow_and_settle() -> None:
        permit.change(allows=True)
        world.settle()  # only the delay holds the pod now

    permit.after.append(allow_and_settle)
    if how == "watched":
        world.deliver()
    else:
        world.sync()
    assert world.api.gates(KEY)
    world.settle()
    world.run(20)

    assert world.api.gates(KEY) == []


def test_recheck_while_pod_is_added_is_not_lost() -> None:
    answers: list[Permit] = [Allow(), Wait()]

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        world.controller.recheck(KEY)
        return answers.pop()

    world = World(decider=decider_of(Holding(permit)))
    world.api.put_pod(held({}, gates=[Holding.gate]))
    world.deliver()
    world.settle()

    assert world.api.gates(KEY) == []


def test_permit_that_raises_keeps_pod_held_and_is_retried() -> None:
    broken = [True]

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        if broken[0]:
            raise KeyError("x")
        return Allow()

    world = world_held_by(Holding(permit))
    world.settle()
    (event,) = [one for one in world.recorder.events if one.reason == "ReleaseFailed"]
    assert "plugin 'holding' failed in permit: KeyError: 'x'" in event.note
    assert world.released == []

    broken[0] = False
    world.run(60)
    assert world.api.gates(KEY) == []


def test_changed_wait_reason_records_an_event() -> None:
    answers = [Wait(reason="4 of 4 starting"), Wait(reason="the job"), Wait(reason="the job")]
    world = world_held_by(Holding(lambda _pod, _now_ms: answers.pop()))
    for _ in range(2):
        world.controller.recheck(KEY)
        world.settle()

    assert world.recorder.notes("Held") == [
        "held by holdfast.dev/holding: the job",
        "held by holdfast.dev/holding: 4 of 4 starting",
    ]


def test_held_event_omits_time_of_open_ended_wait() -> None:
    wait = Wait(CREATED_MS + 300_000, "4 of 4 starting", open_ended=True)
    world = world_held_by(Holding(lambda _pod, _now_ms: wait))
    world.settle()

    assert world.recorder.notes("Held") == ["held by holdfast.dev/holding: 4 of 4 starting"]


def test_recheck_of_a_pod_that_is_not_held_has_no_effect() -> None:
    world = single_pod_world()
    world.controller.recheck(("default", "none"))
    world.settle()

    assert list(world.controller) == [KEY]
    assert world.released == []


def test_recheck_of_unknown_pod_is_not_remembered() -> None:
    asked: list[int] = []

    def permit(_pod: Pod, now_ms: int) -> Permit:
        asked.append(now_ms)
        return Wait()

    world = World(decider=decider_of(Holding(permit)))
    world.controller.recheck(KEY)
    world.api.put_pod(held({}, gates=[Holding.gate]))
    world.deliver()
    world.settle()

    assert len(asked) == 1


def test_pod_with_many_gates_and_large_annotations_is_released() -> None:
    gates = [f"holdfast.dev/{number}" for number in range(MAX_GATES)]
    world = World(held({"big": "x" * 250_000, "delay": "5"}, gates=[GATE, "a.io/b", *gates]))
    world.run(4)
    assert len(world.api.gates(KEY)) == MAX_GATES + 2
    world.run(2)

    assert world.api.gates(KEY) == ["a.io/b"]
    assert all(len(event.note) <= events.NOTE_LENGTH for event in world.recorder.events)


def test_plugin_records_an_event() -> None:
    world = single_pod_world()
    world.controller.record_event(read_pod(name="p"), "Mind", "this", warning=True)
    world.controller.record_event(read_pod(name="p"), "Mind", "that")

    assert world.recorder.events[-2:] == [
        events.Event(("default", "p"), UID, "Mind", "this", warning=True),
        events.Event(("default", "p"), UID, "Mind", "that", warning=False),
    ]


# --- with real threads -------------------------------------------------------------------------


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.002)


def known_clock(date: float) -> ServerClock:
    clock, local = ServerClock(), boot_time()
    clock.observe(sent=local, received=local, date=date)
    return clock


def controller_threads(api: FakeApi, second: datetime) -> ThreadGroup:
    """Return the threads of a controller with a known clock."""
    clock = known_clock(second.timestamp())
    controller = ReleaseController(api, make_decider(), clock, ControllerMetrics())
    threads = ThreadGroup(on_failure=lambda: None)
    controller.add_to(threads)
    return threads


def test_shutdown_waits_briefly_for_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that hangs must not keep the Lease from the next controller."""
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    second = datetime.now(UTC).replace(microsecond=0)
    api = FakeApi(held({"delay": "5"}, created=second - timedelta(minutes=1)))
    hung, resume = threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        assert resume.wait(5)

    api.before("PATCH", hang)
    with controller_threads(api, second):
        assert hung.wait(5)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert api.gates(KEY) == [GATE]
    resume.set()
    eventually(lambda: not api.gates(KEY))
    api.close()


def test_run_releases_overdue_and_newly_due_pods() -> None:
    second = datetime.now(UTC).replace(microsecond=0)
    overdue = [
        held({"delay": str(number)}, name=f"p{number}", created=second - timedelta(minutes=1))
        for number in range(20)
    ]
    api = FakeApi(*overdue, held({"delay": "1h"}, name="later", created=second))
    threads = controller_threads(api, second)
    with threads:
        eventually(lambda: all(not api.gates(("default", f"p{n}")) for n in range(20)))
        api.put_pod(held({"delay": "5"}, name="new", created=second - timedelta(seconds=10)))
        eventually(lambda: not api.gates(("default", "new")))
        api.annotate(("default", "later"), delay="0")
        eventually(lambda: not api.gates(("default", "later")))
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
