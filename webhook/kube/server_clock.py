"""Estimate the API server's clock from the `Date` of its responses.

`Date` has whole seconds, yet each response bounds the server's clock. A response with `Date` D, to
a request sent at s and received at r (by a local clock that neither steps nor sleeps), was written
between s and r, while the server's clock was in [D, D + 1 s). So

    D - r  <=  server's clock - local clock  <  D + 1 s - s

Each response narrows the bounds; requests timed around the start of a second narrow them to
milliseconds. Releases use the lower bound, so an uncertain clock makes them late, never early.

A proxy may rewrite `Date`. The API server itself writes the creationTimestamp of a new object,
which bounds its clock in the same way. Once the two disagree, only creationTimestamps count.
Pure: no I/O, no clock. Times are seconds as floats, local time first.
"""

import threading
from dataclasses import dataclass

DRIFT = 500e-6
"""Maximum drift of two clocks, in seconds per second: the fastest that NTP slews a clock."""

CONFIRMED = 10.0
"""Seconds for which every response has to contradict the bounds before the clock counts as set
forward. If one of several API servers has a fast clock, it must not cause a release."""

PROBES_PER_TURN = 8
"""Number of probes spread over the time in which the server's next second may start. Each round
narrows the bounds ninefold; three rounds turn a second into milliseconds."""

FEW_PROBES, FEW_PROBES_WIDTH = 3, 0.05
"""Bounds up to this width (seconds) have only drifted, and need only a few probes."""

PAST_TURN = 0.002
"""Delay of the last probe, in seconds, after the latest time at which the second may start. If it
still sees the old second, the clock was set back by less than a second. The delay exceeds the drift
until then."""

CHECK_INTERVAL = 60.0
"""Seconds between comparisons of `Date` with a creationTimestamp."""

NARROW_ENOUGH = 0.003
"""Uncertainty, in seconds, that does not justify a probe. Releases are late by half of it. Drift
reaches it in two seconds, so an idle clock costs two small requests per second."""


TOLERANCE = 60.0
"""Seconds by which a clock may shift between two observations without counting as set: the clocks
of several API servers differ by less."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Minimum and maximum seconds by which the server's clock is ahead of the local one."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Uncertainty of the estimate, in seconds."""
        return self.high - self.low


class ServerClock:
    """An estimate of one API server's clock. Safe to share between threads."""

    def __init__(self, *, checks: bool = False) -> None:
        """Create a clock. With `checks`, its bounds are unknown until `Date` has been checked."""
        self._lock = threading.Lock()
        self._bounds: Bounds | None = None
        self._as_of = 0.0
        self._ahead_since: float | None = None
        """Start of an unbroken series of responses from a clock ahead of the bounds."""
        self._ahead = Bounds(0.0, 0.0)
        """Bounds from the last response of that series."""
        self._check_at = float("-inf") if checks else float("inf")
        self._checkable = checks
        self.trusts_date = True
        """False once a creationTimestamp has contradicted `Date`."""

    def observe(self, *, sent: float, received: float, date: float) -> None:
        """Update the bounds from a response's `Date` (epoch seconds) and the local times around it.

        If a response contradicts the bounds, the clock was set, or another server responded. A
        response from a clock that is behind replaces the bounds at once. A response from a clock
        that is ahead replaces them only if no other response has agreed with the bounds for
        CONFIRMED seconds, and, with checks, if a creationTimestamp agrees.
        """
        with self._lock:
            if self.trusts_date:
                self._take(sent, received, date, may_advance=not self._checkable)

    def observe_created(self, *, sent: float, received: float, created: float) -> None:
        """Update the bounds from the creationTimestamp (epoch seconds) of a created object."""
        with self._lock:
            self._check_at, self._checkable = received + CHECK_INTERVAL, True
            if self.trusts_date:
                bounds, high = self._drifted(received), created + 1.0 - sent
                is_ahead = self._ahead_since is not None and high <= self._ahead.low
                if is_ahead or (bounds is not None and high <= bounds.low):
                    self.trusts_date = False
            self._take(sent, received, created, may_advance=True)

    def skip_check(self, local: float) -> None:
        """Trust `Date` until the next check, because no creationTimestamp could be read."""
        with self._lock:
            self._check_at, self._checkable = local + CHECK_INTERVAL, False

    def wants_check(self, local: float) -> bool:
        """Return whether to observe a creationTimestamp next."""
        with self._lock:
            ahead_since = self._ahead_since
            is_confirmed = ahead_since is not None and local - ahead_since >= CONFIRMED
            return local >= self._check_at or (self._checkable and is_confirmed)

    def _take(self, sent: float, received: float, second: float, *, may_advance: bool) -> None:
        """Narrow or replace the bounds with a time that the server wrote between two local ones."""
        observation = Bounds(second - received, second + 1.0 - sent)
        bounds = self._drifted(received)
        # Believing a clock that is behind can only make releases late.
        if bounds is None or observation.high <= bounds.low:
            self._bounds = observation
        elif observation.low >= bounds.high:
            self._ahead = observation
            if self._ahead_since is None:
                self._ahead_since = received
            # Believing a clock that is ahead could release pods early.
            if received - self._ahead_since < CONFIRMED or not may_advance:
                return
            self._bounds = observation
        else:
            self._bounds = Bounds(
                max(bounds.low, observation.low), min(bounds.high, observation.high)
            )
        self._as_of, self._ahead_since = received, None

    def bounds(self, local: float) -> Bounds | None:
        """Return the bounds at a local time, or None before the first response and check."""
        with self._lock:
            return None if self._check_at == float("-inf") else self._drifted(local)

    def lower_bound(self, local: float) -> float | None:
        """Return a lower bound of the server's time (epoch seconds), or None if it is unknown."""
        bounds = self.bounds(local)
        return None if bounds is None else local + bounds.low

    def next_probes(self, local: float) -> list[float]:
        """Return the local times at which requests would narrow the bounds most, in order.

        They surround the start of the server's next second. If the bounds are narrow enough, the
        list is empty.
        """
        bounds = self.bounds(local)
        if bounds is None:
            return [local]
        if bounds.width <= NARROW_ENOUGH:
            return []
        latest = local + bounds.high
        turn = float(int(latest) + 1)
        first, last = turn - bounds.high, turn - bounds.low
        count = PROBES_PER_TURN if bounds.width > FEW_PROBES_WIDTH else FEW_PROBES
        step = (last - first) / (count + 1)
        return [*(first + step * (i + 1) for i in range(count)), last + PAST_TURN]

    def _drifted(self, local: float) -> Bounds | None:
        if self._bounds is None:
            return None
        drift = max(0.0, local - self._as_of) * DRIFT
        return Bounds(self._bounds.low - drift, self._bounds.high + drift)


class ClockStability:
    """Tracks how long a clock has not been set, as far as it was observed."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._since = 0.0

    def observe(self, time: float, local: float) -> None:
        """Record the clock's time (epoch seconds) at a local time."""
        offset = time - local
        if self._ahead is None or abs(offset - self._ahead) > TOLERANCE:
            self._since = local
        self._ahead = offset

    def seconds(self, local: float) -> float:
        """Return the seconds without a change of the clock; 0 before the first observation."""
        return 0.0 if self._ahead is None else local - self._since
