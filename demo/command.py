"""Run a `holdfast` command as a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

START_SECONDS = 40.0
STOP_SECONDS = 25.0
_ANY = {"[::]", "0.0.0.0"}  # noqa: S104


class CommandError(Exception):
    """The command failed; the message includes the end of its log."""


class Command:
    """A `holdfast` process, as a context manager that stops it on exit.

    Output goes to `log`; `address` is the address that the command listens on. The command exits
    with this process, even if this process is killed. A test may run another `module`, and add
    variables to the `environment`.
    """

    def __init__(
        self,
        *arguments: str,
        log: Path,
        module: str = "webhook",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._arguments = arguments
        self._module = module
        self._environment = environment
        self.log = log
        self.address = ""
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-command-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def was_started(self) -> bool:
        """Whether the process was started, and not killed or stopped since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process ID. Raises CommandError if the process is not running."""
        return self._running().pid

    def start(self) -> None:
        """Start the process, and wait until it is ready. Raises CommandError if it fails."""
        ready = Path(self._folder.name) / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", self._module, *self._arguments]
        command += ["--ready-file", str(ready), "--exit-with-stdin"]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        self._await(ready)
        host, _, port = ready.read_text().strip().rpartition(":")
        self.address = f"127.0.0.1:{port}" if host in _ANY else f"{host}:{port}"

    def check(self) -> None:
        """Raise CommandError if the process has exited by itself."""
        status = self._running().poll()
        if status is not None:
            raise CommandError(f"{self._shown()} exited with status {status}:\n{self.tail()}")

    def kill(self) -> None:
        """Kill the process without warning, as a power failure would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the process as Ctrl-C does, and return its exit status."""
        return self._end(signal.SIGINT)

    def terminate(self) -> int:
        """Terminate the process as the kubelet does, and return its exit status."""
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """Stop the process if it runs, and remove its temporary files."""
        if self.was_started:
            self.stop()
        self._folder.cleanup()

    def tail(self, lines: Sequence[str] = (), count: int = 15) -> str:
        """Return the last `count` lines of the log, or of `lines` if given."""
        lines = lines or self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-count:])

    def _await(self, ready: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            self.check()
            if time.monotonic() > deadline:
                raise CommandError(
                    f"{self._shown()} is not ready after {START_SECONDS:.0f} s:\n{self.tail()}"
                )
            time.sleep(0.02)

    def _end(self, number: signal.Signals) -> int:
        process = self._running()
        process.send_signal(number)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
        return status

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise CommandError(f"{self._shown()} is not running")
        return self._process

    def _shown(self) -> str:
        return " ".join(("holdfast", *self._arguments))
