"""Where a real node may run: a network, mounts, processes and its own control group.

A kubelet and its kin write iptables rules, mount, start processes that outlive them, and change
the kernel's settings. In here all of that ends with one process, and the reaper, which outlives
even a kill, removes the rest.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane import cache, node_init
from controlplane.errors import ControlPlaneError
from controlplane.guard import Guard

PACKAGES = {
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "mount": "mount",
    "unshare": "util-linux",
}
"""Each program that a node needs, and the Debian package that it comes in."""
_VARIABLE = "HOLDFAST_SANDBOX"
_CGROUPS = Path("/sys/fs/cgroup")
_NEW = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc", "--uts")
KERNEL_SETTINGS = (
    "fs/inotify/max_user_instances",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Settings that a kubelet changes for the whole machine, and those that it needs raised."""
CONTROLLERS = frozenset({"cpu", "cpuset", "hugetlb", "memory", "pids"})
"""Of control groups of version 2: what a kubelet asks for, where the machine has it."""
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_INSTANCES = 1024  # a kubelet and its kin take dozens; Debian allows 128 a user


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The resources of a node in the sandbox."""

    directory: Path
    """Removed at the end."""
    cgroup: str
    """The control group's name in every hierarchy, removed at the end."""


def inside() -> Sandbox:
    """Return the resources of the sandbox. Raises ControlPlaneError outside of a sandbox."""
    directory = os.environ.get(_VARIABLE)
    if directory is None:
        raise ControlPlaneError(
            "a real node is started in a sandbox only: run `make test-node`, or your own command "
            "by `python -m controlplane sandbox -- COMMAND`"
        )
    return Sandbox(Path(directory), Path(directory).name)


def run(command: Sequence[str]) -> int:
    """Run a command in a new sandbox and give its exit status; one sandbox at a time.

    Raises ControlPlaneError where this machine or user cannot have one.
    """
    require()
    lock = cache.root() / "sandbox.lock"
    with cache.locked(lock, lambda: _tell("waiting for another sandbox to end")):
        guard = Guard()
        try:
            return _run(command, guard)
        finally:
            guard.close()


def require() -> None:
    """Raise ControlPlaneError unless a real node can run here."""
    if sys.platform != "linux":
        raise ControlPlaneError(
            f"a real node needs Linux, and this is {sys.platform}; use a Linux machine or VM"
        )
    if os.geteuid() != 0:
        raise ControlPlaneError("a real node needs root: run it with sudo")
    missing = {package for name, package in PACKAGES.items() if shutil.which(name) is None}
    if missing:
        raise ControlPlaneError(
            f"a real node needs {', '.join(sorted(missing))}; install what is missing (Debian and "
            f"Ubuntu: apt install {' '.join(sorted(missing))})"
        )


def _run(command: Sequence[str], guard: Guard) -> int:
    directory = Path(tempfile.gettempdir()).resolve() / f"holdfast-{secrets.token_hex(6)}"
    guard.removes(directory)
    guard.removes_cgroup(directory.name)
    for name in KERNEL_SETTINGS:
        setting = Path("/proc/sys") / name
        if setting.exists():
            guard.restores(setting)
    if int(_INOTIFY.read_text()) < _INOTIFY_INSTANCES:
        _INOTIFY.write_text(str(_INOTIFY_INSTANCES))
    (directory / "tmp").mkdir(parents=True, mode=0o700)
    directory.chmod(0o755)  # containers of other users go through it
    _make_cgroup(directory.name, guard)
    child = subprocess.Popen(
        ["unshare", *_NEW, sys.executable, "-I", node_init.__file__, *command],
        env={**os.environ, _VARIABLE: str(directory), "TMPDIR": str(directory / "tmp")},
    )
    guard.ends(child.pid)
    try:
        return child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise


def _make_cgroup(name: str, guard: Guard) -> None:
    """Make the control group in each hierarchy that the machine has, of either version."""
    if (_CGROUPS / "cgroup.controllers").exists():
        enable_controllers(_CGROUPS, guard)
        (_CGROUPS / name).mkdir()
        return
    for hierarchy in _CGROUPS.iterdir():
        if (hierarchy / "cgroup.procs").exists() and not hierarchy.is_symlink():
            (hierarchy / name).mkdir()
            _inherit_cpus(hierarchy, name)


def enable_controllers(root: Path, guard: Guard) -> None:
    """Have the groups below a root of version 2 count and limit all that a kubelet asks for.

    It takes no group that lacks a controller which the machine has, and systemd enables fewer.
    Raises ControlPlaneError where they cannot be enabled.
    """
    there = set((root / "cgroup.controllers").read_text().split())
    enabling = root / "cgroup.subtree_control"
    lacking = sorted(there & CONTROLLERS - set(enabling.read_text().split()))
    if not lacking:
        return
    guard.writes(enabling, " ".join(f"-{one}" for one in lacking))
    try:
        enabling.write_text(" ".join(f"+{one}" for one in lacking))
    except OSError as error:
        raise ControlPlaneError(
            f"a real node needs the controllers {', '.join(lacking)} for its control group, and "
            f"{enabling} takes none ({os.strerror(error.errno or 0)}); run this on a "
            "dedicated machine or VM, not in a container"
        ) from error


def _inherit_cpus(hierarchy: Path, name: str) -> None:
    """Give the group the processors and memory of its parent; without, nothing can join it."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (hierarchy / setting).exists():
            (hierarchy / name / setting).write_text((hierarchy / setting).read_text())


def _tell(text: str) -> None:
    sys.stderr.write(f"controlplane: {text}\n")
