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


class Told(events.EventSink):
    full = False

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def record(self, event: events.Event) -> None:
        self.events.append(event)

    def notes(self, reason: str) -> list[str]:
        return [event.note for event in self.events if event.reason == reason]


class World:
    """A controller without threads, on a clock that stands until the test moves it.

    Local time is seconds since the pods' creation, by a server whose clock is known exactly.
    """

    def __init__(
        self,
        *pods: dict[str, Any],
        synced: bool = True,
        knows_time: bool = True,
        decider: ReleaseDecider | None = None,
        metrics: ControllerMetrics | None = None,
        begin: Callable[..., bool] | None = None,
    ) -> None:
        self.local = 0.0
        self.leads = True
        self.api = FakeApi(*pods)
        self.clock = ServerClock()
        self.metrics = metrics or ControllerMetrics()
        self.told = Told()
        self.pool = ThreadPool()
        self.waits = Impatient()
        self.controller = ReleaseController(
            self.api,
            decider or make_decider(),
            self.clock,
            self.metrics,
            recorder=self.told,
            leading=lambda: self.leads,
            now=lambda: self.local,
            begin=begin,
        )
        self.controller._loop.changed = self.controller._changed = self.waits
        if knows_time:
            self.hear(CREATED_S)
        if synced:
            self.sync()

    def hear(self, date: float) -> None:
        self.clock.observe(sent=self.local, received=self.local, date=date)

    def move(self, seconds: float) -> None:
        """Let time pass; the server is asked for its own at the end."""
        self.local += seconds
        if self.local == int(self.local):
            self.hear(CREATED_S + self.local)

    def sync(self) -> None:
        self.controller.on_sync([Pod.of(pod) for pod in self.api.pods.values()])
        self.freeze()

    def freeze(self, **reasons: str) -> None:
        """Have all namespaces listed, of which these are frozen."""
        self.controller.freeze_watch.on_sync([namespace(*each) for each in reasons.items()])

    def tell(self, key: ObjectKey = KEY) -> None:
        self.controller.on_update(Pod.of(self.api.pods[key]))

    def allow(self, plugin: str) -> None:
        """Have a plugin let the pod go; the watch reports what that wrote."""
        self.controller.allow(KEY, plugin)
        self.tell()

    def turn(self) -> float:
        """Do one turn of the loop without carrying anything out; gives how long it would sleep."""
        self.controller._loop._dispatch(self.pool)
        return self.waits.waits[-1]

    def work(self) -> None:
        jobs, self.pool.jobs = self.pool.jobs, []
        for job in jobs:
            job()

    def settle(self) -> None:
        """Turn and work until nothing more is to be done now."""
        self.turn()
        while self.pool.jobs:
            self.work()
            self.turn()

    def run(self, seconds: float) -> None:
        """Let time pass, and do what is then due."""
        self.move(seconds)
        self.settle()

    @property
    def released(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path in self.api.requests if method == "PATCH"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels)


def namespace(name: str, reason: str | None, until: str | None = None) -> ApiObject:
    found = {FREEZE: reason, FREEZE_UNTIL: until}
    kept = {key: value for key, value in found.items() if value is not None}
    return ApiObject(Metadata(name=name, annotations=kept))


def pods(**delays: str) -> list[dict[str, Any]]:
    return [
        held({"delay": delay, HELD_ANNOTATION: f"delay={delay}"}, name=name, uid=f"uid-{name}")
        for name, delay in delays.items()
    ]


def one(delay: str = "15") -> World:
    return World(held({"delay": delay, HELD_ANNOTATION: f"delay={delay}s"}))


# --- standing by -------------------------------------------------------------------------------


def test_who_does_not_lead_knows_all_and_does_nothing() -> None:
    world = World(*pods(soon="15", later="1h"), synced=False)
    world.leads = False
    world.sync()
    world.move(20)
    assert world.turn() == LONGEST_WAIT
    assert world.pool.jobs == []
    assert world.told.events == []
    assert world.metric("held_pods") == 2
    assert world.controller.synced


def test_who_begins_to_lead_releases_what_is_overdue_at_once() -> None:
    world = World(*pods(b="15", a="10", later="1h"))
    world.leads = False
    world.run(20)
    world.leads = True
    world.settle()
    assert world.released == ["a", "b"]


def test_who_leads_no_more_leaves_what_was_handed_out() -> None:
    world = World(*pods(a="15"))
    world.move(20)
    world.turn()
    world.leads = False  # the process stood still meanwhile
    world.work()
    assert world.turn() == LONGEST_WAIT
    assert world.released == []

    world.leads = True
    world.settle()
    assert world.released == ["a"]


def test_lead_that_is_lost_while_a_plugin_is_asked_ends_the_release() -> None:
    def lose(_pod: Pod) -> Result:
        world.leads = False
        return success(SetAnnotation("a", "b"))

    world = World(*pods(a="15"), decider=decider_of(make_delay(), Tightening(lose)))
    world.run(20)
    assert world.released == []


# --- on time -----------------------------------------------------------------------------------


def test_nothing_is_released_early() -> None:
    world = one()
    world.run(14.999)
    assert world.api.gates(KEY) == [GATE]

    world.run(0.001)
    assert world.api.gates(KEY) == []


def test_loop_sleeps_until_the_next_pod_is_due_and_no_longer() -> None:
    world = one()
    assert world.turn() == LONGEST_WAIT

    world.move(14.5)
    passed = world.clock.lower_bound(world.local)
    assert passed is not None
    assert pytest.approx(CREATED_S + 15 - passed) == world.turn()


def test_nothing_is_released_while_the_servers_clock_is_unknown() -> None:
    world = World(*pods(a="0"), knows_time=False)

    assert world.turn() == LONGEST_WAIT
    assert world.pool.jobs == []
    assert world.metric("overdue_pods") == 0
    assert world.metric("clock_uncertainty_seconds") == math.inf


@pytest.mark.parametrize("step", [-3_600.0, 3_600.0], ids=["back", "forward"])
def test_releases_follow_the_servers_clock_where_it_is_set(step: float) -> None:
    world = World(*pods(soon="15", later="2h"))
    world.move(10)
    world.hear(CREATED_S + 10 + step)
    for _ in range(11):  # a clock that is ahead has to be confirmed
        world.local += 1
        world.hear(CREATED_S + world.local + step)
        world.settle()

    assert (["soon"] if step > 0 else []) == world.released


def test_no_more_releases_of_one_namespace_are_under_way_than_it_may_have() -> None:
    world = World(*pods(**{f"p{number:02}": str(number) for number in range(99)}))
    under_way: list[int] = []

    def look() -> None:
        assert world.turn() == LONGEST_WAIT
        under_way.append(world.controller._scheduler.in_flight)

    world.move(120)
    world.api.before("PATCH", *[look] * 50)
    world.settle()
    growing = range(module.FIRST_OF_ONE, module.WORKERS_OF_ONE)
    assert under_way == [*growing, *[module.WORKERS_OF_ONE] * (50 - len(growing))]
    assert len(set(world.released)) == len(world.released) == 99


def test_no_more_releases_are_under_way_than_there_are_threads() -> None:
    world = burst()
    assert len(world.pool.jobs) == module.WORKERS


def test_who_has_released_a_pod_takes_the_next_that_is_due() -> None:
    world = World(*pods(**{f"p{number:02}": str(number) for number in range(99)}))
    world.move(60)
    world.turn()
    world.work()

    began = [f"p{number:02}" for number in range(module.FIRST_OF_ONE)]
    behind = [f"p{number:02}" for number in range(module.FIRST_OF_ONE, 61)]
    assert world.released == [began[0], *behind, *began[1:]]  # in turn, where threads do it at once


def test_who_has_released_a_pod_takes_no_other_when_the_lead_is_lost() -> None:
    world = World(*pods(**{f"p{number:02}": "1" for number in range(module.WORKERS + 1)}))
    world.move(60)
    world.turn()
    world.api.before("PATCH", lambda: setattr(world, "leads", False))
    world.pool.jobs[1:] = []
    world.work()

    assert world.released == ["p00"]


def test_pods_that_are_not_ours_are_left_alone() -> None:
    world = World(make_pod({"delay": "0"}, name="free"), make_pod(gates=["a.io/b"], name="another"))
    world.run(60)

    assert world.released == []
    assert world.metric("held_pods") == 0


# --- changes while it waits --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "due"),
    [
        pytest.param({"delay": "30"}, 30, id="longer"),
        pytest.param({"delay": "5"}, 5, id="shorter"),
        pytest.param({"delay": None}, 0, id="removed"),
        pytest.param({"delay": "soon"}, 15, id="unreadable"),
        pytest.param({"delay": "0"}, 0, id="zero"),
    ],
)
def test_change_of_the_annotation_is_followed(annotations: dict[str, Any], due: int) -> None:
    world = one()
    world.api.annotate(KEY, **annotations)
    world.tell()
    if due:
        world.run(due - 1)
        assert world.api.gates(KEY) == [GATE]
        world.move(1)
    world.settle()

    assert world.api.gates(KEY) == []


@pytest.mark.parametrize("how", ["ungated", "deleted", "not listed"])
def test_pod_that_is_no_longer_held_is_forgotten(how: str) -> None:
    world = World(*pods(a="15", b="15"))
    gone = ("default", "a")
    if how == "ungated":
        world.api.put_pod(make_pod({"delay": "15"}, name="a"))
        world.tell(gone)
    elif how == "deleted":
        world.controller.on_delete(Pod.of(world.api.pods[gone]))
    else:
        world.api.delete(gone)
        world.sync()
    world.run(60)

    assert world.released == ["b"]


# --- changes that cross a release --------------------------------------------------------------


def crossing(change: Callable[[World], None]) -> World:
    """Let a pod become due and be handed out, change it, and only then carry the release out."""
    world = one()
    world.move(15)
    world.turn()
    assert len(world.pool.jobs) == 1
    change(world)
    world.work()
    world.settle()
    return world


def recreate(delay: str) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.controller.on_delete(Pod.of(world.api.pods[KEY]))
        world.api.put_pod(held({"delay": delay}, uid="another"))
        world.tell()

    return act


def lengthen_unseen(world: World) -> None:
    world.api.annotate(KEY, delay="1h")


def lengthen(world: World) -> None:
    lengthen_unseen(world)
    world.tell()


@pytest.mark.parametrize(
    "change",
    [lengthen, lengthen_unseen, recreate("1h")],
    ids=["lengthened", "lengthened before the watch reported it", "recreated"],
)
def test_pod_that_may_only_go_later_after_all_is_kept(change: Callable[[World], None]) -> None:
    world = crossing(change)
    assert world.api.gates(KEY) == [GATE]

    world.run(3_584)
    assert world.api.gates(KEY) == [GATE]

    world.run(1)
    assert world.api.gates(KEY) == []


def test_new_pod_of_the_same_name_that_is_due_is_released_as_well() -> None:
    world = crossing(recreate("5"))

    assert world.api.gates(KEY) == []
    assert len(world.released) == 2


def test_pod_that_is_deleted_meanwhile_is_nobodys_trouble() -> None:
    def delete(world: World) -> None:
        world.controller.on_delete(Pod.of(world.api.pods[KEY]))
        world.api.delete(KEY)

    world = crossing(delete)

    assert world.metric("releases_total", outcome="gone") == 1
    assert world.metric("held_pods") == 0


# --- failures ----------------------------------------------------------------------------------


def test_server_that_asks_to_wait_is_heard() -> None:
    world = one()
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


def in_namespace(namespace: str, *found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**one, "metadata": {**one["metadata"], "namespace": namespace}} for one in found]


def burst() -> World:
    """Give a world in which pods are due in more namespaces than there are threads for."""
    found = pods(**{f"p{number:02}": "1" for number in range(30)})
    spaces = [f"space-{number}" for number in range(1 + module.WORKERS // module.FIRST_OF_ONE)]
    world = World(*[one for space in spaces for one in in_namespace(space, *found)])
    world.move(60)
    world.turn()
    return world


def hang(world: World) -> None:
    """Have the next release hang for a while, and fail."""

    def hangs() -> None:
        world.move(SLOW_SECONDS)
        raise unreachable()

    world.api.before("PATCH", hangs)


def crowded(*others: dict[str, Any], namespaces: tuple[str, ...] = ("bad",)) -> World:
    """Give a world at second 40: very many pods of some namespaces are due, one each has hung."""
    crowd = pods(first="10", **{f"bad-{number:03}": "30" for number in range(200)})
    world = World(*[one for space in namespaces for one in in_namespace(space, *crowd)], *others)
    world.move(10)
    world.turn()
    jobs, world.pool.jobs = world.pool.jobs, []
    for job in jobs:
        hang(world)
        job()
    world.move(40 - world.local)
    return world


def test_pods_of_one_namespace_leave_others_a_way_at_once() -> None:
    """Before any of them is known to hang."""
    crowd = {f"bad-{number:03}": "20" for number in range(200)}
    world = World(*in_namespace("bad", *pods(**crowd)), *pods(good="25"))
    world.move(21)
    world.turn()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE
    world.move(5)
    world.turn()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE + 1
    world.pool.jobs.pop()()
    assert world.released == ["good"]


def test_namespaces_that_hang_leave_others_a_way() -> None:
    world = crowded(*pods(good="35"), namespaces=("bad", "worse", "worst", "vile", "vilest"))
    world.turn()

    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    assert world.turn() <= LONGEST_WAIT
    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    before = len(world.released)
    world.pool.jobs.pop()()
    assert world.released[before] == "good"
    world.settle()
    assert world.metric("held_pods") == 0
    assert world.metric("releases_total", outcome="released") == 1006


def test_what_hangs_does_not_keep_events_waiting() -> None:
    world = crowded()
    world.turn()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE
    assert not world.controller.saturated
    assert burst().controller.saturated


def test_that_releases_of_a_namespace_take_long_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = crowded()
    world.settle()
    (told,) = [one for one in caplog.messages if "took" in one]
    assert told == (
        "release: an attempt in namespace bad took 2.0 s; the namespace counts as slow until no "
        "attempt has for 90 s, and has fewer workers; look for an admission webhook that hangs"
    )


def test_try_after_one_that_hung_has_the_time_that_webhooks_may_take() -> None:
    world = one()
    world.api.before("PATCH", raising(unreachable()))
    hang(world)
    world.run(15)
    for _ in range(2):
        world.run(2)

    assert world.api.patience("PATCH") == [RELEASE_TIMEOUT, RELEASE_TIMEOUT, SLOW_ADMISSION_TIMEOUT]


def test_failed_release_of_a_deleted_pod_leaves_nothing_to_retry() -> None:
    world = one()
    world.api.before("PATCH", raising(unreachable()))
    world.move(15)
    world.turn()
    world.controller.on_delete(Pod.of(world.api.pods[KEY]))
    world.work()

    assert world.controller._scheduler._backoff.next_at() == math.inf


def test_worker_that_dies_ends_the_controller(caplog: pytest.LogCaptureFixture) -> None:
    world = one()
    world.api.before("PATCH", raising(ZeroDivisionError()))
    world.move(15)
    world.turn()
    world.work()
    ended = threading.Event()
    threads = ThreadGroup(on_failure=ended.set)
    threads.add("release", world.controller._loop.run)
    with threads:
        assert ended.wait(5)

    assert threads.failed
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_pod_that_no_calendar_has_a_time_for_is_held() -> None:
    world = World(*pods(endless=str(2**63 - 1), good="1"))
    world.run(1)

    assert world.released == ["good"]


def paced(number: int, *plugins: Plugin) -> World:
    """Have so many pods of one owner held by a pace of 1."""
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
def test_refused_pods_of_a_pace_back_off(number: int, plugins: Sequence[Plugin]) -> None:
    """They would call one another for ever."""
    world = paced(number, *plugins)
    world.api.before("PATCH", *[raising(status_error(422))] * 500)
    world.run(1)
    first = number * (1 + len(plugins))
    assert len(world.released) == first

    for _ in range(60):
        world.run(1)
    assert 5 * first <= len(world.released) <= 12 * first


def test_refused_pods_of_a_pace_back_off_however_many_there_are() -> None:
    """Each of them waits for the slot again between two refusals."""
    world = paced(15)

    def refuse(method: str, _path: str) -> None:
        world.local += 0.02
        if method == "PATCH":
            assert len(world.released) < 400
            raise status_error(422)

    world.api.on_request = refuse
    while world.local < 60:
        world.turn()
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

    world.move(15)
    assert world.metric("overdue_pods") == 1
    assert pytest.approx(1.0, abs=0.02) == world.metric("clock_uncertainty_seconds")

    world.settle()
    assert (world.metric("held_pods"), world.metric("overdue_pods")) == (1, 0)
    assert world.metric("releases_total", outcome="released") == 1
    assert world.metric("release_lateness_seconds_count") == 1
    assert world.metric("release_lateness_seconds_sum") == 5


def test_events_tell_of_hold_and_release() -> None:
    world = one()
    world.sync()
    world.tell()
    world.run(16)

    assert world.told.notes("Held") == ["held until 2026-03-01T12:00:15Z by holdfast.dev/delay"]
    assert world.told.notes("Released") == ["released 1.000 s after its time"]
    assert not any(event.warning for event in world.told.events)

    world = one()
    world.controller._count_restart("expired")
    world.api.annotate(KEY, delay="1h")
    world.tell()
    assert world.told.notes("Held")[-1] == "held until 2026-03-01T13:00:00Z by holdfast.dev/delay"
    assert world.metric("watch_restarts_total", reason="expired") == 1
    assert waiting_for(Holding(never)).told.notes("Held") == ["held by holdfast.dev/holding"]


def test_event_says_that_a_restored_pod_waits_again() -> None:
    world = World(held({"delay": "15"}, labels={"velero.io/restore-name": "monday"}))
    (note,) = world.told.notes("Held")
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
        pytest.param({}, 14.5, False, id="due soon, by an uncertain clock"),
        pytest.param({}, 20.0, False, id="due"),
    ],
)
def test_gate_that_someone_else_removes_early(
    changed: dict[str, Any], after: float, *, early: bool, listed: bool
) -> None:
    world = one()
    world.move(after)
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    pod["metadata"].update(changed)
    (world.sync if listed else world.tell)()
    who = "by someone else; the API server's audit log names the user"
    told = [f"gate removed 9s before its due time {who}"] if early else []
    assert world.told.notes(events.RELEASED_EARLY) == told
    assert world.metric("releases_total", outcome="early") == int(early)


def test_of_very_many_in_a_list_only_some_are_told() -> None:
    world = World(*pods(a="15", b="15"), synced=False)
    world.told.full = True
    world.sync()
    assert world.told.events == []
    assert world.metric("held_pods") == 2

    world.api.annotate(("default", "a"), delay="1h")
    world.tell(("default", "a"))
    assert len(world.told.notes("Held")) == 1


def test_events_tell_of_a_failure() -> None:
    world = one()
    world.api.before("PATCH", raising(status_error(500)))
    world.run(15)

    (event,) = [one for one in world.told.events if one.reason == "ReleaseFailed"]
    assert event.warning
    assert event.note == "HTTP 500: scripted; it is retried until it succeeds"


def test_events_tell_of_a_problem() -> None:
    world = World(held({"delay": "soon", HELD_ANNOTATION: "delay=15s"}))
    world.run(15)

    problem = "; using annotation holdfast.dev/held instead"
    assert all(event.warning and event.note.endswith(problem) for event in world.told.events)
    assert [event.reason for event in world.told.events] == ["Held", "Released"]


def test_pod_whose_annotations_were_removed_is_nobodys_fault() -> None:
    world = World(held())
    world.settle()

    (event,) = world.told.events
    problem = "no annotation asks for a hold: released at once"
    assert (event.reason, event.warning) == ("Released", False)
    assert event.note.endswith(f"its time: {problem}")


@pytest.mark.parametrize("refused", [False, True], ids=["written", "refused"])
def test_event_of_a_release_tells_what_plugins_said(refused: bool) -> None:
    def tighten(_pod: Pod) -> Result:
        return success(SetAnnotation("a", "1"), warnings=["mind"])

    world = World(held({"delay": "15"}), decider=decider_of(make_delay(), Tightening(tighten)))
    world.api.before("PATCH", *[raising(status_error(422))] * refused)
    world.run(16)

    (event,) = [one for one in world.told.events if one.reason == "Released"]
    problem = "released without what was to be added: HTTP 422: scripted"
    assert event.warning
    assert event.note == f"released 1.000 s after its time: {problem if refused else 'mind'}"
    assert ("a" in world.api.pods[KEY]["metadata"]["annotations"]) != refused


def test_event_of_a_release_tells_the_pod_as_it_was_released() -> None:
    world = one()
    world.api.annotate(KEY, delay="soon")  # the watch has not delivered this yet
    world.run(16)

    (note,) = world.told.notes("Released")
    assert note.startswith("released 1.000 s after its time: annotation delay: ")
    assert note.endswith("; using annotation holdfast.dev/held instead")


def test_pod_that_fell_due_while_nobody_watched_is_late() -> None:
    world = World(*pods(a="15"), synced=False)
    world.move(60)
    world.sync()
    world.settle()

    assert world.told.notes("Held") == []
    assert world.told.notes("Released") == ["released 45.000 s after its time"]


def test_pod_that_its_plugin_releases_is_not_late() -> None:
    world = waiting_for(Holding(never))
    world.move(3_600)
    world.allow("holding")
    world.settle()

    assert world.told.notes("Released") == ["released 0.000 s after its time"]
    assert world.metric("release_lateness_seconds_sum") == 0


# --- held pods, as plugins see them ------------------------------------------------------------


def waiting_for(*plugins: Holding, delay: str | None = None) -> World:
    """Hold one pod by these plugins, and by a delay where one is named."""
    gates = [plugin.gate for plugin in plugins]
    found: list[Plugin] = [make_delay(), *plugins]
    pod = held({"delay": delay} if delay else {}, gates=[GATE, *gates] if delay else gates)
    return World(pod, decider=decider_of(*found))


def test_event_says_who_approved_a_pod() -> None:
    marks = {"holdfast.dev/approval": "release 2.4", "holdfast.dev/approved-by": "jane"}
    world = World(held(marks, gates=["holdfast.dev/approval"]))
    world.run(5)
    (note,) = world.told.notes("Released")
    assert note == "released: approved by jane"


def test_event_names_no_approver_of_a_pod_that_was_created_with_gate_and_name() -> None:
    world = World(held({"holdfast.dev/approved-by": "boss"}, gates=["holdfast.dev/approval"]))
    world.run(5)
    (note,) = world.told.notes("Released")
    assert "boss" not in note


APPROVAL = "holdfast.dev/approval"


def waiting_for_approval(**marks: str) -> World:
    return World(held({APPROVAL: "x", **marks}, gates=[APPROVAL]), synced=False)


def test_event_names_the_plugin_once_and_follows_the_reason() -> None:
    world = waiting_for_approval()
    world.sync()
    marks = world.api.pods[KEY]["metadata"]["annotations"]
    marks["holdfast.dev/denied-by"] = "lee"
    world.tell()
    world.tell()
    marks["holdfast.dev/denied-reason"] = "not today"
    world.tell()
    assert world.told.notes("Held") == [
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
def test_event_names_the_time_of_a_delay_with_other_holds(
    annotations: dict[str, str], gates: list[str], until: str
) -> None:
    world = World(held(annotations, gates=gates))
    (note,) = world.told.notes("Held")
    assert note.startswith(f"held {until}2026-03-01T13:00:00Z by holdfast.dev/delay")


@pytest.mark.parametrize("key", [APPROVAL, "holdfast.dev/window"])
def test_removed_annotation_is_no_warning(key: str) -> None:
    world = World(held({}, gates=[key]))
    world.settle()
    (event,) = world.told.events
    assert (event.reason, event.warning) == ("Released", False)
    assert f"annotation {key} was removed" in event.note


@pytest.mark.parametrize(
    ("marks", "told"),
    [
        pytest.param({}, True, id="waiting"),
        pytest.param({"holdfast.dev/denied-by": "lee"}, True, id="denied"),
        pytest.param({"holdfast.dev/approved-by": "jane"}, False, id="approved meanwhile"),
        pytest.param({"holdfast.dev/allowed": "approval"}, False, id="allowed meanwhile"),
    ],
)
def test_release_of_a_pod_without_its_approval(marks: dict[str, str], *, told: bool) -> None:
    world = waiting_for_approval()
    world.sync()
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    released = {RELEASED_ANNOTATION: "2026-03-01T12:00:05Z"}
    pod["metadata"]["annotations"].update({**marks, **released})
    world.tell()
    assert len(world.told.notes(events.RELEASED_EARLY)) == told
    assert world.told.notes(events.RELEASED) == []  # a leader may have released it, too


@pytest.mark.parametrize("after", [5.0, 20.0], ids=["early", "due"])
def test_release_by_a_user_has_an_event_without_a_name(after: float) -> None:
    world = one()
    world.move(after)
    pod = world.api.pods[KEY]
    pod["spec"]["schedulingGates"] = []
    pod["metadata"]["annotations"][RELEASED_ANNOTATION] = "2026-03-01T12:00:05Z"
    world.tell()
    note = (
        "released 9s before its due time at a user's request; the API server's audit log names "
        "the user"
    )
    assert world.told.notes(events.RELEASED) == ([note] if after < 15 else [])


def test_plugins_see_the_held_pods() -> None:
    world = World(*pods(a="10", b="20"), make_pod(name="free"), held({"delay": "x"}, name="bad"))
    seen: WaitingPods = world.controller
    due = seen.get(("default", "bad"))

    assert sorted(seen) == [("default", "a"), ("default", "b"), ("default", "bad")]
    assert Due(CREATED_MS + 20_000) == seen.get(("default", "b"))
    assert due is not None
    assert (due.at_ms, due.problem[:17]) == (CREATED_MS, "annotation delay:")
    assert seen.get(("default", "free")) is None


def test_held_pods_may_change_while_a_plugin_goes_through_them() -> None:
    world = World(*pods(a="10", b="20"))
    for key in world.controller:
        world.controller.on_delete(Pod.of(world.api.pods[key]))

    assert list(world.controller) == []


def test_pod_that_its_plugin_releases_goes_at_once() -> None:
    world = waiting_for(Holding(never))
    world.run(60)
    assert world.released == []

    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY) == []
    assert list(world.controller) == []


def test_plugin_releases_a_pod_with_as_many_planted_names_as_are_read() -> None:
    world = waiting_for(Holding(never))
    world.api.annotate(KEY, **{ALLOWED_ANNOTATION: ",".join(["planted"] * 100)})
    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY) == []


def test_plugins_are_measured_at_release() -> None:
    metrics = ControllerMetrics()
    plugins = make_delay(), Tightening(lambda _: success())
    decider = decider_of(*plugins, observe=metrics.observe_plugin)
    world = World(held({"delay": "15"}), decider=decider, metrics=metrics)
    world.run(15)

    labels = {"extension_point": "release", "status": "Success", "profile": "*"}
    execution = "plugin_execution_duration_seconds_count"
    assert world.metric(execution, plugin="tightening", **labels) == 1
    assert world.metric("framework_extension_point_duration_seconds_count", **labels) == 1


def test_pod_that_may_have_been_released_keeps_its_slot_if_the_api_server_is_busy() -> None:
    slots = Slots()
    world = waiting_for(slots)
    world.api.after("PATCH", raising(unreachable()))
    world.run(5)
    world.api.before("PATCH", raising(status_error(429)))
    world.run(60)

    assert (world.api.gates(KEY), list(world.controller)) == ([], [])
    assert slots.free == 0


def test_pod_that_another_plugin_holds_still_stays() -> None:
    world = waiting_for(Holding(never), HoldingToo(never))
    world.allow("holding")
    world.settle()
    assert world.api.gates(KEY)
    assert world.controller.get(KEY) == Due(NEVER_MS)

    world.allow("holding-too")
    world.settle()
    assert world.api.gates(KEY) == []


def test_pod_that_has_a_delay_as_well_stays_until_then() -> None:
    world = waiting_for(Holding(never), delay="1h")
    world.allow("holding")
    world.settle()
    assert Due(CREATED_MS + HOUR) == world.controller.get(KEY)

    world.run(3_599)
    assert world.api.gates(KEY)

    world.run(1)
    assert world.api.gates(KEY) == []


class Changing:
    """Asks for a recheck just after the answer, given for the second time, that a pod waits."""

    def __init__(self) -> None:
        self.asked = 0
        self.world: World | None = None

    def __call__(self, _pod: Pod, _now_ms: int) -> Permit:
        self.asked += 1
        if self.asked == 2:
            assert self.world is not None
            self.world.controller.recheck(KEY)
        return Wait() if self.asked <= 2 else Allow()


@pytest.mark.parametrize("how", ["watched", "listed", "attempted"])
def test_recheck_is_not_lost_while_the_plugin_is_asked(how: str) -> None:
    changing = Changing()
    world = changing.world = waiting_for(Holding(changing))
    if how == "watched":
        world.tell()
    elif how == "listed":
        world.sync()
    else:
        world.controller.recheck(KEY)
    world.settle()

    assert changing.asked == 3
    assert world.api.gates(KEY) == []


class Subscribing:
    """Rechecks the pod when it changes its mind, if its last answer was that the pod waits."""

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
def test_answer_that_is_overtaken_by_a_recheck_does_not_count(how: str) -> None:
    plugin = Subscribing()
    world = plugin.world = waiting_for(Holding(plugin), delay="20")

    def happen() -> None:
        plugin.change(allows=True)
        world.settle()  # the pod waits for its delay only

    plugin.after.append(happen)
    if how == "watched":
        world.tell()
    else:
        world.sync()
    assert world.api.gates(KEY)
    world.settle()
    world.run(20)

    assert world.api.gates(KEY) == []


def test_recheck_of_a_pod_that_is_being_added_is_not_lost() -> None:
    answers: list[Permit] = [Allow(), Wait()]

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        world.controller.recheck(KEY)
        return answers.pop()

    world = World(decider=decider_of(Holding(permit)))
    world.api.put_pod(held({}, gates=[Holding.gate]))
    world.tell()
    world.settle()

    assert world.api.gates(KEY) == []


def test_plugin_whose_permit_raises_keeps_its_pod_and_is_asked_again() -> None:
    broken = [True]

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        if broken[0]:
            raise KeyError("x")
        return Allow()

    world = waiting_for(Holding(permit))
    world.settle()
    (event,) = [one for one in world.told.events if one.reason == "ReleaseFailed"]
    assert "plugin 'holding' failed in permit: KeyError: 'x'" in event.note
    assert world.released == []

    broken[0] = False
    world.run(60)
    assert world.api.gates(KEY) == []


def test_event_says_what_a_pod_waits_for_whenever_that_changes() -> None:
    answers = [Wait(reason="4 of 4 starting"), Wait(reason="the job"), Wait(reason="the job")]
    world = waiting_for(Holding(lambda _pod, _now_ms: answers.pop()))
    for _ in range(2):
        world.controller.recheck(KEY)
        world.settle()

    assert world.told.notes("Held") == [
        "held by holdfast.dev/holding: the job",
        "held by holdfast.dev/holding: 4 of 4 starting",
    ]


def test_event_has_no_time_at_which_a_plugin_is_only_asked_again() -> None:
    wait = Wait(CREATED_MS + 300_000, "4 of 4 starting", open_ended=True)
    world = waiting_for(Holding(lambda _pod, _now_ms: wait))
    world.settle()

    assert world.told.notes("Held") == ["held by holdfast.dev/holding: 4 of 4 starting"]


def test_recheck_of_a_pod_that_is_not_held_has_no_effect() -> None:
    world = one()
    world.controller.recheck(("default", "none"))
    world.settle()

    assert list(world.controller) == [KEY]
    assert world.released == []


def test_recheck_of_a_pod_that_is_gone_is_not_kept() -> None:
    asked: list[int] = []

    def permit(_pod: Pod, now_ms: int) -> Permit:
        asked.append(now_ms)
        return Wait()

    world = World(decider=decider_of(Holding(permit)))
    world.controller.recheck(KEY)
    world.api.put_pod(held({}, gates=[Holding.gate]))
    world.tell()
    world.settle()

    assert len(asked) == 1


def test_pod_with_very_many_gates_and_large_annotations_is_released() -> None:
    gates = [f"holdfast.dev/{number}" for number in range(MAX_GATES)]
    world = World(held({"big": "x" * 250_000, "delay": "5"}, gates=[GATE, "a.io/b", *gates]))
    world.run(4)
    assert len(world.api.gates(KEY)) == MAX_GATES + 2
    world.run(2)

    assert world.api.gates(KEY) == ["a.io/b"]
    assert all(len(event.note) <= events.NOTE_LENGTH for event in world.told.events)


def test_plugin_tells_an_event() -> None:
    world = one()
    world.controller.record_event(read_pod(name="p"), "Mind", "this", warning=True)
    world.controller.record_event(read_pod(name="p"), "Mind", "that")

    assert world.told.events[-2:] == [
        events.Event(("default", "p"), UID, "Mind", "this", warning=True),
        events.Event(("default", "p"), UID, "Mind", "that", warning=False),
    ]


# --- with its threads --------------------------------------------------------------------------


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def known_clock(date: float) -> ServerClock:
    clock, local = ServerClock(), boot_time()
    clock.observe(sent=local, received=local, date=date)
    return clock


def running(api: FakeApi, second: datetime) -> ThreadGroup:
    """Give the threads of a controller whose clock is known."""
    clock = known_clock(second.timestamp())
    controller = ReleaseController(api, make_decider(), clock, ControllerMetrics())
    threads = ThreadGroup(on_failure=lambda: None)
    controller.add_to(threads)
    return threads


def test_the_end_waits_for_releases_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that hangs must not keep the Lease from the next controller."""
    monkeypatch.setattr(loops, "GRACE_SECONDS", 0.05)
    second = datetime.now(UTC).replace(microsecond=0)
    api = FakeApi(held({"delay": "5"}, created=second - timedelta(minutes=1)))
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert goes_on.wait(5)

    api.before("PATCH", hang)
    with running(api, second):
        assert hangs.wait(5)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert api.gates(KEY) == [GATE]
    goes_on.set()
    eventually(lambda: not api.gates(KEY))
    api.close()


def test_run_releases_what_is_due_and_what_becomes_due() -> None:
    second = datetime.now(UTC).replace(microsecond=0)
    overdue = [
        held({"delay": str(number)}, name=f"p{number}", created=second - timedelta(minutes=1))
        for number in range(20)
    ]
    api = FakeApi(*overdue, held({"delay": "1h"}, name="later", created=second))
    threads = running(api, second)
    with threads:
        eventually(lambda: all(not api.gates(("default", f"p{n}")) for n in range(20)))
        api.put_pod(held({"delay": "5"}, name="new", created=second - timedelta(seconds=10)))
        eventually(lambda: not api.gates(("default", "new")))
        api.annotate(("default", "later"), delay="0")
        eventually(lambda: not api.gates(("default", "later")))
    api.close()
    assert not threads.failed
    assert all(json.loads(body)[0]["path"] == "/metadata/uid" for body in api.bodies)


def test_release_without_a_thread_is_recorded_as_any_other() -> None:
    begun: list[Callable[[None], None]] = []

    def begin(_path: str, _body: bytes, *, timeout: float, on_end: Any) -> bool:
        assert timeout
        begun.append(on_end)
        return True

    world = World(held({"delay": "15", HELD_ANNOTATION: "delay=15s"}), begin=begin)
    world.move(15)
    world.turn()
    assert world.pool.jobs == []
    assert world.metric("held_pods") == 1

    begun[0](None)
    assert world.told.notes(events.RELEASED) == ["released 0.000 s after its time"]
    assert world.metric("releases_total", outcome="released") == 1
    assert world.metric("held_pods") == 0
    assert world.released == []
