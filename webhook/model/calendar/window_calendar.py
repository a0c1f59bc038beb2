"""When windows are open, on days with a clock change and on closed dates, too. Pure.

A window is open at an instant if the local wall time at that instant is inside it. So:

- A window whose start is skipped when clocks go forward opens after the gap. One that is skipped
  completely does not open on that day.
- Wall times that repeat when clocks go back are inside both times. A window that ends in the
  repeated hour closes, and opens again for the rest of it.
- A window across midnight belongs to the day on which it opens.
- On a closed date no window opens, and nothing is open from 00:00 to 24:00: a window of the day
  before closes at 00:00, and one that would open on the date stays closed on the next day, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import cached_property, lru_cache
from operator import itemgetter

from holdfast.webhook.model import durations

Span = tuple[int, int]

HORIZON_DAYS = 400
"""How far ahead an opening or closing is searched: more than a year."""
_LAST_MS = durations.parse_instant("9997-01-01T00:00:00Z")
"""The search has to end before the year 10000."""
_DAY_MS = 86_400_000
"""No time zone changes its offset twice within a day."""
_HORIZON_MS = HORIZON_DAYS * _DAY_MS
_MINUTE_MS = 60_000
_THURSDAY = 3
"""The weekday of 1970-01-01."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall times
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class OpenHours:
    """One window: minutes of the days on which it opens; an end above 24 hours is on the next day.

    Monday is 0.
    """

    days: tuple[int, ...]
    start: int
    end: int
    zone: tzinfo


@dataclass(frozen=True)
class Windows:
    """Windows, of which at least one has to be open.

    `closed` are the first and last days of closed dates, in days since 1970. Instants are in
    milliseconds since 1970; nothing is open before that year and after 9996.
    """

    hours: tuple[OpenHours, ...]
    closed: tuple[Span, ...] = ()
    _last_search: list[Span] = field(
        default_factory=lambda: [(1, 0)], init=False, compare=False, repr=False
    )
    """The last instant asked for, and the first one from there on at which a window is open."""

    def is_open(self, at_ms: int) -> bool:
        """Return whether a window is open."""
        return _in_range(at_ms) and any(one.is_open(at_ms) for one in self._calendars)

    def next_open_ms(self, at_ms: int) -> int | None:
        """Return the first instant from `at_ms` on at which a window is open.

        None if no window opens within HORIZON_DAYS.
        """
        if not _in_range(at_ms):
            return None
        since_ms, opens_ms = self._last_search[0]
        if since_ms <= at_ms <= opens_ms:  # as for most pods of a long list
            return opens_ms
        found = [one.next_open_ms(at_ms, at_ms + _HORIZON_MS) for one in self._calendars]
        first = min((opens for opens in found if opens is not None), default=None)
        if first is not None:
            self._last_search[0] = (at_ms, first)
        return first

    def closes_ms(self, at_ms: int) -> int | None:
        """Return the first instant from `at_ms` on at which no window is open.

        None if the windows stay open for HORIZON_DAYS.
        """
        if not _in_range(at_ms):
            return at_ms
        closes, until = at_ms, at_ms + _HORIZON_MS
        while closes < until:
            before = closes
            closes = max(one.closes_ms(before, until) for one in self._calendars)
            if closes == before:
                return closes
        return None

    @lru_cache(maxsize=1_024)  # noqa: B019 - one entry for each window that is open now
    def opened_ms(self, closes_ms: int) -> int:
        """Return when the window that closes then has opened, at most HORIZON_DAYS before."""
        instants = range(max(0, closes_ms - _HORIZON_MS), closes_ms)
        return instants[
            bisect_left(
                instants, 1, key=lambda at: self.is_open(at) and self.closes_ms(at) == closes_ms
            )
        ]

    @cached_property
    def _calendars(self) -> list[_Calendar]:
        zones = dict.fromkeys(one.zone for one in self.hours)
        return [
            _Calendar(
                zone,
                [
                    (day, one.start, one.end)
                    for one in self.hours
                    if one.zone is zone
                    for day in one.days
                ],
                self.closed,
            )
            for zone in zones
        ]


def _in_range(at_ms: int) -> bool:
    return 0 <= at_ms < _LAST_MS


class _Calendar:
    """The windows of one time zone.

    `hours` are the weekday, start and end of windows, in minutes; `closed` the first and last days
    of ranges of dates, in days since 1970. Wall times are in milliseconds since 1970-01-01T00:00.
    """

    def __init__(
        self, zone: tzinfo, hours: Iterable[tuple[int, int, int]], closed: Iterable[Span]
    ) -> None:
        hours = list(hours)
        self._zone = zone
        self._week = [
            _merged((start * _MINUTE_MS, end * _MINUTE_MS) for on, start, end in hours if on == day)
            for day in range(7)
        ]
        self._closed = _merged((first, last + 1) for first, last in closed)

    def is_open(self, at_ms: int) -> bool:
        wall = self._wall(at_ms)
        return self._first_open(wall, wall) == wall

    def next_open_ms(self, at_ms: int, until_ms: int) -> int | None:
        """Return the first instant from `at_ms` on at which a window is open; None if none is."""
        while at_ms < until_ms:
            offset = self._wall(at_ms) - at_ms
            opens = self._first_open(at_ms + offset, until_ms + offset)
            if opens is None:
                return None
            change = self._next_change(at_ms, opens - offset)
            if change is None:
                return opens - offset
            at_ms = change
        return None

    def closes_ms(self, at_ms: int, until_ms: int) -> int:
        """Return when all are closed, from `at_ms` on; some instant after `until_ms` if later."""
        while at_ms < until_ms:
            wall = self._wall(at_ms)
            offset = wall - at_ms
            closes = self._first_closed(wall, until_ms + offset)
            change = self._next_change(at_ms, closes - offset)
            if change is None:
                return closes - offset
            at_ms = change
        return at_ms

    def _first_open(self, wall: int, until: int) -> int | None:
        for day in range(wall // _DAY_MS - 1, until // _DAY_MS + 1):
            for start, end in self._spans(day):
                if wall < end:
                    return max(start, wall)
        return None

    def _first_closed(self, wall: int, until: int) -> int:
        for day in range(wall // _DAY_MS - 1, until // _DAY_MS + 1):
            if day * _DAY_MS > wall:
                break
            for start, end in self._spans(day):
                if start <= wall:
                    wall = max(wall, end)
        return wall

    def _spans(self, day: int) -> list[Span]:
        """Return the wall times at which windows of a day open and close, in order."""
        if self._is_closed(day):
            return []
        midnight = day * _DAY_MS
        latest = _DAY_MS if self._is_closed(day + 1) else 2 * _DAY_MS
        spans = self._week[(day + _THURSDAY) % 7]
        return [(midnight + start, midnight + min(end, latest)) for start, end in spans]

    def _is_closed(self, day: int) -> bool:
        place = bisect_right(self._closed, day, key=itemgetter(0))
        return place > 0 and day < self._closed[place - 1][1]

    def _wall(self, at_ms: int) -> int:
        local = durations.to_datetime(at_ms).astimezone(self._zone)
        return (local.replace(tzinfo=None) - _EPOCH) // _MILLISECOND

    def _next_change(self, at_ms: int, end_ms: int) -> int | None:
        """Return the first instant up to `end_ms` with another offset than `at_ms` has."""
        offset = self._wall(at_ms) - at_ms
        for start in range(at_ms, end_ms, _DAY_MS):
            later = min(start + _DAY_MS, end_ms)
            if self._wall(later) - later != offset:
                instants = range(start, later + 1)
                return start + bisect_left(
                    instants, 1, key=lambda at: self._wall(at) - at != offset
                )
        return None


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, and join those that overlap or touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
