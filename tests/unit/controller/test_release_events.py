from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Result, Wait, success
from holdfast.webhook.kube import events
from holdfast.webhook.model.annotations import HELD_ANNOTATION, RELEASED_ANNOTATION
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, GATE, UID, held, make_delay, read_pod
from tests.support.fakes import raising, status_error
from tests.support.scripted import Holding, Tightening, decider_of, never
from tests.unit.controller.world import KEY, World, pods, single_pod_world, world_held_by

APPROVAL = "holdfast.dev/approval"


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
    *_, note = world.recorder.notes("Held")
    assert note == "held until 2026-03-01T13:00:00Z by holdfast.dev/delay"
    assert world.metric("watch_restarts_total", reason="expired") == 1
    assert world_held_by(Holding(never)).recorder.notes("Held") == ["held by holdfast.dev/holding"]


def test_event_reports_that_restored_pod_waits_again() -> None:
    world = World(held({"delay": "15"}, labels={"velero.io/restore-name": "monday"}))
    (note,) = world.recorder.notes("Held")
    assert note == (
        "held until 2026-03-01T12:00:15Z by holdfast.dev/delay: restored from a backup, so it "
        "waits again; to release it now, run: holdfast release web-0"
    )


def released(time: str) -> dict[str, Any]:
    return {"annotations": {RELEASED_ANNOTATION: time}}


@pytest.mark.parametrize("listed", [False, True], ids=["watched", "listed"])
@pytest.mark.parametrize(
    ("changed", "after", "early"),
    [
        pytest.param({}, 5.0, True, id="early"),
        pytest.param(released("2026-02-28T12:00:00Z"), 5.0, True, id="copied"),
        pytest.param(released("2026-03-01T12:00:05Z"), 5.0, False, id="by Holdfast"),
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
    advice = "by someone else; the API server's audit log names the user"
    notes = [f"gate removed 9s before its due time {advice}"] if early else []
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

    _, event = world.recorder.events
    assert (event.reason, event.warning) == ("ReleaseFailed", True)
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

    (event,) = [candidate for candidate in world.recorder.events if candidate.reason == "Released"]
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


def test_release_event_names_the_approver() -> None:
    marks = {APPROVAL: "release 2.4", "holdfast.dev/approved-by": "jane"}
    world = World(held(marks, gates=[APPROVAL]))
    world.run(5)
    assert world.recorder.notes("Released") == ["released: approved by jane"]


def test_release_event_omits_approver_without_approval_annotation() -> None:
    world = World(held({"holdfast.dev/approved-by": "boss"}, gates=[APPROVAL]))
    world.run(5)
    (note,) = world.recorder.notes("Released")
    assert "boss" not in note


def test_held_event_names_plugin_once_and_follows_reason() -> None:
    world = World(held({APPROVAL: "x"}, gates=[APPROVAL]))
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
    world = World(held({APPROVAL: "x"}, gates=[APPROVAL]))
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


def test_plugin_records_an_event() -> None:
    world = single_pod_world()
    world.controller.record_event(read_pod(name="p"), "Mind", "this", warning=True)
    world.controller.record_event(read_pod(name="p"), "Mind", "that")

    assert world.recorder.events[-2:] == [
        events.Event(("default", "p"), UID, "Mind", "this", warning=True),
        events.Event(("default", "p"), UID, "Mind", "that", warning=False),
    ]
