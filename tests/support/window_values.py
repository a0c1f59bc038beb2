"""Values of `holdfast.dev/window` with their meaning, for tests and pages."""

import enum
from typing import NamedTuple


class WindowRefusal(enum.StrEnum):
    """Why a value is rejected, and what the message says."""

    EMPTY = "empty: use windows like"
    EMPTY_WINDOW = "empty window: use windows like"
    UNKNOWN_DAY = "unknown day"
    DAYS_WITHOUT_HOURS = "have no hours"
    INVALID_HOURS = "invalid hours"
    BLANKS_IN_HOURS = "blanks around a dash"
    DAYS_AFTER_HOURS = "after the hours: use"
    HOURS_WITHOUT_LENGTH = "are empty: use 00:00-24:00"
    UNKNOWN_TIME_ZONE = "unknown time zone"
    TOO_MANY_WORDS = "unexpected"
    DAYS_OF_SOME_WINDOWS = "only some windows have days"
    TIME_ZONES_OF_SOME_WINDOWS = "only some windows have a time zone"
    TOO_LONG = "longer than 1,000 characters"
    TOO_MANY_WINDOWS = "more than 20 windows"

    @property
    def in_words(self) -> str:
        return self.name.replace("_", " ").lower()


class WindowRow(NamedTuple):
    """A value, either its canonical form or why it is rejected, and what the row demonstrates."""

    value: str
    outcome: str | WindowRefusal
    note: str


WINDOWS: tuple[WindowRow, ...] = (
    WindowRow("22:00-06:00", "22:00-06:00 UTC", "every day, in UTC"),
    WindowRow("Mon-Fri 22:00-06:00 Europe/Berlin", "Mon-Fri 22:00-06:00 Europe/Berlin", "all"),
    WindowRow("Mon 8:00-9:30", "Mon 08:00-09:30 UTC", "a day, and an hour of one digit"),
    WindowRow("sat-MON 00:00-24:00", "Sat-Mon 00:00-24:00 UTC", "over Sunday, in any case"),
    WindowRow("Fri-Thu 08:00-09:00", "08:00-09:00 UTC", "a range that is the week"),
    WindowRow("Mon-Mon 08:00-09:00", "Mon 08:00-09:00 UTC", "a range of one day"),
    WindowRow("Sun,Sat 08:00-09:00", "Sat-Sun 08:00-09:00 UTC", "days with a comma"),
    WindowRow("Mon,Wed-Thu,Fri 08:00-09:00", "Mon,Wed-Fri 08:00-09:00 UTC", "days and ranges"),
    WindowRow(
        "Mon-Fri 22:00-06:00, Sat, Sun 00:00-24:00 Japan",
        "Mon-Fri 22:00-06:00, Sat-Sun 00:00-24:00 Japan",
        "two windows with one zone",
    ),
    WindowRow("1:00-2:00 Japan,3:00-4:00 UTC", "01:00-02:00 Japan, 03:00-04:00 UTC", "two zones"),
    WindowRow("22:00-00:00 Etc/GMT+5", "22:00-24:00 Etc/GMT+5", "until midnight"),
    WindowRow("  08:00-09:00  UTC ", "08:00-09:00 UTC", "more blanks"),
    WindowRow("", WindowRefusal.EMPTY, "the empty string"),
    WindowRow("  ", WindowRefusal.EMPTY, "blanks"),
    WindowRow("08:00-09:00,", WindowRefusal.EMPTY_WINDOW, "a comma behind"),
    WindowRow("Mon-Fry 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "a typing error"),
    WindowRow("Monday 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "a long name"),
    WindowRow("Mon- 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "a range without an end"),
    WindowRow("Mon-Tue-Wed 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "a range of three"),
    WindowRow("\u017fun 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "a long s"),
    WindowRow("Europe/Berlin 08:00-09:00", WindowRefusal.UNKNOWN_DAY, "the zone before the hours"),
    WindowRow("Sat", WindowRefusal.DAYS_WITHOUT_HOURS, "a day alone"),
    WindowRow("Sat, 08:00-09:00", WindowRefusal.DAYS_WITHOUT_HOURS, "a day, then hours"),
    WindowRow("08:00", WindowRefusal.INVALID_HOURS, "a start alone"),
    WindowRow("8-9", WindowRefusal.INVALID_HOURS, "hours without minutes"),
    WindowRow("Mon 08:00 -09:00", WindowRefusal.BLANKS_IN_HOURS, "a blank within hours"),
    WindowRow("Mon - Fri 08:00-09:00", WindowRefusal.BLANKS_IN_HOURS, "blanks within days"),
    WindowRow("08:00-09:00 Mon-Fri UTC", WindowRefusal.DAYS_AFTER_HOURS, "the hours first"),
    WindowRow("08:00-09:00 Sat", WindowRefusal.DAYS_AFTER_HOURS, "the hours first, without zone"),
    WindowRow("08:00\u201309:00", WindowRefusal.INVALID_HOURS, "a typographic dash"),
    WindowRow("24:00-06:00", WindowRefusal.INVALID_HOURS, "24:00 as a start"),
    WindowRow("22:00-24:01", WindowRefusal.INVALID_HOURS, "after 24:00"),
    WindowRow("08:60-09:00", WindowRefusal.INVALID_HOURS, "a 60th minute"),
    WindowRow("08:00-09:00\n", WindowRefusal.INVALID_HOURS, "a line break behind"),
    WindowRow("0\uff18:00-09:00", WindowRefusal.INVALID_HOURS, "a full-width digit"),
    WindowRow("08:00-08:00", WindowRefusal.HOURS_WITHOUT_LENGTH, "no time at all"),
    WindowRow("08:00-09:00 Europe/Berln", WindowRefusal.UNKNOWN_TIME_ZONE, "a typing error"),
    WindowRow("08:00-09:00 Europe", WindowRefusal.UNKNOWN_TIME_ZONE, "a folder"),
    WindowRow("08:00-09:00 +01:00", WindowRefusal.UNKNOWN_TIME_ZONE, "an offset"),
    WindowRow("08:00-09:00 localtime", WindowRefusal.UNKNOWN_TIME_ZONE, "the machine's zone"),
    WindowRow("08:00-09:00 ../../etc/passwd", WindowRefusal.UNKNOWN_TIME_ZONE, "a path"),
    WindowRow("08:00-09:00 UTC\x00", WindowRefusal.UNKNOWN_TIME_ZONE, "a NUL"),
    WindowRow("08:00-09:00 " + "A" * 900, WindowRefusal.UNKNOWN_TIME_ZONE, "a long zone"),
    WindowRow("08:00-09:00 New York", WindowRefusal.TOO_MANY_WORDS, "a blank within the zone"),
    WindowRow("Mon 8:00-9:00, 10:00-11:00", WindowRefusal.DAYS_OF_SOME_WINDOWS, "no days behind"),
    WindowRow("8:00-9:00 Cuba, 10:00-11:00", WindowRefusal.TIME_ZONES_OF_SOME_WINDOWS, "no zone"),
    WindowRow(
        "1:00-2:00 Cuba, 3:00-4:00, 5:00-6:00 Cuba",
        WindowRefusal.TIME_ZONES_OF_SOME_WINDOWS,
        "no zone between two",
    ),
    WindowRow(
        ",".join(["08:00-09:00"] * 20), ", ".join(["08:00-09:00"] * 20) + " UTC", "20 windows"
    ),
    WindowRow(",".join(["08:00-09:00"] * 21), WindowRefusal.TOO_MANY_WINDOWS, "21 windows"),
    WindowRow("Mon," * 249 + "Mon", WindowRefusal.DAYS_WITHOUT_HOURS, "many days"),
    WindowRow("1" * 1_000, WindowRefusal.INVALID_HOURS, "1,000 digits"),
    WindowRow("8:00-9:00," * 100_000, WindowRefusal.TOO_LONG, "1 MB of windows"),
    WindowRow("\u202e" * 1_000_000, WindowRefusal.TOO_LONG, "1 MB of overrides"),
)
