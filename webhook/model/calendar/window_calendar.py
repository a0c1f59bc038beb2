"""Opening times of windows, including clock changes and closed dates. Pure.

A window is open at an instant if the local wall time at that instant is inside it. Therefore:

- A window whose start is skipped when clocks go forward opens after the gap. One that is skipped
  completely does not open on that day.
- Wall times that repeat when clocks go back are inside both times. A window that ends in the
  repeated hour closes, and opens again for the rest of it.
- A window across midnight belongs to the day on which it opens.
- On a closed date, no window opens or is open, from 00:00 to 24:00. A window of the day before
  closes at 00:00. A window that would open on the date stays closed on the next day, too.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from operator import itemgetter

from holdfast.webhook.model import durations

Span = tuple[int, int]

HORIZON_DAYS = 400
"""How far ahead to search for an opening: more than a year."""
_LAST_MS = durations.parse_instant("9997-01-01T00:00:00Z")
"""The search must end before the year 10000."""
_DAY_MS = 86_400_000
"""No time zone changes its offset twice within a day."""
WEEK_MS = 7 * _DAY_MS
HORIZON_MS = HORIZON_DAYS * _DAY_MS
_MINUTE_MS = 60_000
_THURSDAY = 3
"""The weekday of 1970-01-01."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall times
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class OpenHours:
    """One window: the weekdays on which it opens, and its start and end in minutes of the day.

    Monday is 0. An end above 24 hours is on the next day.
    """

    days: tuple[int, ...]
    start: int
    end: int
    zone: tzinfo


@dataclass(frozen=True)
class Windows:
    """Windows, of which at least one must be open.

    `closed` contains the first and last day of each range of closed dates, in days since 1970.
    Instants are in milliseconds since 1970; no window is open before that year or after 9996.
    """

    hours: tuple[OpenHours, ...]
    closed: tuple[Span, ...] = ()
    _last_search: list[Span] = field(
        default_factory=lambda: [(1, 0)], init=False, compare=False, repr=False
    )
    """The last searched instant, and the first instant from then on at which a window is open."""

    def is_open(self, at_ms: int) -> bool:
        """Return whether a window is open."""
        return _in_range(at_ms) and any(self._spans(at_ms, at_ms + 1))

    def next_open_ms(self, at_ms: int) -> int | None:
        """Return the first instant from `at_ms` on at which a window is open.

        None if no window opens within HORIZON_DAYS.
        """
        if not _in_range(at_ms):
            return None
        since_ms, opens_ms = self._last_search[0]
        if since_ms <= at_ms <= opens_ms:  # the usual case in a long list of pods
            return opens_ms
        for opens_ms, _ in self._spans(at_ms, at_ms + HORIZON_MS):
            self._last_search[0] = (at_ms, opens_ms)
            return opens_ms
        return None

    def closes_ms(self, at_ms: int, within_ms: int = WEEK_MS) -> int | None:
        """Return the first instant from `at_ms` on at which no window is open.

        None if the windows stay open for `within_ms`, which bounds the cost of the search.
        """
        if not _in_range(at_ms):
            return at_ms
        closes_ms = at_ms
        for start, end in self._spans(at_ms, at_ms + within_ms):
            if start > closes_ms:
                break
            closes_ms = max(closes_ms, end)
        return closes_ms if closes_ms < at_ms + within_ms else None

    def opened_ms(self, at_ms: int, since_ms: int) -> int:
        """Return when windows opened that have been open without a break until `at_ms`.

        Returns `since_ms` if they were already open then.
        """
        opened_ms = closes_ms = since_ms
        for start, end in self._spans(since_ms, at_ms + 1):
            if start > closes_ms:
                opened_ms = start
            closes_ms = max(closes_ms, end)
        return opened_ms

    def _spans(self, at_ms: int, until_ms: int) -> Iterable[Span]:
        """Yield the open spans between two instants, ordered by start; they may overlap."""
        return heapq.merge(*(calendar.spans(at_ms, until_ms) for calendar in self._calendars))

    @cached_property
    def _calendars(self) -> list[_Calendar]:
        zones = dict.fromkeys(window.zone for window in self.hours)
        return [
            _Calendar(
                zone,
                [
                    (day, window.start, window.end)
                    for window in self.hours
                    if window.zone is zone
                    for day in window.days
                ],
                self.closed,
            )
            for zone in zones
        ]


def _in_range(at_ms: int) -> bool:
    return 0 <= at_ms < _LAST_MS


class _Calendar:
    """The windows of one time zone.

    `hours` contains the weekday of each window, and its start and end in minutes; `closed` the
    first and last day of each range of dates, in days since 1970. Wall times are in milliseconds
    since 1970-01-01T00:00.
    """

    def __init__(
        self, zone: tzinfo, hours: Iterable[tuple[int, int, int]], closed: Iterable[Span]
    ) -> None:
        hours = list(hours)
        self._zone = zone
        self._week = [
            _merged(
                (start * _MINUTE_MS, end * _MINUTE_MS)
                for weekday, start, end in hours
                if weekday == day
            )
            for day in range(7)
        ]
        self._closed = _merged((first, last + 1) for first, last in closed)

    def spans(self, at_ms: int, until_ms: int) -> Iterator[Span]:
        """Yield the open spans between two instants, ordered by start; they may overlap."""
        while at_ms < until_ms:
            offset = self._wall(at_ms) - at_ms
            end_ms = self._same_offset(at_ms, min(at_ms + _DAY_MS, until_ms), offset)
            days = range((at_ms + offset) // _DAY_MS - 1, (end_ms + offset - 1) // _DAY_MS + 1)
            for day in days:
                for opens, closes in self._day(day):
                    opens_ms, closes_ms = max(opens - offset, at_ms), min(closes - offset, end_ms)
                    if opens_ms < closes_ms:
                        yield opens_ms, closes_ms
            at_ms = end_ms

    def _day(self, day: int) -> list[Span]:
        """Return the wall times at which windows of a day open and close, in order."""
        if self._is_closed(day):
            return []
        midnight = day * _DAY_MS
        latest_end = _DAY_MS if self._is_closed(day + 1) else 2 * _DAY_MS
        spans = self._week[(day + _THURSDAY) % 7]
        return [(midnight + start, midnight + min(end, latest_end)) for start, end in spans]

    def _is_closed(self, day: int) -> bool:
        index = bisect_right(self._closed, day, key=itemgetter(0))
        return index > 0 and day < self._closed[index - 1][1]

    def _wall(self, at_ms: int) -> int:
        local = durations.to_datetime(at_ms).astimezone(self._zone)
        return (local.replace(tzinfo=None) - _EPOCH) // _MILLISECOND

    def _same_offset(self, at_ms: int, end_ms: int, offset: int) -> int:
        """Return when the zone's offset changes, or `end_ms`, which is no more than a day later."""
        if self._wall(end_ms) - end_ms == offset:
            return end_ms
        instants = range(at_ms, end_ms + 1)
        return at_ms + bisect_left(
            instants, 1, key=lambda instant: self._wall(instant) - instant != offset
        )


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, and join those that overlap or touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
