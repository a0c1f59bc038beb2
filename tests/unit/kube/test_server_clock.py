from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.errors import UnreachableError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.server_clock import (
    CONFIRMED,
    DRIFT,
    TOLERANCE,
    Bounds,
    ClockStability,
    ServerClock,
)

DAY = 86_400.0
EPOCH = 1_772_366_400.0
ULP = 1e-6
"""An upper bound of the rounding error of such sums: a microsecond."""


@dataclass
class Server:
    """A server's clock relative to a local one: ahead by `offset`, faster by `rate`."""

    offset: float
    rate: float = 0.0

    def time(self, local: float) -> float:
        return float(Fraction(local) * (1 + Fraction(self.rate)) + Fraction(self.offset))

    def answer(
        self, clock: ServerClock, sent: float, request_delay: float, response_delay: float
    ) -> float:
        """Answer a request with these latencies in seconds; return when the response arrives."""
        date = float(int(self.time(sent + request_delay)))
        clock.observe(sent=sent, received=sent + request_delay + response_delay, date=date)
        return sent + request_delay + response_delay


def follow(
    clock: ServerClock, server: Server, local: float, *, turns: int, latency: float
) -> float:
    for _ in range(turns):
        for probe in clock.next_probes(local):
            local = server.answer(clock, max(probe, local), latency, latency)
    return local


def assert_not_ahead(clock: ServerClock, server: Server, local: float) -> None:
    bound = clock.lower_bound(local)
    assert bound is not None
    assert bound <= server.time(local) + ULP


def assert_narrow(clock: ServerClock, local: float, offset: float) -> None:
    bounds = clock.bounds(local)
    assert bounds is not None
    assert bounds.width < 0.01
    assert bounds.low - ULP <= offset <= bounds.high + ULP


offsets = st.floats(EPOCH - 400 * DAY, EPOCH + 400 * DAY)
rates = st.floats(-DRIFT * 0.99, DRIFT * 0.99)
requests = st.lists(
    st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 3.0), st.floats(0.0, 3.0)),
    min_size=1,
    max_size=12,
)


@given(offset=offsets, rate=rates, requests=requests, wait=st.floats(0.0, 3_600.0))
def test_lower_bound_is_never_ahead_of_the_server(
    offset: float, rate: float, requests: list[tuple[float, float, float]], wait: float
) -> None:
    server, clock, local = Server(offset, rate), ServerClock(), 5_000.0
    for pause, request_delay, response_delay in requests:
        local = server.answer(clock, local + pause, request_delay, response_delay)
        assert_not_ahead(clock, server, local)

    assert_not_ahead(clock, server, local + wait)


@given(offset=offsets, rate=rates, requests=requests, latency=st.floats(0.0, 0.002))
def test_lower_bound_is_never_ahead_after_probes(
    offset: float, rate: float, requests: list[tuple[float, float, float]], latency: float
) -> None:
    server, clock, local = Server(offset, rate), ServerClock(), 5_000.0
    for pause, request_delay, response_delay in requests[:3]:
        local = server.answer(clock, local + pause, request_delay, response_delay)
        local = follow(clock, server, local, turns=1, latency=latency)
        assert_not_ahead(clock, server, local)


@given(offset=offsets, latency=st.floats(0.0, 0.001))
def test_three_turns_narrow_the_bounds_below_ten_milliseconds(
    offset: float, latency: float
) -> None:
    server, clock = Server(offset), ServerClock()
    # The first turn is the first response.
    local = follow(clock, server, 5_000.0, turns=4, latency=latency)

    assert_narrow(clock, local, offset)


def test_first_response_bounds_the_unknown_clock_by_a_second_plus_latency() -> None:
    clock = ServerClock()
    assert clock.bounds(3.0) is None
    assert clock.lower_bound(3.0) is None
    assert clock.next_probes(3.0) == [3.0]

    clock.observe(sent=10.0, received=10.5, date=1_000.0)

    assert Bounds(989.5, 991.0) == clock.bounds(10.5)
    assert clock.bounds(9.0) == clock.bounds(10.5)  # a past time


def test_bounds_widen_by_the_drift_without_responses() -> None:
    clock = ServerClock()
    clock.observe(sent=0.0, received=0.0, date=1_000.0)

    assert Bounds(1_000.0 - 100 * DRIFT, 1_001.0 + 100 * DRIFT) == clock.bounds(100.0)
    assert pytest.approx(1_100.0 - 100 * DRIFT) == clock.lower_bound(100.0)


@pytest.mark.parametrize(
    ("width", "count"), [(1.0, 9), (0.06, 9), (0.04, 4)], ids=["wide", "less wide", "drifted"]
)
def test_probes_lie_ahead_and_around_the_next_second(width: float, count: int) -> None:
    clock = ServerClock()
    clock.observe(sent=100.0, received=100.0, date=1_000.0)  # [900, 901)
    clock.observe(sent=101.0 - width, received=101.0 - width, date=1_000.0)  # [900, 900 + width)
    probes = clock.next_probes(101.0)

    assert count == len(probes)
    assert probes == sorted(probes)
    assert all(101.0 < probe < 102.01 + width for probe in probes)


# --- the server's clock is set -----------------------------------------------------------------

steps = st.floats(1.2, 3_600.0)


@given(offset=offsets, step=steps, latency=st.floats(0.0, 0.05))
def test_large_backward_step_is_followed_at_the_first_response(
    offset: float, step: float, latency: float
) -> None:
    clock = ServerClock()
    local = follow(clock, Server(offset), 5_000.0, turns=4, latency=0.0005)
    stepped_server = Server(offset - step)
    local = stepped_server.answer(clock, local + 0.1, latency, latency)

    assert_not_ahead(clock, stepped_server, local)


@given(offset=offsets, step=st.floats(0.02, 1.2))
def test_small_backward_step_is_followed_by_the_next_probes(offset: float, step: float) -> None:
    clock = ServerClock()
    local = follow(clock, Server(offset), 5_000.0, turns=4, latency=0.0005)
    stepped_server = Server(offset - step)
    # by then drift has made the bounds worth a probe
    local = follow(clock, stepped_server, local + 20.0, turns=2, latency=0.0005)

    assert_not_ahead(clock, stepped_server, local)


@given(offset=offsets, step=steps, order=st.lists(st.booleans(), min_size=1, max_size=60))
def test_second_server_that_is_ahead_is_ignored(
    offset: float, step: float, order: list[bool]
) -> None:
    clock, server, server_ahead = ServerClock(), Server(offset), Server(offset + step)
    local = follow(clock, server, 5_000.0, turns=4, latency=0.0005)
    confirmed_at = local
    for is_ahead in order:
        if is_ahead and local - confirmed_at < CONFIRMED - 2:
            local = server_ahead.answer(clock, local + 1.0, 0.0005, 0.0005)
        else:
            local = confirmed_at = server.answer(clock, local + 1.0, 0.0005, 0.0005)
        assert_not_ahead(clock, server, local)


@given(offset=offsets, step=steps)
def test_forward_step_is_followed_and_narrowed_again(offset: float, step: float) -> None:
    clock = ServerClock()
    local = follow(clock, Server(offset), 5_000.0, turns=4, latency=0.0005)
    stepped_server = Server(offset + step)
    for _ in range(int(CONFIRMED) + 2):
        local = stepped_server.answer(clock, local + 1.0, 0.0005, 0.0005)

    local = follow(clock, stepped_server, local, turns=3, latency=0.0005)
    assert_narrow(clock, local, offset + step)


def test_clock_is_stable_since_it_was_last_set() -> None:
    stability = ClockStability()
    assert stability.seconds(5.0) == 0.0
    stability.observe(1_000.0, 10.0)
    assert stability.seconds(10.0) == 0.0
    stability.observe(1_100.0, 110.0)
    assert stability.seconds(120.0) == 110.0
    for time, since in ((1_200.0 - TOLERANCE - 1, 210.0), (1_310.0, 320.0)):
        stability.observe(time, since)
        assert stability.seconds(since + 1) == 1.0


def test_drifting_clock_is_stable() -> None:
    stability = ClockStability()
    for second in range(0, 10_000, 10):
        stability.observe(1_000.0 + 1.05 * second, float(second))
    assert stability.seconds(10_000.0) == 10_000.0


def test_time_requires_a_date_header() -> None:
    problem = "^the API server's responses have no Date header; connect without a proxy$"
    with pytest.raises(UnreachableError, match=problem):
        listing.CommandClock().now_ms()
