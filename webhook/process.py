"""What a process tells and is told: when to end, and that it is ready."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop`, from a thread of its own, at SIGINT and SIGTERM."""

    def handle(_number: int, _frame: object) -> None:
        # not here: the interrupted code may hold the very lock that stopping needs
        threading.Thread(target=stop, name="stop").start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def on_end_of_stdin(stop: Callable[[], None]) -> None:
    """Call `stop` when standard input ends, as it does when a parent is killed."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
        stop()

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def write_whole(path: Path, text: str) -> None:
    """Write a file that no reader can see half-written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
