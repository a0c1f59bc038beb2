"""Strict parsers and canonical forms for delays and instants that users write.

Whole seconds follow Go's `strconv.ParseInt(v, 10, 64)`, as in the delay scheduler plugin;
durations follow `time.ParseDuration` with the units h, m, s and ms; instants follow RFC 3339 with
an offset (`time.RFC3339`). All times are whole milliseconds, rounded up: rounding must never
release a pod early.
"""

import re
from datetime import UTC, datetime, timedelta

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model.messages import quote

LONGEST_DURATION = 1_000
"""Maximum characters of a duration, which bounds the cost of the pattern below. Possessive
quantifiers would too, but Python 3.11.2 matches them incorrectly."""

_SECONDS = re.compile(r"([+-]?)([0-9]+)")
_DAYS = re.compile(r"([0-9]{1,5})d")
_DURATION = re.compile(r"([+-]?)((?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ms|h|m|s))+)")
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ms|h|m|s)")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))"
)

_UNIT_NS = {"h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000}
_UNIT_MS = (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_NS_PER_MS = 1_000_000
_INT64_MAX = 2**63 - 1
_INT64_DIGITS = 19

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - offsets are applied by hand, beyond datetime's range
_MILLISECOND = timedelta(milliseconds=1)

DELAY_ACCEPTED = 'use whole seconds ("15") or a duration ("1h30m")'
INSTANT_ACCEPTED = 'use an RFC 3339 time with an offset ("2026-12-24T18:00:00+01:00")'


def parse_delay(text: str) -> int:
    """Parse whole seconds or a duration into milliseconds, rounded up.

    Raises InvalidValueError, which names the accepted forms.
    """
    match = _SECONDS.fullmatch(text)
    if match:
        return _from_seconds(text, *match.groups())
    match = _DURATION.fullmatch(text) if len(text) <= LONGEST_DURATION else None
    if match:
        return _from_duration(text, *match.groups())
    days = _DAYS.fullmatch(text)
    units = f'the units are h, m, s and ms ("{int(days[1]) * 24}h")' if days else ""
    raise _invalid(text, DELAY_ACCEPTED, units)


def _from_seconds(text: str, sign: str, digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if sign == "-" and digits != "0":
        raise _invalid(text, DELAY_ACCEPTED, "negative")
    if len(digits) > _INT64_DIGITS or int(digits) > _INT64_MAX:
        raise _invalid(text, DELAY_ACCEPTED, "out of the 64-bit range of seconds")
    return int(digits) * 1_000


def _from_duration(text: str, sign: str, parts: str) -> int:
    total_ns = 0
    for part in _PART.finditer(parts):
        whole, fraction, unit = part[1].lstrip("0"), part[2] or "", part[3]
        if len(whole) > _INT64_DIGITS:
            total_ns = _INT64_MAX + 1
            break
        total_ns += int(whole or "0") * _UNIT_NS[unit] + _fraction_ns(fraction, _UNIT_NS[unit])
    if total_ns > _INT64_MAX:
        raise _invalid(text, DELAY_ACCEPTED, "longer than 292 years")
    if sign == "-" and total_ns:
        raise _invalid(text, DELAY_ACCEPTED, "negative")
    return -(-total_ns // _NS_PER_MS)


def _fraction_ns(digits: str, unit_ns: int) -> int:
    """Return the nanoseconds of a decimal fraction of a unit, rounded up."""
    scale: int = 10 ** len(digits)
    return -(-int(digits or "0") * unit_ns // scale)


def parse_instant(text: str) -> int:
    """Parse an RFC 3339 time into milliseconds since 1970, UTC, rounded up.

    Raises InvalidValueError, which names the accepted form.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise _invalid(text, INSTANT_ACCEPTED)
    local, fraction, _, sign, hours, minutes = match.groups()
    try:
        seconds = (datetime.fromisoformat(local) - _EPOCH) // timedelta(seconds=1)
    except ValueError as exc:
        raise _invalid(text, INSTANT_ACCEPTED, str(exc)) from None
    if hours and (int(hours) > 23 or int(minutes) > 59):
        raise _invalid(text, INSTANT_ACCEPTED, "impossible offset")
    offset = (int(hours) * 60 + int(minutes)) * 60 if hours else 0
    seconds -= -offset if sign == "-" else offset
    fraction_ns = _fraction_ns(fraction or "", _UNIT_NS["s"])
    milliseconds = seconds * 1_000 - (-fraction_ns // _NS_PER_MS)
    if not _FIRST_INSTANT <= milliseconds <= _LAST_INSTANT:
        raise _invalid(text, INSTANT_ACCEPTED, "outside the years 1 to 9999")
    return milliseconds


def _invalid(text: str, accepted: str, detail: str = "") -> InvalidValueError:
    return InvalidValueError(f"invalid value {quote(text)}: {detail and f'{detail}; '}{accepted}")


_FIRST_INSTANT = (datetime(1, 1, 1) - _EPOCH) // _MILLISECOND  # noqa: DTZ001
_LAST_INSTANT = (datetime(9999, 12, 31, 23, 59, 59, 999_000) - _EPOCH) // _MILLISECOND  # noqa: DTZ001


def canonical_delay(milliseconds: int) -> str:
    """Format a delay canonically: `1h30m`, `15s`, `1s500ms`, `0s`."""
    text, remainder = "", milliseconds
    for unit, size in _UNIT_MS:
        count, remainder = divmod(remainder, size)
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def canonical_instant(milliseconds: int) -> str:
    """Format an instant canonically, in UTC: `2026-12-24T17:00:00Z`.

    Instants outside the years 1 to 9999 are clamped.
    """
    milliseconds = max(_FIRST_INSTANT, min(milliseconds, _LAST_INSTANT))
    moment = _EPOCH + milliseconds * _MILLISECOND
    precision = "milliseconds" if milliseconds % 1_000 else "seconds"
    return moment.isoformat(timespec=precision) + "Z"


def to_datetime(milliseconds: int) -> datetime:
    """Convert milliseconds since 1970 into an aware datetime."""
    return datetime(1970, 1, 1, tzinfo=UTC) + milliseconds * _MILLISECOND
