import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from holdfast.webhook.kube import events
from holdfast.webhook.kube.events import Event, EventRecorder, Released, event_object
from tests.support.builders import CREATED_MS
from tests.support.fakes import FakeApi, raising, status_error, unreachable

EVENT = Event(("default", "web-0"), "u-1", events.RELEASED, "released 0.003 s after 12:00")


class Posts(FakeApi):
    def request(self, method: str, path: str, **fields: Any) -> bytes:
        self.requests.append((method, path))
        if self._before[method]:
            self._before[method].popleft()()
        self.bodies.append(fields["body"])
        return b"{}"


class World:
    def __init__(self) -> None:
        self.api = Posts()
        self.dropped = 0
        self.now = 0.0
        self.recorder = EventRecorder(
            self.api,
            now_ms=lambda: CREATED_MS,
            on_dropped=self._drop,
            now=lambda: self.now,
            instance="pod-1",
        )

    def _drop(self) -> None:
        self.dropped += 1

    def publish(self) -> None:
        stop = threading.Event()
        stop.set()
        self.recorder.run(stop)


def test_event_matches_the_events_v1_format() -> None:
    world = World()
    world.recorder.record(EVENT)
    world.publish()

    assert world.api.requests == [("POST", "/apis/events.k8s.io/v1/namespaces/default/events")]
    event = json.loads(world.api.bodies[0])
    name = event["metadata"].pop("name")
    assert name.startswith("web-0.")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "eventTime": "2026-03-01T12:00:00.000000+00:00",
        "reportingController": "holdfast.dev/controller",
        "reportingInstance": "pod-1",
        "action": "Release",
        "reason": "Released",
        "type": "Normal",
        "note": "released 0.003 s after 12:00",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "web-0",
            "uid": "u-1",
        },
    }


def metadata_of(**changed: Any) -> Any:
    fields: dict[str, Any] = {
        "regarding": ("default", "web-0"),
        "uid": "u-1",
        "reason": events.HELD,
        "note": "held",
    }
    event = Event(**(fields | changed))
    return event_object(event, now_ms=CREATED_MS, instance="x")["metadata"]


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"warning": True}, True),
        ({"uid": "u-2"}, False),
        ({"reason": "Released"}, False),
        ({"note": "held longer"}, False),
    ],
)
def test_event_name_depends_on_uid_reason_and_note(
    changed: dict[str, Any], *, is_same: bool
) -> None:
    assert (metadata_of() == metadata_of(**changed)) is is_same


def test_name_and_note_fit_their_limits_and_the_note_is_cut_between_characters() -> None:
    assert len(metadata_of(regarding=("default", "a" * 253))["name"]) <= 253
    note = event_object(
        Event(("a", "b"), "u", events.HELD, "x" + "€" * 500, warning=True), now_ms=0, instance="x"
    )["note"]
    assert isinstance(note, str)
    assert 997 < len(note.encode()) <= 1_000
    assert set("x€") == set(note)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(KeyError("x"), "'x'", id="exception"),
        pytest.param("caf\ud800", "caf?", id="lone surrogate"),
    ],
)
def test_invalid_text_from_a_plugin_is_published(text: Any, expected: str) -> None:
    world = World()
    world.recorder.record(replace(EVENT, note=text))
    world.recorder.record(replace(EVENT, reason=text))
    world.publish()

    first, second = map(json.loads, world.api.bodies)
    assert (first["note"], second["reason"]) == (expected, expected)


@pytest.mark.parametrize(
    ("error", "dropped"),
    [(status_error(409), 0), (status_error(403), 0), (unreachable(), 1)],
    ids=["already exists", "forbidden", "unreachable"],
)
def test_failed_post_does_not_stop_the_recorder(error: Exception, dropped: int) -> None:
    world = World()
    world.api.before("POST", raising(error))
    world.recorder.record(EVENT)
    world.recorder.record(EVENT)
    world.publish()

    assert (2, 1, dropped) == (len(world.api.requests), len(world.api.bodies), world.dropped)


def test_recorder_drops_and_counts_events_once_it_is_full() -> None:
    world = World()
    while not world.recorder.full:
        assert world.dropped == 0
        world.recorder.record(EVENT)
    for _ in range(10):
        world.recorder.record(EVENT)
    assert world.dropped == 10


def test_warnings_come_first_and_have_reserved_room() -> None:
    world = World()
    for _ in range(500):
        world.recorder.record(EVENT)
    for number in range(110):
        world.recorder.record(replace(EVENT, note=f"warning {number}", warning=True))
    assert world.dropped == 10
    world.publish()

    notes = [json.loads(body)["note"] for body in world.api.bodies]
    assert notes[:100] == [f"warning {number}" for number in range(100)]
    assert len(notes) == 600 - 100  # normal events do not get what the warnings used
    assert world.dropped == 10 + 100


def test_warnings_are_published_while_other_events_exceed_the_rate() -> None:
    world = World()
    for second in range(60):
        world.now = second
        for _ in range(100):
            world.recorder.record(EVENT)
        world.recorder.record(replace(EVENT, note=f"at {second}", warning=True))
        world.publish()

    notes = [json.loads(body)["note"] for body in world.api.bodies]
    assert [note for note in notes if note.startswith("at")] == [
        f"at {number}" for number in range(60)
    ]
    assert len(notes) == 500 + 59 * 20


def test_recent_releases_are_kept() -> None:
    recorder = World().recorder
    recorder.record(replace(EVENT, reason=events.HELD))
    for number in range(events.RELEASES + 5):
        recorder.record(replace(EVENT, note=str(number)))
    notes = [str(number) for number in range(5, events.RELEASES + 5)]
    assert [event.note for event in recorder.released()] == notes
    assert recorder.released()[0] == Released(EVENT.regarding, CREATED_MS, "5")


@pytest.mark.parametrize(
    ("busy_until", "posted_at"),
    [
        pytest.param(0.0, 0.0, id="idle"),
        pytest.param(0.35, 0.35, id="saturated briefly"),
        pytest.param(60.0, events.YIELD_SECONDS, id="saturated for long"),
    ],
)
def test_event_yields_to_releases(busy_until: float, posted_at: float) -> None:
    class AdvancingEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            world.now += timeout or 0.0
            return self.is_set()

    world, stop = World(), AdvancingEvent()
    world.recorder.saturated = lambda: world.now < busy_until
    world.api.before("POST", stop.set)
    world.recorder.record(EVENT)
    world.recorder.run(stop)

    assert len(world.api.bodies) == 1
    assert world.now == pytest.approx(posted_at, abs=events.POLL_SECONDS)
