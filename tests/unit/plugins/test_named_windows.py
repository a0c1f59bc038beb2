import re
from typing import Any

import pytest

from holdfast.webhook.config import conversion
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.model.calendar import windows
from holdfast.webhook.plugins.named_windows import NamedWindow

FIELDS = {"name": "nights", "open": ["Mon-Fri 22:00-06:00", "Sat 0:00-24:00"], "timeZone": "Japan"}


def test_fields_are_converted() -> None:
    named = conversion.converted(
        {**FIELDS, "closed": ["1970-01-02/1970-01-04"]}, NamedWindow, "args"
    )
    calendar = named.windows("windows[0]")

    assert calendar.hours == windows.parse("Mon-Fri 22:00-06:00, Sat 00:00-24:00 Japan").hours
    assert calendar.closed == ((1, 3),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"open": []}, "windows[0].open: must not be empty"),
        ({"open": ["1:00-2:00", "always"]}, 'windows[0].open[1]: invalid value "always"'),
        ({"open": ["1:00-2:00 Cuba"]}, "windows[0].open[0]: invalid value "),
        ({"closed": ["2026-12-24", "soon"]}, "windows[0].closed[1]: invalid value "),
        ({"timeZone": "Mars"}, 'windows[0].timeZone: unknown time zone "Mars"'),
    ],
    ids=["no hours", "invalid hours", "a zone in hours", "an invalid date", "an unknown zone"],
)
def test_error_names_the_field_path(fields: dict[str, Any], message: str) -> None:
    named = conversion.converted({**FIELDS, **fields}, NamedWindow, "args")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        named.windows("windows[0]")
