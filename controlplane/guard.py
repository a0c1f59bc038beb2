"""Run a reaper alongside the launcher, and register what it has to clean up."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from controlplane import reaper
from controlplane.errors import ControlPlaneError


class Guard:
    """The launcher's end of the reaper's pipe. Nothing else holds it, so its end is the signal."""

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
        """Have the process, a child of ours that waits, ended when we are gone."""
        self._tell(f"process {pid} {reaper.start_time(pid)}\n")

    def removes(self, folder: Path) -> None:
        """Have the folder removed when we are gone."""
        self._tell(f"remove {folder}\n")

    def removes_cgroup(self, name: str) -> None:
        """Have the control group removed when we are gone."""
        self._tell(f"cgroup {name}\n")

    def restores(self, setting: Path) -> None:
        """Have the file of the kernel's say again what it says now, when we are gone."""
        self.writes(setting, setting.read_text().strip())

    def writes(self, setting: Path, value: str) -> None:
        """Have this written into the file of the kernel's when we are gone."""
        self._tell(f"write {setting} {value}\n")

    def close(self) -> None:
        """Let the reaper do its work now, and wait for it."""
        if self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                self._reaper.stdin.close()
        self._reaper.wait()

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._reaper.stdin.write(line.encode())
            self._reaper.stdin.flush()
        except BrokenPipeError as error:
            raise ControlPlaneError(
                f"the process that clears up (pid {self._reaper.pid}) was ended by somebody; "
                "stop this control plane and start it again"
            ) from error
