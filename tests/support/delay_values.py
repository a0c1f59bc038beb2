"""Delays and times with their meaning. A test compares docs/reference with this table."""

import enum
from typing import NamedTuple


class Refusal(enum.StrEnum):
    """Why a value is rejected, and what the message says."""

    NOT_A_DURATION = "use whole seconds"
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out of the 64-bit range of seconds"
    TOO_LONG = "longer than 292 years"
    NOT_A_TIME = "use an RFC 3339 time"
    IMPOSSIBLE_OFFSET = "impossible offset"
    OUTSIDE_THE_YEARS_1_TO_9999 = "outside the years 1 to 9999"

    @property
    def in_words(self) -> str:
        return self.name.replace("_", " ").lower()


class Row(NamedTuple):
    """A value, either its milliseconds or why it is rejected, and what the row demonstrates."""

    value: str
    outcome: int | Refusal
    note: str


S, M, H = 1_000, 60_000, 3_600_000
MAX_INT64 = 2**63 - 1

DELAYS: tuple[Row, ...] = (
    # whole seconds, as strconv.ParseInt(v, 10, 64) reads them
    Row("15", 15 * S, "whole seconds"),
    Row("+15", 15 * S, "a plus sign"),
    Row("015", 15 * S, "a leading zero does not mean octal"),
    Row("0", 0, "holds nothing"),
    Row("-0", 0, "zero is not negative"),
    Row("0" * 30 + "15", 15 * S, "many leading zeros"),
    Row("-15", Refusal.NEGATIVE, "before creation"),
    Row("9223372036854775807", MAX_INT64 * S, "2^63-1, the last that ParseInt reads"),
    Row("9223372036854775808", Refusal.OUT_OF_RANGE, "2^63"),
    Row("-9223372036854775808", Refusal.NEGATIVE, "-2^63, the least that ParseInt reads"),
    Row("-9223372036854775809", Refusal.NEGATIVE, "-2^63-1: negative before all else"),
    Row("9" * 10_000_000, Refusal.OUT_OF_RANGE, "10 MB of digits"),
    Row("0" * 10_000_000, 0, "10 MB of zeros"),
    Row("", Refusal.NOT_A_DURATION, "the empty string"),
    Row("+", Refusal.NOT_A_DURATION, "a sign alone"),
    Row("\u221215", Refusal.NOT_A_DURATION, "a typographic minus sign"),
    Row("\uff11\uff15", Refusal.NOT_A_DURATION, "full-width digits"),
    Row("1_5", Refusal.NOT_A_DURATION, "an underscore"),
    Row(" 15", Refusal.NOT_A_DURATION, "a blank before"),
    Row("15\n", Refusal.NOT_A_DURATION, "a line break behind"),
    Row("15\x00", Refusal.NOT_A_DURATION, "a NUL"),
    Row("1e3", Refusal.NOT_A_DURATION, "an exponent"),
    Row("15.0", Refusal.NOT_A_DURATION, "a fraction without a unit"),
    Row("soon", Refusal.NOT_A_DURATION, "a word"),
    # durations, as time.ParseDuration reads them, of h, m, s and ms
    Row("15s", 15 * S, "seconds"),
    Row("+15s", 15 * S, "a plus sign"),
    Row("1h30m", H + 30 * M, "two units"),
    Row("30m1h", H + 30 * M, "in any order"),
    Row("1h1h", 2 * H, "a unit twice"),
    Row("1.5h", H + 30 * M, "a fraction"),
    Row("1.h", H, "a point without a fraction"),
    Row(".5h", 30 * M, "a fraction alone"),
    Row("1.5" + "8" * 66 + "h", 5_720 * S, "a fraction without an end, rounded once"),
    Row("250ms", 250, "milliseconds"),
    Row("1m1ms", M + 1, "minutes and milliseconds"),
    Row("1s500ms", 1_500, "as Holdfast writes it"),
    Row("0.5ms", 1, "half a millisecond is rounded up"),
    Row("1.0001s", 1_001, "finer than a millisecond is rounded up"),
    Row("0." + "0" * 50 + "1s", 1, "however fine, it is rounded up"),
    Row("0s", 0, "holds nothing"),
    Row("-0s", 0, "zero is not negative"),
    Row("-0.0h", 0, "zero with a fraction is not negative"),
    Row("-15s", Refusal.NEGATIVE, "a negative duration"),
    Row("-0.1ms", Refusal.NEGATIVE, "barely negative"),
    Row("1h-30m", Refusal.NOT_A_DURATION, "a sign inside"),
    Row("1h 30m", Refusal.NOT_A_DURATION, "a blank inside"),
    Row("1d", Refusal.NOT_A_DURATION, "days"),
    Row("1us", Refusal.NOT_A_DURATION, "microseconds"),
    Row("h", Refusal.NOT_A_DURATION, "a unit alone"),
    Row(".", Refusal.NOT_A_DURATION, "a point alone"),
    Row("1..5h", Refusal.NOT_A_DURATION, "two points"),
    Row("1h30", Refusal.NOT_A_DURATION, "the last unit is missing"),
    Row("1e3s", Refusal.NOT_A_DURATION, "an exponent"),
    Row("15s\n", Refusal.NOT_A_DURATION, "a line break behind"),
    Row("2562047h47m16.854775807s", 9_223_372_036_855, "2^63-1 ns, the longest of Go's"),
    Row("2562047h47m16.854775808s", Refusal.TOO_LONG, "2^63 ns"),
    Row("2562048h", Refusal.TOO_LONG, "overflow by hours"),
    Row("1" + "0" * 40 + "ms", Refusal.TOO_LONG, "overflow by digits"),
    Row("-2562048h", Refusal.TOO_LONG, "overflow, negative"),
    Row("0" * 40 + "1s", 1_000, "many leading zeros"),
    Row("0" * 998 + "1s", 1_000, "1,000 characters"),
    Row("0" * 999 + "1s", Refusal.NOT_A_DURATION, "1,001 characters"),
    Row("1s" * 5_000_000, Refusal.NOT_A_DURATION, "10 MB of seconds"),
)

INSTANTS: tuple[Row, ...] = (
    Row("1970-01-01T00:00:00Z", 0, "the epoch"),
    Row("2026-12-24T18:00:00+01:00", 1_798_131_600_000, "an offset to the east"),
    Row("2026-12-24T12:00:00-05:00", 1_798_131_600_000, "an offset to the west"),
    Row("2026-12-24T17:00:00-00:00", 1_798_131_600_000, "an unknown offset"),
    Row("2026-12-24T22:45:00+05:45", 1_798_131_600_000, "an offset with minutes"),
    Row("2026-12-25T16:59:00+23:59", 1_798_131_600_000, "the largest offset"),
    Row("1969-12-31T23:59:59Z", -1_000, "before the epoch"),
    Row("1969-12-31T23:59:59.5Z", -500, "a fraction before the epoch"),
    Row("2024-02-29T00:00:00Z", 1_709_164_800_000, "a leap day"),
    Row("2000-02-29T00:00:00Z", 951_782_400_000, "a leap day of a century that has one"),
    Row("1970-01-01T00:00:00.25Z", 250, "a fraction"),
    Row("1970-01-01T00:00:00.0001Z", 1, "finer than a millisecond is rounded up"),
    Row("1970-01-01T00:00:00.999999999Z", 1_000, "rounded up to the next second"),
    Row("0001-01-01T00:00:00Z", -62_135_596_800_000, "the first instant"),
    Row("9999-12-31T23:59:59Z", 253_402_300_799_000, "the last second"),
    Row("9999-12-31T23:59:59.999Z", 253_402_300_799_999, "the last instant"),
    Row(
        "9999-12-31T23:59:59.9991Z",
        Refusal.OUTSIDE_THE_YEARS_1_TO_9999,
        "rounded up beyond the last",
    ),
    Row(
        "9999-12-31T23:59:59-00:01",
        Refusal.OUTSIDE_THE_YEARS_1_TO_9999,
        "beyond the last, by offset",
    ),
    Row(
        "0001-01-01T00:00:00+00:01",
        Refusal.OUTSIDE_THE_YEARS_1_TO_9999,
        "before the first, by offset",
    ),
    Row("0000-01-01T00:00:00Z", Refusal.NOT_A_TIME, "the year 0"),
    Row("10000-01-01T00:00:00Z", Refusal.NOT_A_TIME, "five digits"),
    Row("2023-02-29T00:00:00Z", Refusal.NOT_A_TIME, "no leap year"),
    Row("1900-02-29T00:00:00Z", Refusal.NOT_A_TIME, "a century without a leap day"),
    Row("2026-13-01T00:00:00Z", Refusal.NOT_A_TIME, "a 13th month"),
    Row("2026-04-31T00:00:00Z", Refusal.NOT_A_TIME, "a 31st of April"),
    Row("2026-12-24T23:59:59Z", 1_798_156_799_000, "the last second of a day"),
    Row("2026-12-24T24:00:00Z", Refusal.NOT_A_TIME, "24:00"),
    Row("2026-12-24T23:60:00Z", Refusal.NOT_A_TIME, "a 60th minute"),
    Row("2016-12-31T23:59:60Z", Refusal.NOT_A_TIME, "a leap second"),
    Row("2026-12-24T18:00:00", Refusal.NOT_A_TIME, "no offset"),
    Row("2026-12-24T18:00Z", Refusal.NOT_A_TIME, "no seconds"),
    Row("2026-12-24 18:00:00Z", Refusal.NOT_A_TIME, "a blank for the T"),
    Row("2026-12-24t18:00:00z", Refusal.NOT_A_TIME, "small letters"),
    Row("2026-12-24T18:00:00+0100", Refusal.NOT_A_TIME, "an offset without a colon"),
    Row("2026-12-24T18:00:00+24:00", Refusal.IMPOSSIBLE_OFFSET, "an offset of a day"),
    Row("2026-12-24T18:00:00+01:60", Refusal.IMPOSSIBLE_OFFSET, "an offset of 60 minutes"),
    Row("2026-12-24T18:00:00Z\n", Refusal.NOT_A_TIME, "a line break behind"),
    Row("2026-12-24T18:00:00.Z", Refusal.NOT_A_TIME, "a point without a fraction"),
    Row("2026-12-24T18:00:00,5Z", Refusal.NOT_A_TIME, "a comma"),
    Row("2026-12-24T18:00:00." + "1" * 31 + "Z", Refusal.NOT_A_TIME, "an endless fraction"),
    Row("\uff12026-12-24T18:00:00Z", Refusal.NOT_A_TIME, "a full-width digit"),
    Row("", Refusal.NOT_A_TIME, "the empty string"),
    Row("2" * 10_000_000, Refusal.NOT_A_TIME, "10 MB of digits"),
)
