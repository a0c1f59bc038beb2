"""Outlive the launcher, however it ends, and clear up what it leaves.

Runs as its own script, with the standard library alone. It reads lines from standard input:
`process PID START` names a process to end, `remove PATH` a folder to remove, `cgroup NAME` a
control group to remove with all below it, `write PATH VALUE` a setting of the kernel's to put
back. At the end of input, which comes even when the launcher is killed, it does so. A process is
known by its start time too, so that one which has got the same id since is never hit.
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
"""Seconds from TERM to KILL: no process is left that would wait longer for an orderly shutdown."""
_DEATH = 5.0  # seconds that a killed process may take to go
_POLL = 0.05  # seconds
_PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
"""Where control groups lie: one tree, or in the older version one for each controller."""


def start_time(pid: int) -> str | None:
    """Return when a process started, in the system's own terms; None if it is gone or a zombie."""
    if _PROC.is_dir():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the name before may hold blanks and brackets
        return None if fields[0] in "ZX" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else "_".join(started.split())


def end(processes: dict[int, str]) -> None:
    """Send TERM, then KILL, to each process that is still the one that it was."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, _DEATH)):
        _send(processes, number)
        _send(processes, signal.SIGCONT)
        deadline = time.monotonic() + patience
        while _alive(processes) and time.monotonic() < deadline:
            time.sleep(_POLL)


@dataclass
class Leftovers:
    """Processes, files and settings to clean up."""

    processes: dict[int, str] = field(default_factory=dict)
    """Process id to start time."""
    folders: list[Path] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    settings: dict[Path, str] = field(default_factory=dict)
    """A file of the kernel's to what it said."""


def read(lines: Iterable[str]) -> Leftovers:
    """Read what is to be cleared up; a line cut short by the launcher's end is skipped."""
    found = Leftovers()
    for line in lines:
        kind, _, rest = line.removesuffix("\n").partition(" ")
        first, _, second = rest.partition(" ")
        if not line.endswith("\n"):
            continue
        if kind == "process":
            found.processes[int(first)] = second
        elif kind == "remove":
            found.folders.append(Path(rest))
        elif kind == "cgroup":
            found.cgroups.append(rest)
        elif kind == "write":
            found.settings[Path(first)] = second
    return found


def remove_cgroup(name: str, root: Path = CGROUPS) -> None:
    """Remove a control group, with all below it, from every hierarchy; wait for its members."""
    deadline = time.monotonic() + _DEATH
    for top in (root / name, *root.glob(f"*/{name}")):
        below = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        while below and time.monotonic() < deadline:
            below = [folder for folder in below if not _removed(folder)]
            if below:
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
    """Wait for the launcher's end, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    found = read(sys.stdin)
    end(found.processes)
    for name in found.cgroups:
        remove_cgroup(name)
    for path, value in found.settings.items():
        with suppress(OSError):
            path.write_text(value, encoding="utf-8")
    for folder in found.folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
