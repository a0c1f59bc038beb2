"""Logging: one line a record, on standard error, whatever a message contains."""

from __future__ import annotations

import logging
import sys


class OneLine(logging.Formatter):
    """Writes each record as one line; what would break the line is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record, with its traceback folded into the same line."""
        text = super().format(record)
        text = text.replace("\\", "\\\\")
        if text.isprintable():
            return text
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def set_up(level: str = "INFO") -> None:
    """Send the records of Holdfast and its libraries to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("holdfast").setLevel(level)
