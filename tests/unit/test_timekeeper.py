from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.fakes import FakeApi, raising, unreachable
from webhook import timekeeper
from webhook.clock import ServerClock
from webhook.timekeeper import Timekeeper

EPOCH = 1_772_366_400.0


class Waiting(threading.Event):
    """An event whose waits pass at once, on a clock of its own, and which is set after some."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.now = 100.0
        self.waits: list[float] = []
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        self._left -= 1
        if self._left < 0:
            self.set()
        return self.is_set()


class World:
    def __init__(self, *, waits: int, answers: bool = True) -> None:
        self.stop = Waiting(waits)
        self.clock = ServerClock()
        self.api = FakeApi()
        self.narrowed = 0
        if answers:
            self.api.after("GET", *[self._answer] * 1_000)

    def _answer(self) -> None:
        date = float(int(EPOCH + 0.3 + self.stop.now))
        self.clock.observe(sent=self.stop.now, received=self.stop.now, date=date)

    def _narrow(self) -> None:
        self.narrowed += 1

    def run(self) -> None:
        Timekeeper(self.api, self.clock, on_narrowed=self._narrow, now=lambda: self.stop.now).run(
            self.stop
        )


def test_probes_until_the_clock_is_known_then_rests() -> None:
    world = World(waits=40)
    world.run()
    bounds = world.clock.bounds(world.stop.now)

    assert bounds is not None
    assert bounds.width < 0.01
    assert timekeeper.IDLE_SECONDS in world.stop.waits
    assert {("GET", "/version")} == set(world.api.requests)
    assert world.narrowed >= 3


def test_clock_at_rest_costs_less_than_a_request_a_second() -> None:
    world = World(waits=400)
    world.run()

    assert len(world.api.requests) < world.stop.now - 100.0


def break_off() -> Callable[[], None]:
    return raising(unreachable())


def test_unreachable_server_is_asked_again_after_a_while() -> None:
    world = World(waits=3)
    world.api.before("GET", *[break_off()] * 3)
    world.run()

    assert world.stop.waits[:3] == [1.0, 1.0, 1.0]
    assert world.clock.bounds(world.stop.now) is not None


def test_answers_without_a_date_make_no_busy_loop() -> None:
    world = World(waits=5, answers=False)
    world.run()

    assert world.stop.waits == [1.0] * 6
    assert len(world.api.requests) == 6


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_stop_is_heard_between_two_probes(waits: int) -> None:
    world = World(waits=waits)
    world.run()

    assert waits + 1 == len(world.api.requests)
