"""One component as a child process: start, watch, stop, and the faults that tests inject."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from controlplane.errors import ControlPlaneError, PortTakenError
from controlplane.guard import Guard

STOP_TIMEOUT = 10.0
"""Default time from SIGTERM to SIGKILL, in seconds."""
READY_TIMEOUT = 60.0
"""Seconds for a component to become ready: usually two or three, more on a busy machine."""
_POLL = 0.03  # seconds
_TAIL_BYTES = 8192
_TAIL_LINES = 8
_NO_INOTIFY = (
    "this user has no inotify instances left; stop programs that use them, or "
    "allow more: sudo sysctl fs.inotify.max_user_instances=1024"
)
_FOREIGN = ("ETCD_", "KWOK_", "KUBECONFIG", "KUBERNETES_")
# Waits until the parent has registered this process with the reaper. If the parent is killed
# before that, `read` fails and nothing is started.
_WAIT_THEN_RUN = 'read -r _ && exec "$@" </dev/null'


class Process:
    """A component. A restart uses the same command, and therefore the same ports."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        guard: Guard,
        is_ready: Callable[[], bool],
        before_start: Callable[[], None] = lambda: None,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._guard = guard
        self._is_ready = is_ready
        self._before_start = before_start
        self._stop_timeout = stop_timeout
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process ID. Raises ControlPlaneError if it was never started."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether it is alive, including while it is paused."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it without waiting until it is ready; its output is appended to its log."""
        if self.running:
            raise ControlPlaneError(f"{self.name} is already running; stop it first")
        self._before_start()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_THEN_RUN, self.name, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=child_environment(os.environ),
                start_new_session=True,
            )
        self._guard.ends(self._child.pid)
        with suppress(BrokenPipeError), self._child.stdin or nullcontext() as stdin:
            if stdin is not None:
                stdin.write(b"\n")

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until it is ready. Raises ControlPlaneError if it ends or takes too long."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{self.name} is not ready after {timeout:.0f} s; last lines of {self.log}:\n"
                    + tail(self.log)
                )
            time.sleep(_POLL)

    def check(self) -> None:
        """Raise ControlPlaneError, with the last lines of its log, if it has ended."""
        if self.running:
            return
        output = tail(self.log)
        kind = PortTakenError if "address already in use" in output else ControlPlaneError
        raise kind(
            f"{self.name} ended by itself with exit code {self._started().returncode}; "
            f"last lines of {self.log}:\n{output}"
            + (f"\n{_NO_INOTIFY}" if "inotify" in _end(self.log) else "")
        )

    def terminate(self) -> None:
        """Send SIGTERM without waiting; a paused process is resumed to handle it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Terminate it, wait, and kill it after the stop timeout; does nothing if it has ended."""
        if self._child is None:
            return
        self.terminate()
        try:
            self._child.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL, like a crash, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._started().wait()

    def pause(self) -> None:
        """Suspend it: it keeps its connections and does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it after a pause."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop it if it runs, start it again, and wait until it is ready."""
        self.stop()
        self.start()
        self.wait_ready()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise ControlPlaneError(f"{self.name} was never started; start the control plane first")
        return self._child

    def _signal(self, number: signal.Signals) -> None:
        self._started().send_signal(number)


def tail(log: Path) -> str:
    """Return the last lines of a log, indented."""
    lines = _end(log).splitlines()
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:]) or "  (empty)"


def _end(log: Path) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"(cannot be read: {error})"


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that components would read as settings."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
