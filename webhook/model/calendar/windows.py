"""Parser for time windows that users write.

`Mon-Fri 22:00-06:00, Sat,Sun 00:00-24:00 Europe/Berlin` is two windows:

- Each window has hours. They end on the next day unless the end is after the start.
- Days come before the hours: one day, a range that may span Sunday (`Sat-Mon`), or several of these
  separated by commas. Either all windows have days or none has. Without days, they open every day.
- The time zone is an IANA name, once at the end or after every window. The default is UTC.

`window_calendar` defines the behavior of windows at clock changes and on closed dates.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.webhook.errors import InvalidValueError, UndecidedError
from holdfast.webhook.model.calendar.window_calendar import OpenHours, Span, Windows
from holdfast.webhook.model.messages import quote

LONGEST = 1_000
"""Maximum characters of a value."""
MAX_WINDOWS = 20
"""Maximum number of windows in a value. Both limits bound the cost of a hostile value."""
WINDOW_ACCEPTED = 'use windows like "Mon-Fri 22:00-06:00 Europe/Berlin"'

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NUMBERS = {day.lower(): number for number, day in enumerate(_DAYS)}
_EVERY_DAY = tuple(range(7))
_DIGITS = tuple("0123456789")
_HOURS = re.compile(r"([0-9]{1,2}):([0-5][0-9])-([0-9]{1,2}):([0-5][0-9])")
_DAY = 24 * 60
_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+-]{0,31}(?:/[A-Za-z0-9][A-Za-z0-9_+-]{0,31}){0,2}")
"""Time zone names, without files such as `localtime`, which differ between machines."""
_DATES = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:/([0-9]{4}-[0-9]{2}-[0-9]{2}))?")
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def parse(text: str, zone: tzinfo | None = None) -> Windows:
    """Parse windows. If `zone` is given, the text must not name one.

    Raises InvalidValueError, which names the invalid part, and UndecidedError if this machine has
    no time zone data.
    """
    if len(text) > LONGEST:
        raise _invalid(text, f"longer than {LONGEST:,} characters", "write fewer windows")
    windows = list(_read(text))
    if len(windows) > MAX_WINDOWS:
        raise _invalid(text, f"more than {MAX_WINDOWS} windows", "write fewer windows")
    if 0 < sum(bool(days) for days, *_ in windows) < len(windows):
        raise _invalid(
            text, "only some windows have days", 'add days to the others ("Mon-Sun" is every day)'
        )
    names = [name for *_, name in windows if name]
    if names and zone:
        raise _invalid(text, f"time zone {quote(names[0])}", "remove it and set timeZone")
    if names and len(names) != len(windows) and (len(names) > 1 or not windows[-1][3]):
        raise _invalid(
            text,
            "only some windows have a time zone",
            "write one at the end, or one behind every window",
        )
    shared_zone = zone or (parse_zone(names[0]) if names else UTC)
    return Windows(
        tuple(
            OpenHours(days or _EVERY_DAY, start, end, parse_zone(name) if name else shared_zone)
            for days, start, end, name in windows
        )
    )


def is_name(text: str) -> bool:
    """Return whether a value is a name of windows: a word without digits that is not a day."""
    return text.isascii() and text.replace("-", "").isalpha() and not _is_days(text)


def _read(text: str) -> Iterator[tuple[tuple[int, ...], int, int, str]]:
    """Yield the days, start, end and zone of each window; days and zone are empty if missing."""
    days: set[int] = set()
    word = ""
    for part in text.split(","):
        words = [token for token in part.split(" ") if token]
        if not words:
            raise _invalid(text, "empty window" if text.strip(" ") else "empty", WINDOW_ACCEPTED)
        if not words[0].startswith(_DIGITS):
            word = words.pop(0)
            days |= _days(text, word)
        elif days:
            break
        if not words:
            continue
        start, end = _hours(text, words)
        if len(words) > 2:
            raise _invalid(text, f"unexpected {quote(words[2])}", WINDOW_ACCEPTED)
        yield tuple(sorted(days)), start, end, words[1] if len(words) == 2 else ""
        days = set()
    if days:
        raise _invalid(text, f"days {quote(word)} have no hours", f'use "{word} 00:00-24:00"')


def _is_days(word: str) -> bool:
    first, dash, last = word.lower().partition("-")
    return first in _NUMBERS and (not dash or last in _NUMBERS)


def _days(text: str, word: str) -> set[int]:
    first, dash, last = word.lower().partition("-")
    start, end = _NUMBERS.get(first), _NUMBERS.get(last if dash else first)
    if start is None or end is None:
        raise _invalid(text, f"unknown day {quote(word)}", f"use {', '.join(_DAYS)}")
    return {(start + offset) % 7 for offset in range((end - start) % 7 + 1)}


def _hours(text: str, words: Sequence[str]) -> tuple[int, int]:
    """Return the start and end in minutes, from the first of these words."""
    if not _HOURS.fullmatch(words[0]) and any("-" in {word[0], word[-1]} for word in words[:2]):
        raise _invalid(text, "blanks around a dash", WINDOW_ACCEPTED)
    start, end = _minutes(text, words[0])
    if len(words) > 1 and _is_days(words[1]):
        raise _invalid(
            text, f"days {quote(words[1])} after the hours", f'use "{words[1]} {words[0]}"'
        )
    return start, end


def _minutes(text: str, word: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(word)
    numbers = [int(group) for group in match.groups()] if match else [99] * 4
    start, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
    if start >= _DAY or end > _DAY:
        raise _invalid(
            text, f"invalid hours {quote(word)}", 'use "22:00-06:00", from 00:00 to 24:00'
        )
    if start == end:
        raise _invalid(text, f"hours {quote(word)} are empty", "use 00:00-24:00 for all day")
    return start, end if end > start else end + _DAY


def parse_zone(name: str) -> tzinfo:
    """Return a time zone. Raises InvalidValueError, or UndecidedError without time zone data."""
    if name == "UTC":
        return UTC
    if _ZONE.fullmatch(name):
        zone = _lookup(name)
        if zone is not None:
            return zone
        if _lookup("Etc/UTC") is None:
            raise UndecidedError(
                f"time zone {quote(name)}: this machine has no time zone data: install the Python "
                "package tzdata"
            )
    raise InvalidValueError(
        f'unknown time zone {quote(name)}: use an IANA name such as "Europe/Berlin"'
    )


def _lookup(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory, or not time zone data
        return None


def parse_dates(text: str) -> Span:
    """Parse a date or range into its first and last day since 1970. Raises InvalidValueError."""
    match = _DATES.fullmatch(text)
    try:
        first, last = (
            date.fromisoformat(day).toordinal() - _EPOCH_DAY
            for day in ((match[1], match[2] or match[1]) if match else ("", ""))
        )
    except ValueError:
        first, last = 1, 0
    if first > last:
        raise _invalid(
            text, "not a date", 'use "2026-12-24", or "2026-12-24/2027-01-01" for a range'
        )
    return first, last


def _invalid(text: str, detail: str, cure: str) -> InvalidValueError:
    return InvalidValueError(f"invalid value {quote(text)}: {detail}: {cure}")
