import threading

import pytest

from holdfast.webhook.kube import clock_sync
from holdfast.webhook.kube.clock_sync import CREATE_PATH, ClockSynchronizer
from holdfast.webhook.kube.server_clock import ServerClock
from tests.support.fakes import FakeApi, raising, unreachable

EPOCH = 1_772_366_400.0


class Waiting(threading.Event):
    """An event whose waits advance a fake clock, and which is set after `waits` of them."""

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
    """A server whose `Date` is `ahead` of its clock, or whose clock jumps by `step`, at `since`."""

    def __init__(
        self,
        *,
        waits: int,
        answers: bool = True,
        ahead: float = 0.0,
        step: float = 0.0,
        since: float = 0.0,
    ) -> None:
        self.stop = Waiting(waits)
        self.clock = ServerClock(checks=True)
        self.api = FakeApi()
        self.narrowed = 0
        self._ahead, self._step, self._since = ahead, step, since
        self.max_ahead = 0.0
        """The most by which the lower bound was ahead of the server's clock."""
        if answers:
            self.api.created = self.time
            for method in ("GET", "POST"):
                self.api.after(method, *[self._answer] * 1_000)

    def time(self) -> float:
        return EPOCH + 0.3 + self.stop.now + self._step * (self.stop.now >= self._since)

    def _answer(self) -> None:
        now = self.stop.now
        date = float(int(self.time() + self._ahead * (now >= self._since)))
        self.clock.observe(sent=now, received=now, date=date)
        lower_bound = self.clock.lower_bound(now)
        self.max_ahead = max(self.max_ahead, (lower_bound or 0) - self.time())

    def _narrow(self) -> None:
        self.narrowed += 1

    def run(self) -> None:
        ClockSynchronizer(
            self.api, self.clock, on_narrowed=self._narrow, now=lambda: self.stop.now
        ).run(self.stop)


def test_probes_until_the_clock_is_known_then_rests() -> None:
    world = World(waits=40)
    world.run()
    bounds = world.clock.bounds(world.stop.now)

    assert bounds is not None
    assert bounds.width < 0.01
    assert clock_sync.IDLE_SECONDS in world.stop.waits
    assert {("GET", "/version"), ("POST", CREATE_PATH)} == set(world.api.requests)
    assert world.narrowed >= 3


def test_idle_clock_costs_two_requests_a_second() -> None:
    world = World(waits=400)
    world.run()

    assert len(world.api.requests) < 2.2 * (world.stop.now - 100.0)


@pytest.mark.parametrize(
    ("ahead", "step", "since", "tolerance"),
    [
        pytest.param(0.0, 0.0, 0.0, 0.0, id="correct"),
        pytest.param(30.0, 0.0, 0.0, 0.0, id="ahead"),
        pytest.param(0.6, 0.0, 0.0, 0.6, id="less than a second ahead"),
        pytest.param(30.0, 0.0, 200.0, 0.0, id="ahead later"),
        pytest.param(0.0, 30.0, 200.0, 0.0, id="clock set forward"),
    ],
)
def test_rewritten_date_releases_nothing_early(
    ahead: float, step: float, since: float, tolerance: float
) -> None:
    world = World(waits=400, ahead=ahead, step=step, since=since)
    world.run()
    bounds = world.clock.bounds(world.stop.now)

    assert bounds is not None
    assert bounds.width < 0.02
    assert bounds.low <= EPOCH + 0.3 + step <= bounds.high
    assert world.max_ahead <= tolerance
    assert world.clock.trusts_date == (not ahead)


def test_date_is_trusted_if_no_object_can_be_created(caplog: pytest.LogCaptureFixture) -> None:
    world = World(waits=400, step=30.0, since=200.0)
    world.api.created = None
    world.run()
    bounds = world.clock.bounds(world.stop.now)

    assert bounds is not None
    assert bounds.low <= EPOCH + 30.3 <= bounds.high
    assert caplog.text.count("cannot check the Date") == 1
    assert world.api.count("POST") < world.stop.now / 50


def test_unreachable_server_is_probed_again_after_a_pause() -> None:
    world = World(waits=3)
    for method in ("GET", "POST"):
        world.api.before(method, *[raising(unreachable())] * 3)
    world.run()

    assert world.stop.waits[:3] == [1.0, 1.0, 1.0]
    assert world.clock.bounds(world.stop.now) is not None


def test_responses_without_a_date_do_not_cause_a_busy_loop() -> None:
    world = World(waits=5, answers=False)
    world.run()

    assert world.stop.waits == [1.0] * 6
    assert world.api.count("GET") == 6


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_stop_takes_effect_between_two_probes(waits: int) -> None:
    world = World(waits=waits)
    world.run()

    assert waits + 1 == len(world.api.requests)
