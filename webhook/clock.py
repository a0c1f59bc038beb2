"""The API server's clock, estimated from the `Date` of its answers.

`Date` has whole seconds, yet each answer bounds the server's clock: an answer that says D, to a
request sent at s and received at r (by a local clock that neither steps nor sleeps), was written
somewhere between the two, when the server's clock stood in [D, D + 1 s). So

    D - r  <=  server's clock - local clock  <  D + 1 s - s

Every answer narrows the bounds; requests timed around the turn of a second narrow them to
milliseconds. Releases go by the lower bound, so that an uncertain clock makes them late, never
early. No I/O here, and no clock: all times are passed in. Seconds, as floats, local time first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

DRIFT = 500e-6
"""How fast two clocks may drift apart, seconds a second: the most that NTP slews a clock by."""

CONFIRMED = 10.0
"""Seconds for which every answer has to contradict a clock before it is taken to have been set
forward: of several API servers behind one address, one whose clock is ahead releases nothing."""

PROBES_PER_TURN = 8
"""Requests spread over the time in which the server's second may turn: each turn of the second
narrows the bounds ninefold, so that three turns make milliseconds of a whole second."""

FEW_PROBES, FEW_PROBES_WIDTH = 3, 0.05
"""Where the bounds (seconds) are narrow already and have only drifted, a few probes will do."""

PAST_TURN = 0.002
"""Seconds behind the last moment at which the second may turn: a probe there that still sees the
old second shows a clock that was set back by less than a second. More than the drift until then."""

NARROW_ENOUGH = 0.008
"""Seconds of uncertainty that are not worth a probe. Drift alone makes them in a few seconds, so
that a clock at rest costs less than one small request a second."""


TOLERANCE = 60.0
"""Seconds by which a clock may come to differ from what it was between two looks, and not count as
set: several API servers differ by less, and what lasts for days is decided by it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the server's clock is ahead of the local one by, at least and at most, in seconds."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """How uncertain the estimate is, in seconds."""
        return self.high - self.low


class ServerClock:
    """An estimate of one API server's clock. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds: Bounds | None = None
        self._as_of = 0.0
        self._ahead_since: float | None = None
        """Since when each answer has come from a clock that is ahead of the bounds."""
        self.steps = 0

    def observe(self, *, sent: float, received: float, date: float) -> None:
        """Take in one answer: local times of request and answer, and its `Date` (epoch seconds).

        An answer that contradicts what is known means that the server's clock was set, or that
        another server answered: only the newest answer counts then. One that is behind counts at
        once, one that is ahead when no other has agreed with what was known for CONFIRMED seconds.
        """
        seen = Bounds(date - received, date + 1.0 - sent)
        with self._lock:
            known = self._drifted(received)
            if known is None or seen.high <= known.low:
                self.steps += known is not None
                self._bounds = seen
            elif seen.low >= known.high:
                if self._ahead_since is None:
                    self._ahead_since = received
                if received - self._ahead_since < CONFIRMED:
                    return
                self.steps += 1
                self._bounds = seen
            else:
                self._bounds = Bounds(max(known.low, seen.low), min(known.high, seen.high))
            self._as_of, self._ahead_since = received, None

    def bounds(self, local: float) -> Bounds | None:
        """Give the bounds as they are at a local time, or None before the first answer."""
        with self._lock:
            return self._drifted(local)

    def surely_passed(self, local: float) -> float | None:
        """Give the time that it certainly is at the server (epoch seconds), or None."""
        bounds = self.bounds(local)
        return None if bounds is None else local + bounds.low

    def next_probes(self, local: float) -> list[float]:
        """Give the local times at which requests would narrow the bounds most, in order.

        They lie around the server's next turn of a second; empty when nothing is to be gained.
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


class Steadiness:
    """For how long a clock has gone on without having been set, as far as somebody looked."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._since = 0.0

    def observe(self, time: float, local: float) -> None:
        """Take in what the clock says (epoch seconds), and a local time."""
        ahead = time - local
        if self._ahead is None or abs(ahead - self._ahead) > TOLERANCE:
            self._since = local
        self._ahead = ahead

    def seconds(self, local: float) -> float:
        """Give the seconds until this local time; 0 before the first look."""
        return 0.0 if self._ahead is None else local - self._since
