import sys
import zoneinfo
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.webhook.errors import InvalidValueError, UndecidedError
from holdfast.webhook.model.calendar import windows
from holdfast.webhook.model.calendar.window_calendar import Windows
from holdfast.webhook.model.durations import canonical_instant, parse_instant
from tests.support.window_values import WINDOWS, WindowRefusal, WindowRow

MINUTE, DAY = 60_000, 86_400_000
ZONES = sorted(zoneinfo.available_timezones() - {"localtime"})
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@pytest.mark.parametrize("row", [pytest.param(row, id=row.note) for row in WINDOWS])
def test_table(row: WindowRow) -> None:
    if not isinstance(row.outcome, WindowRefusal):
        parsed = windows.parse(row.value)
        assert windows.parse(row.outcome) == parsed
        return
    with pytest.raises(InvalidValueError) as caught:
        windows.parse(row.value)
    message = str(caught.value)
    assert [refusal for refusal in WindowRefusal if f" {refusal}" in f" {message}"] == [row.outcome]
    assert len(message) <= 250
    assert message.isprintable()
    assert message.replace("…", "").isascii()


@given(st.text("MonFri082:-, UTC/", max_size=40) | st.text(max_size=20))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(InvalidValueError):
        windows.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-02", (1, 1)),
        ("1970-01-02/1970-01-04", (1, 3)),
        *((text, None) for text in ("", "1970-01-04/1970-01-02", "1970-02-30", "19700102")),
        *((text, None) for text in ("1970-01-02/", "1970-01-02\n", "Christmas", "9" * 1_000_000)),
    ],
)
def test_dates(text: str, expected: tuple[int, int] | None) -> None:
    if expected:
        assert windows.parse_dates(text) == expected
    else:
        with pytest.raises(InvalidValueError, match="not a date: use"):
            windows.parse_dates(text)


def test_missing_tzdata_raises_undecided_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    monkeypatch.setitem(sys.modules, "tzdata.zoneinfo", None)
    monkeypatch.setattr(windows, "ZoneInfo", zoneinfo.ZoneInfo.no_cache)
    zoneinfo.reset_tzpath(to=[])
    try:
        assert windows.parse("08:00-09:00 UTC") == windows.parse("08:00-09:00")
        with pytest.raises(UndecidedError, match=r"install the Python package tzdata$"):
            windows.parse("08:00-09:00 Cuba")
    finally:
        zoneinfo.reset_tzpath()


# --- when windows are open ---------------------------------------------------------------------


def on(*closed: str, text: str) -> Windows:
    return Windows(windows.parse(text).hours, tuple(map(windows.parse_dates, closed)))


@pytest.mark.parametrize(
    ("opened", "since", "expected"),
    [
        pytest.param(
            on(text="02:15-02:45 Europe/Berlin"),
            "2027-03-27T12:00:00Z",
            ["2027-03-29T00:15:00Z", "2027-03-29T00:45:00Z"],
            id="window skipped by DST",
        ),
        pytest.param(
            on(text="02:15-04:00 Europe/Berlin"),
            "2027-03-27T12:00:00Z",
            ["2027-03-28T01:00:00Z", "2027-03-28T02:00:00Z"],
            id="start skipped by DST",
        ),
        pytest.param(
            on(text="01:00-02:30 Europe/Berlin"),
            "2027-10-30T12:00:00Z",
            [
                *("2027-10-30T23:00:00Z", "2027-10-31T00:30:00Z"),
                *("2027-10-31T01:00:00Z", "2027-10-31T01:30:00Z"),
            ],
            id="end repeated by DST",
        ),
        pytest.param(
            on(text="01:00-04:00 Europe/Berlin"),
            "2027-10-30T12:00:00Z",
            ["2027-10-30T23:00:00Z", "2027-10-31T03:00:00Z"],
            id="window longer by DST",
        ),
        pytest.param(
            on(text="Sat 00:00-12:00, Fri 12:00-24:00, Sat 12:00-24:00 Japan"),
            "2027-01-01T00:00:00Z",
            ["2027-01-01T03:00:00Z", "2027-01-02T15:00:00Z"],
            id="windows that touch",
        ),
        pytest.param(
            on(text="20:00-24:00 UTC, 00:00-03:00 Europe/London"),
            "2027-01-01T12:00:00Z",
            ["2027-01-01T20:00:00Z", "2027-01-02T03:00:00Z"],
            id="zones that touch",
        ),
        pytest.param(
            on("1970-01-03", "2027-01-02", text="22:00-06:00"),
            "2027-01-01T12:00:00Z",
            [
                *("2027-01-01T22:00:00Z", "2027-01-02T00:00:00Z"),
                *("2027-01-03T22:00:00Z", "2027-01-04T06:00:00Z"),
            ],
            id="closed date",
        ),
        pytest.param(
            on("2027-01-02/2027-01-05", "2027-01-03", text="00:00-24:00 Asia/Tokyo"),
            "2027-01-01T12:00:00Z",
            ["2027-01-01T12:00:00Z", "2027-01-01T15:00:00Z", "2027-01-05T15:00:00Z"],
            id="closed range, in the window's zone",
        ),
    ],
)
def test_openings_and_closings(opened: Windows, since: str, expected: list[str]) -> None:
    instant: int | None = parse_instant(since)
    instants = []
    for number in range(len(expected)):
        assert instant is not None
        instant = opened.closes_ms(instant) if number % 2 else opened.next_open_ms(instant)
        assert instant is not None
        assert opened.is_open(instant) is (number % 2 == 0)
        instants.append(canonical_instant(instant))
    assert instants == expected


def test_searches_are_independent() -> None:
    calendar = on(text="Mon 09:00-10:00")
    monday = parse_instant("2027-01-04T09:00:00Z")
    instants = [monday - DAY, monday, monday + MINUTE, monday + 2 * DAY, monday - 8 * DAY]
    expected = [monday] * 2 + [monday + MINUTE, monday + 7 * DAY, monday - 7 * DAY]
    assert [calendar.next_open_ms(instant) for instant in instants] == expected


@pytest.mark.parametrize("at_ms", [-1, 2**62, -(2**62), parse_instant("9999-01-01T00:00:00Z")])
def test_instants_outside_the_calendar(at_ms: int) -> None:
    calendar = windows.parse("00:00-24:00")

    assert not calendar.is_open(at_ms)
    assert calendar.next_open_ms(at_ms) is None
    assert calendar.closes_ms(at_ms) == at_ms


def test_search_ends_at_the_horizon() -> None:
    start = parse_instant("2027-01-01T00:00:00Z")

    assert windows.parse("00:00-12:00, 12:00-24:00 Cuba").closes_ms(start) is None
    assert on("2027-01-07", text="00:00-24:00").closes_ms(start) == start + 6 * DAY
    assert on("2027-01-08", text="00:00-24:00").closes_ms(start) is None
    assert on("2027-01-08", text="00:00-24:00").closes_ms(start, 8 * DAY) == start + 7 * DAY
    assert on("2027-01-01/2029-01-01", text="00:00-24:00").next_open_ms(start) is None
    assert on("2027-01-01/2027-12-31", text="00:00-24:00").next_open_ms(start) == start + 365 * DAY


# --- against an independent implementation: a scan of the local wall time, minute by minute ----


def local_times(zone: str, start: int) -> list[datetime]:
    """Read the clocks of a zone for three days, a minute at a time, from a day before `start`."""
    info = zoneinfo.ZoneInfo(zone)
    first = datetime.fromtimestamp(start // 1_000, UTC) - timedelta(days=1)
    return [(first + timedelta(minutes=n)).astimezone(info) for n in range(3 * 1_440)]


def is_open(local: datetime, text: str, closed: date) -> bool:
    days, hours, *_ = text.split(" ")
    first, last = (DAYS.index(day) for day in days.split("-"))
    week = range(first, last + 1) if first <= last else [*range(first, 7), *range(last + 1)]
    start, end = hours.split("-")
    now, today = f"{local:%H:%M}", local.date()
    if start < end:
        opening_day = today if start <= now < end else None
    else:
        opening_day = today if now >= start else today - timedelta(days=1) if now < end else None
    return (
        opening_day is not None
        and opening_day.weekday() in week
        and closed not in {opening_day, today}
    )


@cache
def changes(zone: str) -> list[int]:
    """Find the hours of 2027 in which a zone's offset changes; the start of the year if none."""
    info = zoneinfo.ZoneInfo(zone)
    hours = [datetime(2027, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(0, 8_760, 24)]
    offsets = [hour.astimezone(info).utcoffset() for hour in hours]
    indices = [n for n in range(1, len(hours)) if offsets[n] != offsets[n - 1]]
    return [int(hours[n - 1].timestamp()) * 1_000 for n in indices or [1]]


CLOCK = st.builds(lambda h, m: f"{h:02}:{m:02}", st.integers(0, 23), st.sampled_from([0, 15, 59]))


@settings(max_examples=100)
@given(
    zone=st.sampled_from(ZONES),
    change=st.integers(0, 3),
    days=st.tuples(st.sampled_from(DAYS), st.sampled_from(DAYS)),
    hours=st.tuples(CLOCK, CLOCK | st.just("24:00")).filter(lambda times: times[0] != times[1]),
    closed=st.integers(-2, 5),
    minute=st.integers(0, 2 * 1_440),
)
def test_windows_agree_with_a_scan_of_wall_time(
    *,
    zone: str,
    change: int,
    days: tuple[str, str],
    hours: tuple[str, str],
    closed: int,
    minute: int,
) -> None:
    start = changes(zone)[change % len(changes(zone))]
    closed_date = datetime.fromtimestamp(start // 1_000, UTC).date() + timedelta(days=closed)
    text = f"{'-'.join(days)} {'-'.join(hours)}"
    calendar = on(closed_date.isoformat(), text=f"{text} {zone}")
    expected = [is_open(local, text, closed_date) for local in local_times(zone, start)]
    instants = range(start - DAY, start + 2 * DAY, MINUTE)
    instant = instants[minute]

    assert calendar.is_open(instant) is expected[minute]
    assert calendar.is_open(instant + MINUTE - 1) is expected[minute]
    for result, state in (
        (calendar.next_open_ms(instant), True),
        (calendar.closes_ms(instant), False),
    ):
        if state in expected[minute:]:
            assert result == instants[expected.index(state, minute)]
        else:
            assert result is None or result >= instants.stop


@pytest.mark.parametrize("hours", ["22:00-06:00", "01:30-02:30"])
def test_one_day_in_every_time_zone(hours: str) -> None:
    assert len(ZONES) > 400
    start = parse_instant("2027-03-28T00:00:00Z")
    for zone in ZONES:
        info = zoneinfo.ZoneInfo(zone)
        calendar = windows.parse(f"{hours} {zone}")
        instant, end = start, start + DAY
        for quarter in range(start, end, 15 * MINUTE):
            local = datetime.fromtimestamp(quarter // 1_000, UTC).astimezone(info)
            expected = is_open(local, f"Mon-Sun {hours}", date(1970, 1, 1))
            assert calendar.is_open(quarter) is expected, (zone, local)
        while instant < end:
            opens = calendar.next_open_ms(instant)
            assert opens is not None
            closes = calendar.closes_ms(opens)
            assert closes is not None
            assert instant <= opens < closes
            assert calendar.is_open(opens)
            assert calendar.is_open(closes - 1)
            assert not calendar.is_open(closes)
            opening = calendar.opened_ms(closes - 1, start - DAY)
            assert opening == opens if opens > instant else opening <= opens
            assert calendar.is_open(opening)
            assert not calendar.is_open(opening - 1)
            instant = closes
