"""A lane: a process with its own cluster that runs rows, as seen by its parent."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.faults.report import Run, read_back
from tests.faults.scenario import Fault, Result
from tests.faults.worker import END, READY

WORKER = "tests.faults.worker"
FRUGAL = {"GOGC": "400"}
"""The environment of a lane: what is written in Go takes a tenth of its time less, and twice its
memory, where it looks for garbage less often."""
TAIL = 400
"""Characters of its log in an error message."""


class LaneError(Exception):
    """A lane has ended that should not have; the text has the end of its log."""


class NoClusterError(LaneError):
    """Its cluster did not come up."""


class Lane:
    """Runs rows on its own cluster, from `open` to `close`.

    Output of the process is appended to `log`.
    """

    def __init__(self, whole: Run, log: Path, *, broken: str = "") -> None:
        self._log = log
        self._from = 0
        self._command = [sys.executable, "-m", WORKER, "--seed", str(whole.seed)]
        self._command += ["--short"] if whole.short else []
        self._command += ["--broken", broken] if broken else []
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Start it, and wait for its cluster. Raises NoClusterError where none comes up."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as log:
            self._from = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**FRUGAL, **os.environ},
                start_new_session=True,  # it ends on request, not by Ctrl-C
            )
        if self._answer() != READY:
            raise NoClusterError(self._said("no cluster"))

    def run(self, fault: Fault) -> Result:
        """Run a row. Raises LaneError where the process ends meanwhile."""
        try:
            self._tell(fault.name)
        except (OSError, ValueError) as exc:  # the latter where the pipe was closed on this side
            raise LaneError(self._said("the lane had ended")) from exc
        answer = self._answer()
        if not answer:
            raise LaneError(self._said("the lane has ended"))
        return read_back(json.loads(answer), fault)

    def break_off(self) -> None:
        """Abort it; a caller that waits for a row gets a LaneError."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the lane's process, and wait until it has ended."""
        if (process := self._process) is not None:
            with suppress(OSError, ValueError):
                self._tell(END)
            self.break_off()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _tell(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        print(text, file=self._process.stdin, flush=True)

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _said(self, what: str) -> str:
        own = self._log.read_bytes()[self._from :].decode(errors="replace")
        return f"{what}: {own[-TAIL:].strip()}"
