"""Stored help of each command, because importing a command takes three times as long.

`python -m docs.generate` writes `help.json`.
"""

import json
import pkgutil
import shutil
from collections.abc import Sequence

WIDTH = 80
"""The width of the stored texts, in columns."""
_FLAGS = ("--help", "-h")


def read(args: Sequence[str], program: str) -> str | None:
    """Return the stored help for these arguments, or None if it has to be generated."""
    if args[-1] not in _FLAGS or shutil.get_terminal_size().columns < WIDTH:
        return None
    texts: dict[str, str] = json.loads(pkgutil.get_data(__package__, "help.json") or "{}")
    text = texts.get(" ".join(args[:-1]))
    return text and text.replace("Usage: holdfast", f"Usage: {program}", 1)
