"""The shortest period of a CronJob's schedule.

The syntax is that of robfig/cron v3, which Kubernetes uses: five fields, a macro or `@every`.
"""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations

_EVERY = "@every "
_ZONES = ("TZ=", "CRON_TZ=")
"""Prefixes that CronJobs of older clusters may have; the period does not depend on the zone."""
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY = 86_400
_LONGEST = 1_000
"""Maximum characters of a schedule that is parsed. A list of all minutes has 169; Kubernetes
accepts a megabyte, which takes seconds to parse."""
_SHORTEST_MONTH = 28


def shortest_period(schedule: str) -> int | None:
    """Return the shortest time between two runs, in seconds; None if it cannot be determined.

    Months are ignored, so the period may in fact be longer.
    """
    if len(schedule) > _LONGEST:
        return None
    if schedule.startswith(_ZONES):
        schedule = schedule.partition(" ")[2]
    schedule = schedule.strip()
    if schedule.startswith(_EVERY):
        return _every(schedule.removeprefix(_EVERY))
    fields = _MACROS.get(schedule, schedule).split()
    if len(fields) != 5:
        return None
    try:
        minutes = _values(fields[0], 0, 59)
        hours = _values(fields[1], 0, 23)
        days = _values(fields[2], 1, 31)
        weekdays = _values(fields[4].lower(), 0, 6, _WEEKDAYS)
    except ValueError:
        return None
    times = [hour * 3_600 + minute * 60 for hour in hours for minute in minutes]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return min([*gaps, times[0] + _days_apart(days, weekdays) * _DAY - times[-1]])


def _every(duration: str) -> int | None:
    """Return the seconds of a Go duration as robfig/cron rounds them: down, but at least 1."""
    try:
        return max(1, durations.parse_delay(duration) // 1_000)
    except InvalidValueError:
        return None


def _days_apart(days: Sequence[int], weekdays: Sequence[int]) -> int:
    """Return the fewest days between matching days; if both fields are set, either one matches."""
    if len(weekdays) == len(_WEEKDAYS):
        cycle, length = days, _SHORTEST_MONTH
    elif len(days) == 31:
        cycle, length = weekdays, len(_WEEKDAYS)
    else:
        return 1
    return max(1, min(later - earlier for earlier, later in pairwise([*cycle, cycle[0] + length])))


def _values(field: str, low: int, high: int, names: Sequence[str] = ()) -> list[int]:
    """Return the values that a field selects, in order. Raises ValueError if it is invalid."""
    values: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if first in {"*", "?"}:
            start, end = low, high
        else:
            start = _number(first, names)
            end = _number(last, names) if dash else high if slash else start
        if not low <= start <= end <= high or (slash and int(step) < 1):
            raise ValueError(field)
        values.update(range(start, end + 1, int(step) if slash else 1))
    return sorted(values)


def _number(text: str, names: Sequence[str]) -> int:
    return names.index(text) if text in names else int(text)
