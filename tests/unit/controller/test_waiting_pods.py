from collections.abc import Callable

import pytest

from holdfast.webhook.framework.handle import WaitingPods
from holdfast.webhook.framework.plugin import Allow, Permit, Wait, success
from holdfast.webhook.kube import events
from holdfast.webhook.model.annotations import ALLOWED_ANNOTATION, NEVER_MS, Due
from holdfast.webhook.model.limits import MAX_GATES
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.builders import CREATED_MS, GATE, HOUR, held, make_delay, make_pod
from tests.support.fakes import raising, status_error, unreachable
from tests.support.scripted import Holding, HoldingToo, Slots, Tightening, decider_of, never
from tests.unit.controller.world import KEY, World, pods, world_held_by


def test_plugins_see_the_held_pods() -> None:
    world = World(*pods(a="10", b="20"), make_pod(name="free"), held({"delay": "x"}, name="bad"))
    waiting_pods: WaitingPods = world.controller
    due = waiting_pods.get(("default", "bad"))

    assert sorted(waiting_pods) == [("default", "a"), ("default", "b"), ("default", "bad")]
    assert Due(CREATED_MS + 20_000) == waiting_pods.get(("default", "b"))
    assert due is not None
    assert (due.at_ms, due.problem[:17]) == (CREATED_MS, "annotation delay:")
    assert waiting_pods.get(("default", "free")) is None


def test_held_pods_may_change_during_iteration() -> None:
    world = World(*pods(a="10", b="20"))
    for key in world.controller:
        world.controller.on_delete(Pod.of(world.api.pods[key]))

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


@pytest.mark.parametrize("how", ["watched", "listed", "attempted"])
def test_recheck_during_permit_is_not_lost(how: str) -> None:
    times: list[int] = []

    def permit(_pod: Pod, now_ms: int) -> Permit:
        times.append(now_ms)
        if len(times) == 2:
            world.controller.recheck(KEY)  # this call still returns Wait
        return Wait() if len(times) <= 2 else Allow()

    world = world_held_by(Holding(permit))
    if how == "watched":
        world.deliver()
    elif how == "listed":
        world.sync()
    else:
        world.controller.recheck(KEY)
    world.settle()

    assert len(times) == 3
    assert world.api.gates(KEY) == []


@pytest.mark.parametrize("how", ["watched", "listed"])
def test_permit_result_older_than_recheck_is_discarded(how: str) -> None:
    results: list[Permit] = [Wait()]
    during: list[Callable[[], None]] = []

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        result = results[-1]
        if during:
            during.pop()()
        return result

    world = world_held_by(Holding(permit), delay="20")

    def allow_and_settle() -> None:
        results.append(Allow())
        world.controller.recheck(KEY)
        world.settle()  # only the delay holds the pod now

    during.append(allow_and_settle)
    if how == "watched":
        world.deliver()
    else:
        world.sync()
    assert world.api.gates(KEY)
    world.settle()
    world.run(20)

    assert world.api.gates(KEY) == []


def test_recheck_while_pod_is_added_is_not_lost() -> None:
    results: list[Permit] = [Allow(), Wait()]

    def permit(_pod: Pod, _now_ms: int) -> Permit:
        world.controller.recheck(KEY)
        return results.pop()

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
    (note,) = world.recorder.notes("ReleaseFailed")
    assert "plugin 'holding' failed in permit: KeyError: 'x'" in note
    assert world.released == []

    broken[0] = False
    world.run(60)
    assert world.api.gates(KEY) == []


def test_recheck_of_unknown_pod_is_not_remembered() -> None:
    times: list[int] = []

    def permit(_pod: Pod, now_ms: int) -> Permit:
        times.append(now_ms)
        return Wait()

    world = World(decider=decider_of(Holding(permit)))
    world.controller.recheck(KEY)
    world.api.put_pod(held({}, gates=[Holding.gate]))
    world.deliver()
    world.settle()

    assert len(times) == 1


def test_pod_with_many_gates_and_large_annotations_is_released() -> None:
    gates = [f"holdfast.dev/{number}" for number in range(MAX_GATES)]
    world = World(held({"big": "x" * 250_000, "delay": "5"}, gates=[GATE, "a.io/b", *gates]))
    world.run(4)
    assert len(world.api.gates(KEY)) == MAX_GATES + 2
    world.run(2)

    assert world.api.gates(KEY) == ["a.io/b"]
    assert world.recorder.events
    assert all(len(event.note) <= events.NOTE_LENGTH for event in world.recorder.events)
