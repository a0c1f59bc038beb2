"""Report the progress of a build: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines about one step: shows progress in a CI log without flooding it."""


@dataclass(frozen=True, slots=True)
class Step:
    """The current step, and how much of it is done."""

    what: str
    done: int = 0
    total: int | None = None


Report = Callable[[Step], None]


class PlainReport:
    """Writes a line when a step begins, and then one every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._what = ""
        self._next = 0.0

    def __call__(self, step: Step) -> None:
        """Write the step if it is new, or if ten seconds have passed."""
        now = self._clock()
        if step.what == self._what and now < self._next:
            return
        self._what, self._next = step.what, now + PLAIN_INTERVAL
        count = f" {step.done}" if step.done or step.total else ""
        total = f"/{step.total}" if step.total is not None else ""
        self._stream.write(f"controlplane: {step.what}{count}{total}\n")
        self._stream.flush()


class BarReport:
    """Shows the current step as a bar, which appears with the first step."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task("", total=None)
        self._what = ""

    def __call__(self, step: Step) -> None:
        """Update the bar; a new step restarts it."""
        self._progress.start()
        if step.what != self._what:
            self._what = step.what
            self._progress.reset(self._task, total=step.total, description=step.what)
        self._progress.update(self._task, completed=step.done, total=step.total)

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        self._progress.stop()


@contextmanager
def console_report(stream: TextIO | None = None) -> Iterator[Report]:
    """Yield a report for `stream` (default: standard error); it is silent until the first step."""
    out = stream or sys.stderr
    if not out.isatty():
        yield PlainReport(out)
        return
    bar = BarReport(out)
    try:
        yield bar
    finally:
        bar.close()
