from __future__ import annotations

import threading

import pytest

from webhook import chronicle, events
from webhook.chronicle import Chronicle
from webhook.events import Event
from webhook.status_page import Released


class Taken:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ran = False
        self.full = False

    def record(self, event: Event) -> None:
        self.events.append(event)

    def run(self, stop: threading.Event) -> None:
        self.ran = stop.is_set()


def event(name: str, reason: str = events.RELEASED) -> Event:
    return Event(("a", name), "u", reason, f"{name} told")


def test_events_are_passed_on_and_releases_remembered() -> None:
    taken = Taken()
    told = Chronicle(taken, now_ms=lambda: 7)
    passed = [event("one"), event("two", events.HELD), event("three")]
    for each in passed:
        told.record(each)
    stop = threading.Event()
    stop.set()
    told.run(stop)

    assert taken.events == passed
    assert taken.ran
    assert told.released() == [
        Released(("a", "one"), 7, "one told"),
        Released(("a", "three"), 7, "three told"),
    ]


@pytest.mark.parametrize("full", [False, True])
def test_it_is_full_when_those_it_passes_events_to_are(full: bool) -> None:
    taken = Taken()
    taken.full = full
    assert Chronicle(taken, now_ms=lambda: 7).full == full


def test_only_the_last_are_remembered() -> None:
    told = Chronicle(Taken(), now_ms=lambda: 7)
    for number in range(chronicle.LENGTH + 5):
        told.record(event(str(number)))
    released = told.released()
    assert len(released) == chronicle.LENGTH
    assert released[0].pod == ("a", "5")
