"""Outlive the launcher and clean up after it, even if it is killed.

Runs as a separate script, with only the standard library. It reads lines from standard input:
`process PID START` (a process to end), `remove PATH` (a folder to remove), `cgroup NAME` (a control
group to remove, with its children) and `write PATH VALUE` (a kernel setting to restore). It acts at
end of input, which also comes if the launcher is killed. Processes are matched by start time, too,
so a process that reuses a PID is never signaled.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL: short, because nobody waits for a graceful shutdown."""
_DEATH = 5.0  # seconds for killed processes to disappear
_POLL = 0.05  # seconds
_PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
"""The cgroup root: one tree in v2, one tree for each controller in v1."""


def start_time(pid: int) -> str | None:
    """Return a process's start time in the system's format; None if it is gone or a zombie."""
    if _PROC.is_dir():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the name before may contain spaces and brackets
        return None if fields[0] in "ZX" else fields[19]
    result = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = result.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else "_".join(started.split())


def end(processes: dict[int, str]) -> None:
    """Send SIGTERM, then SIGKILL, to each process whose start time still matches."""
    for number, timeout in ((signal.SIGTERM, GRACE), (signal.SIGKILL, _DEATH)):
        _send(processes, number)
        _send(processes, signal.SIGCONT)
        deadline = time.monotonic() + timeout
        while _alive(processes) and time.monotonic() < deadline:
            time.sleep(_POLL)


@dataclass
class Leftovers:
    """Processes, files and settings to clean up."""

    processes: dict[int, str] = field(default_factory=dict)
    """PID to start time."""
    folders: list[Path] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    settings: dict[Path, str] = field(default_factory=dict)
    """Kernel setting to the value to write."""


def read(lines: Iterable[str]) -> Leftovers:
    """Return what to clean up; skips a line that was cut off when the launcher ended."""
    leftovers = Leftovers()
    for line in lines:
        kind, _, arguments = line.removesuffix("\n").partition(" ")
        key, _, value = arguments.partition(" ")
        if not line.endswith("\n"):
            continue
        if kind == "process":
            leftovers.processes[int(key)] = value
        elif kind == "remove":
            leftovers.folders.append(Path(arguments))
        elif kind == "cgroup":
            leftovers.cgroups.append(arguments)
        elif kind == "write":
            leftovers.settings[Path(key)] = value
    return leftovers


def remove_cgroup(name: str, root: Path = CGROUPS) -> None:
    """Remove a control group and its children from every hierarchy.

    Waits up to 5 seconds for its processes to disappear.
    """
    deadline = time.monotonic() + _DEATH
    for top in (root / name, *root.glob(f"*/{name}")):
        folders = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        while folders and time.monotonic() < deadline:
            folders = [folder for folder in folders if not _removed(folder)]
            if folders:
                time.sleep(_POLL)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.is_dir()
    return True


def _alive(processes: dict[int, str]) -> list[int]:
    return [pid for pid, started in processes.items() if start_time(pid) == started]


def _send(processes: dict[int, str], number: signal.Signals) -> None:
    for pid in _alive(processes):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Wait until the launcher ends, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leftovers = read(sys.stdin)
    end(leftovers.processes)
    for name in leftovers.cgroups:
        remove_cgroup(name)
    for path, value in leftovers.settings.items():
        with suppress(OSError):
            path.write_text(value, encoding="utf-8")
    for folder in leftovers.folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
