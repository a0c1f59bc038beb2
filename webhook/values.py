"""What users may write: delays and instants, read strictly and shown back safely.

Whole seconds are read as Go's `strconv.ParseInt(v, 10, 64)` reads them, as the delay scheduler
plugin did; durations as Go's `time.ParseDuration`, of the units h, m, s and ms alone; instants as
RFC 3339 with an offset (`time.RFC3339`). All times are whole milliseconds. What is finer is
rounded up: rounding must never release anything early.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from webhook.errors import ValueRefusedError

SHOWN_CHARACTERS = 40
"""How much of a user's value a message or a log line repeats: warnings are cut at 256 bytes."""

MESSAGE_CHARACTERS = 400
"""How much of a message of another's making is repeated: a parser may quote all of what it read."""

LONGEST_DURATION = 1_000
"""Characters of a duration; a longer one is no duration that anybody meant. It also bounds what
the pattern below can cost: possessive quantifiers would, but Python 3.11.2 matches them wrongly."""

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")

_SECONDS = re.compile(r"([+-]?)([0-9]+)")
# possessive: nothing is remembered for a way back, which for megabytes would be gigabytes
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

DELAY_ACCEPTED = "write whole seconds such as 15, or a duration of h, m, s, ms such as 1h30m"
INSTANT_ACCEPTED = "write an RFC 3339 time with its offset such as 2026-12-24T18:00:00+01:00"


def is_qualified_name(text: str) -> bool:
    """Tell whether a text is the key of a label or annotation, as Kubernetes has it."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and bool(_NAME.fullmatch(name))


def is_object_name(text: str) -> bool:
    """Tell whether an object such as a node can have this name (a DNS subdomain)."""
    return len(text) <= 253 and bool(_DNS_SUBDOMAIN.fullmatch(text))


def is_label_value(text: str) -> bool:
    """Tell whether a text is the value of a label, as Kubernetes has it; it may be empty."""
    return not text or (len(text) <= 63 and bool(_NAME.fullmatch(text)))


def is_namespace(text: str) -> bool:
    """Tell whether a namespace can have this name (a DNS label)."""
    return len(text) <= 63 and bool(re.fullmatch(_DNS_LABEL, text))


def shown(text: str, characters: int = SHOWN_CHARACTERS) -> str:
    """Quote a user's text for one line of a message: escaped to ASCII, and cut when it is long."""
    cut = ascii(text[:characters])[1:-1].replace('"', '\\"')
    if len(cut) > characters:
        cut = cut[:characters]
    elif len(text) <= characters:
        return f'"{cut}"'
    return f'"{cut}…" ({len(text)} characters)'


def shortened(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """Cut the middle out of a message of another's making that quotes what may be long.

    Its beginning says what is wrong, and its end says where.
    """
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}…{text[-half:]}"


def one_line(exc: Exception) -> str:
    """Write an exception of another's making as one line; it may quote what it read."""
    line = shortened(" ".join(str(exc).split()))
    return line if line.isprintable() else shortened(ascii(line)[1:-1])


def parse_delay(text: str) -> int:
    """Read whole seconds or a duration; the answer is in milliseconds, rounded up.

    Raises ValueRefusedError, whose text says what is accepted.
    """
    match = _SECONDS.fullmatch(text)
    if match:
        return _from_seconds(text, *match.groups())
    match = _DURATION.fullmatch(text) if len(text) <= LONGEST_DURATION else None
    if match:
        return _from_duration(text, *match.groups())
    raise ValueRefusedError(f"{shown(text)} is no duration; {DELAY_ACCEPTED}")


def _from_seconds(text: str, sign: str, digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if sign == "-" and digits != "0":
        raise ValueRefusedError(f"{shown(text)} is negative; {DELAY_ACCEPTED}")
    if len(digits) > _INT64_DIGITS or int(digits) > _INT64_MAX:
        raise ValueRefusedError(
            f"{shown(text)} is out of range for seconds in 64 bits; {DELAY_ACCEPTED}"
        )
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
        raise ValueRefusedError(
            f"{shown(text)} is longer than a duration can be (about 292 years); {DELAY_ACCEPTED}"
        )
    if sign == "-" and total_ns:
        raise ValueRefusedError(f"{shown(text)} is negative; {DELAY_ACCEPTED}")
    return -(-total_ns // _NS_PER_MS)


def _fraction_ns(digits: str, unit_ns: int) -> int:
    """Turn the digits behind a point into nanoseconds of the unit, rounded up, never down."""
    scale: int = 10 ** len(digits)
    return -(-int(digits or "0") * unit_ns // scale)


def parse_instant(text: str) -> int:
    """Read an RFC 3339 time; the answer is in milliseconds since 1970, UTC, rounded up.

    Raises ValueRefusedError, whose text says what is accepted.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueRefusedError(f"{shown(text)} is no time; {INSTANT_ACCEPTED}")
    local, fraction, _, sign, hours, minutes = match.groups()
    try:
        seconds = (datetime.fromisoformat(local) - _EPOCH) // timedelta(seconds=1)
    except ValueError as exc:
        raise ValueRefusedError(f"{shown(text)} is no time ({exc}); {INSTANT_ACCEPTED}") from None
    if hours and (int(hours) > 23 or int(minutes) > 59):
        raise ValueRefusedError(f"{shown(text)} has an impossible offset; {INSTANT_ACCEPTED}")
    offset = (int(hours) * 60 + int(minutes)) * 60 if hours else 0
    seconds -= -offset if sign == "-" else offset
    fraction_ns = _fraction_ns(fraction or "", _UNIT_NS["s"])
    milliseconds = seconds * 1_000 - (-fraction_ns // _NS_PER_MS)
    if not _FIRST_INSTANT <= milliseconds <= _LAST_INSTANT:
        raise ValueRefusedError(f"{shown(text)} is outside the years 1 to 9999; {INSTANT_ACCEPTED}")
    return milliseconds


_FIRST_INSTANT = (datetime(1, 1, 1) - _EPOCH) // _MILLISECOND  # noqa: DTZ001
_LAST_INSTANT = (datetime(9999, 12, 31, 23, 59, 59, 999_000) - _EPOCH) // _MILLISECOND  # noqa: DTZ001


def canonical_delay(milliseconds: int) -> str:
    """Write a delay in the one form that Holdfast writes: `1h30m`, `15s`, `1s500ms`, `0s`."""
    text, rest = "", milliseconds
    for unit, size in _UNIT_MS:
        count, rest = divmod(rest, size)
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def canonical_instant(milliseconds: int) -> str:
    """Write an instant in the one form that Holdfast writes: UTC, as in `2026-12-24T17:00:00Z`.

    What lies beyond the years 1 to 9999 is written as their end.
    """
    milliseconds = max(_FIRST_INSTANT, min(milliseconds, _LAST_INSTANT))
    moment = _EPOCH + milliseconds * _MILLISECOND
    precision = "milliseconds" if milliseconds % 1_000 else "seconds"
    return moment.isoformat(timespec=precision) + "Z"


def to_datetime(milliseconds: int) -> datetime:
    """Turn milliseconds since 1970 into an aware datetime."""
    return datetime(1970, 1, 1, tzinfo=UTC) + milliseconds * _MILLISECOND
