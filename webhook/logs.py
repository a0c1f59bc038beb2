"""Logging: one line a record, on standard error, whatever a message contains.

As text for people, or as JSON for programs. A record may carry fields beside its message
(`extra=fields(...)`); text leaves them out, since its messages say the same. No record holds a
token or a key: what is logged are names, UIDs, and users' values, shortened.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]
"""How lines are written."""

_FIELDS = "holdfast_fields"
Value = str | int | float | bool | None


def fields(**values: Value) -> dict[str, Mapping[str, Value]]:
    """Make the `extra` of a record: what a program should not have to read out of the message."""
    return {_FIELDS: values}


class OneLine(logging.Formatter):
    """Writes each record as one line; what would break the line is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record, with its traceback folded into the same line."""
        text = super().format(record)
        text = text.replace("\\", "\\\\")
        if text.isprintable():
            return text
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Json(logging.Formatter):
    """Writes each record as one JSON object, in ASCII: nothing in it can break the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record, its fields beside its message."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        carried = getattr(record, _FIELDS, {})
        line |= {key: value for key, value in carried.items() if key not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(level: str = "info", form: Format = "text") -> None:
    """Send the records of Holdfast and its libraries to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(Json() if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("holdfast").setLevel(level.upper())
    # it warns of each answer to a client that has left: as many lines as that client likes
    logging.getLogger("asyncio").setLevel(logging.ERROR)
