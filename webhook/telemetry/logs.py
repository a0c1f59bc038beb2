"""Logging to standard error, as text or JSON: one line per record.

A record may carry fields (`extra=fields(...)`), which only JSON shows. Tokens and keys are never
logged; users' values are shortened.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from holdfast.webhook.model import messages

Format = Literal["text", "json"]
"""The format of log lines."""

_FIELDS = "holdfast_fields"
Value = str | int | float | bool | None


def fields(**values: Value) -> dict[str, Mapping[str, Value]]:
    """Return the `extra` argument of a log call, with fields for JSON."""
    return {_FIELDS: values}


class OneLine(logging.Formatter):
    """Formats a record as one line, with line breaks and control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record and its traceback."""
        return messages.escape(super().format(record).replace("\\", "\\\\"))


class Json(logging.Formatter):
    """Formats a record as one line of JSON, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, its fields and its traceback."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra_fields = getattr(record, _FIELDS, {})
        line |= {key: value for key, value in extra_fields.items() if key not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(level: str = "info", form: Format = "text") -> None:
    """Configure logging to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(Json() if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("holdfast").setLevel(level.upper())
    # asyncio logs a warning for each response to a disconnected client
    logging.getLogger("asyncio").setLevel(logging.ERROR)
