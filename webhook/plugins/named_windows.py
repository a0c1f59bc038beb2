"""Windows of the configuration file. Pure."""

from __future__ import annotations

from typing import Annotated

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Args
from holdfast.webhook.model.calendar import windows
from holdfast.webhook.model.calendar.window_calendar import Windows


class NamedWindow(Args, frozen=True, omit_defaults=True):
    """A window that pods name."""

    name: arg_types.RuleName
    """A unique name."""
    open: Annotated[tuple[str, ...], arg_types.SOME]
    """When it is open: days and hours, such as `Mon-Fri 22:00-06:00`."""
    closed: Annotated[tuple[str, ...], arg_types.ONCE] = ()
    """Dates on which it does not open, such as `2026-12-24`, or `2026-12-24/2027-01-01` for a range
    with both dates. It is closed from 00:00 to 24:00, and for the rest of a night that starts
    on such a date."""
    time_zone: str = "UTC"
    """The IANA time zone of hours and dates, such as `Europe/Berlin`."""

    def windows(self, path: str) -> Windows:
        """Convert the fields. Raises ConfigurationError, which names the path in args.

        Raises UndecidedError if this machine has no time zone data.
        """
        zone = arg_types.parsed(windows.parse_zone, self.time_zone, f"{path}.timeZone")
        if not self.open:
            raise ConfigurationError(f"{path}.open: must not be empty: add hours")
        openings = [
            arg_types.parsed(lambda text: windows.parse(text, zone), text, f"{path}.open[{index}]")
            for index, text in enumerate(self.open)
        ]
        closed = [
            arg_types.parsed(windows.parse_dates, text, f"{path}.closed[{index}]")
            for index, text in enumerate(self.closed)
        ]
        return Windows(
            tuple(hours for opening in openings for hours in opening.hours), tuple(closed)
        )
