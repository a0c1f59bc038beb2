import threading

import pytest

from holdfast.webhook.controller import history
from holdfast.webhook.controller.history import Released, ReleaseHistory
from holdfast.webhook.kube import events
from holdfast.webhook.kube.events import Event, EventSink


class Taken(EventSink):
    full = False

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ran = False

    def record(self, event: Event) -> None:
        self.events.append(event)

    def run(self, stop: threading.Event) -> None:
        self.ran = stop.is_set()


def event(name: str, reason: str = events.RELEASED) -> Event:
    return Event(("a", name), "u", reason, f"{name} released")


def test_events_are_passed_on_and_releases_remembered() -> None:
    taken = Taken()
    releases = ReleaseHistory(taken, now_ms=lambda: 7)
    passed = [event("one"), event("two", events.HELD), event("three")]
    for each in passed:
        releases.record(each)
    stop = threading.Event()
    stop.set()
    releases.run(stop)

    assert taken.events == passed
    assert taken.ran
    assert releases.released() == [
        Released(("a", "one"), 7, "one released"),
        Released(("a", "three"), 7, "three released"),
    ]


@pytest.mark.parametrize("full", [False, True])
def test_it_is_full_when_those_it_passes_events_to_are(full: bool) -> None:
    taken = Taken()
    taken.full = full
    assert ReleaseHistory(taken, now_ms=lambda: 7).full == full


def test_only_the_last_are_remembered() -> None:
    releases = ReleaseHistory(Taken(), now_ms=lambda: 7)
    for number in range(history.LENGTH + 5):
        releases.record(event(str(number)))
    released = releases.released()
    assert len(released) == history.LENGTH
    assert released[0].pod == ("a", "5")
