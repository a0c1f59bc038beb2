"""A lane, a process that runs rows on its own cluster, seen from its parent process."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.faults.report import Run, from_dict
from tests.faults.scenario import Fault, Result
from tests.faults.worker import END, READY

WORKER = "tests.faults.worker"
GO_SETTINGS = {"GOGC": "400"}
"""Environment of a lane: with less frequent garbage collection, programs in Go need a tenth less
processor time, and twice the memory."""
TAIL = 400
"""Characters of the log in an error message."""


class LaneError(Exception):
    """A lane has ended unexpectedly; the message contains the end of its log."""


class NoClusterError(LaneError):
    """The cluster of a lane did not start."""


class Lane:
    """Runs rows on its own cluster until `close`. Call `wait_ready` first.

    Output of the process is appended to `log`.
    """

    def __init__(self, run: Run, log: Path, *, broken: str = "") -> None:
        command = [sys.executable, "-m", WORKER, "--seed", str(run.seed)]
        command += ["--short"] if run.short else []
        command += ["--broken", broken] if broken else []
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("a") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**GO_SETTINGS, **os.environ},
                start_new_session=True,  # it ends on request, not on Ctrl-C
            )

    def wait_ready(self) -> None:
        """Wait for the cluster. Raises NoClusterError if it does not start."""
        if self._receive() != READY:
            raise NoClusterError(self._with_log("no cluster"))

    def run(self, fault: Fault) -> Result:
        """Run a row. Raises LaneError if the process ends during it."""
        try:
            self._send(fault.name)
        except (OSError, ValueError) as exc:  # ValueError: the pipe was closed on this side
            raise LaneError(self._with_log("the lane had ended")) from exc
        response = self._receive()
        if not response:
            raise LaneError(self._with_log("the lane has ended"))
        return from_dict(json.loads(response), fault)

    def abort(self) -> None:
        """Abort the lane; a pending `run` raises LaneError."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process of the lane, and wait until it has ended."""
        with suppress(OSError, ValueError):
            self._send(END)
        self.abort()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        print(text, file=self._process.stdin, flush=True)

    def _receive(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _with_log(self, message: str) -> str:
        output = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        return f"{message}: {output[-TAIL:].strip()}"
