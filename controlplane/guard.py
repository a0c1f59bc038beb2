"""Run a reaper alongside the launcher, and register what it has to clean up."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from controlplane import reaper
from controlplane.errors import ControlPlaneError


class Guard:
    """The only write end of the reaper's pipe: cleanup starts when the launcher ends."""

    def __init__(self) -> None:
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", reaper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def ends(self, pid: int) -> None:
        """Register a running child process to be ended when the launcher is gone."""
        self._tell(f"process {pid} {reaper.start_time(pid)}\n")

    def removes(self, folder: Path) -> None:
        """Register a folder to be removed when the launcher is gone."""
        self._tell(f"remove {folder}\n")

    def removes_cgroup(self, name: str) -> None:
        """Register a control group to be removed when the launcher is gone."""
        self._tell(f"cgroup {name}\n")

    def restores(self, setting: Path) -> None:
        """Register a kernel setting to get its current value back when the launcher is gone."""
        self.writes(setting, setting.read_text().strip())

    def writes(self, setting: Path, value: str) -> None:
        """Register a value to be written to a kernel setting when the launcher is gone."""
        self._tell(f"write {setting} {value}\n")

    def close(self) -> None:
        """Start the cleanup now, and wait until it is done."""
        if self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                self._reaper.stdin.close()
        self._reaper.wait()

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None  # noqa: S101 - set by stdin=PIPE
        try:
            self._reaper.stdin.write(line.encode())
            self._reaper.stdin.flush()
        except BrokenPipeError as error:
            raise ControlPlaneError(
                f"the cleanup process (PID {self._reaper.pid}) has ended unexpectedly; "
                "stop this control plane and start it again"
            ) from error
