"""A sandbox for a real node: a separate network, mounts, processes and control group.

A node's programs write iptables rules, mount file systems, start processes that outlive them, and
change kernel settings. In the sandbox, all of that ends with one process. The reaper, which
survives even a kill of the launcher, removes the rest.
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
"""The programs that a node needs, with their Debian packages."""
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
"""Machine-wide settings that a kubelet changes, or that it needs raised."""
CONTROLLERS = frozenset({"cpu", "cpuset", "hugetlb", "memory", "pids"})
"""The cgroup v2 controllers that a kubelet requires if the machine has them."""
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_INSTANCES = 1024  # a node's programs use dozens; Debian allows 128 per user


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The resources of a node in the sandbox."""

    directory: Path
    """Removed at the end."""
    cgroup: str
    """The control group's name in every hierarchy, removed at the end."""


def inside() -> Sandbox:
    """Return the resources of this sandbox. Raises ControlPlaneError outside a sandbox."""
    directory = os.environ.get(_VARIABLE)
    if directory is None:
        raise ControlPlaneError(
            "a real node runs only in a sandbox: run `make test-node`, or any other command with "
            "`python -m controlplane sandbox -- COMMAND`"
        )
    return Sandbox(Path(directory), Path(directory).name)


def run(command: Sequence[str]) -> int:
    """Run a command in a new sandbox, and return its exit status.

    Waits until no other sandbox is running. Raises ControlPlaneError if this machine or user cannot
    create one.
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
    directory.chmod(0o755)  # containers of other users access paths below it
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
    """Create the control group in the machine's hierarchies, of cgroup v1 or v2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        enable_controllers(_CGROUPS, guard)
        (_CGROUPS / name).mkdir()
        return
    for hierarchy in _CGROUPS.iterdir():
        if (hierarchy / "cgroup.procs").exists() and not hierarchy.is_symlink():
            (hierarchy / name).mkdir()
            _inherit_cpus(hierarchy, name)


def enable_controllers(root: Path, guard: Guard) -> None:
    """Enable the controllers that a kubelet requires for groups below a cgroup v2 root.

    A kubelet rejects a group without a controller that the machine has, and systemd enables fewer.
    Raises ControlPlaneError if they cannot be enabled.
    """
    available = set((root / "cgroup.controllers").read_text().split())
    control_file = root / "cgroup.subtree_control"
    missing = sorted(available & CONTROLLERS - set(control_file.read_text().split()))
    if not missing:
        return
    guard.writes(control_file, " ".join(f"-{controller}" for controller in missing))
    try:
        control_file.write_text(" ".join(f"+{controller}" for controller in missing))
    except OSError as error:
        raise ControlPlaneError(
            f"a real node needs the cgroup controllers {', '.join(missing)}, which cannot be "
            f"enabled in {control_file} ({os.strerror(error.errno or 0)}); run this on a "
            "dedicated machine or VM, not in a container"
        ) from error


def _inherit_cpus(hierarchy: Path, name: str) -> None:
    """Copy the parent's CPUs and memory nodes to the group; otherwise no process can join it."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (hierarchy / setting).exists():
            (hierarchy / name / setting).write_text((hierarchy / setting).read_text())


def _tell(text: str) -> None:
    sys.stderr.write(f"controlplane: {text}\n")
