"""The sandbox of a real node leaves nothing behind, however it ends. Runs outside the sandbox."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import cache, node_sandbox

_PROGRAM = """
import sys, time
from controlplane import ControlPlane, node_plan, node_sandbox
from controlplane.node import Node

POD = '''
apiVersion: v1
kind: Pod
metadata: {name: real}
spec:
  containers: [{name: main, image: "%s", imagePullPolicy: Never}]
'''
with ControlPlane(nodes=0, address=node_plan.GATEWAY) as plane, Node(plane) as node:
    plane.kubectl("apply", "-f", "-", stdin=POD % node_plan.PAUSE_IMAGE)
    plane.kubectl("wait", "--for=condition=Ready", "pod/real", "--timeout=60s")
    print(node_sandbox.inside().directory, flush=True)
    time.sleep(float(sys.argv[1]))
"""
_PATIENCE = 90.0  # seconds


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "controlplane", "sandbox", "--", *arguments]


@pytest.fixture
def kernel() -> Iterator[None]:
    """Check that mounts, iptables rules and kernel settings are restored."""

    def seen() -> tuple[str, str, list[str]]:
        rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True)
        settings = [(Path("/proc/sys") / name).read_text() for name in node_sandbox.KERNEL_SETTINGS]
        lines = [line for line in rules.stdout.splitlines() if not line.startswith("#")]
        return Path("/proc/mounts").read_text(), "\n".join(lines), settings

    state_before = seen()
    yield
    assert seen() == state_before


def leftovers(name: str) -> list[str]:
    """Return the leftover folders, control groups and processes of a sandbox."""
    entries = [
        str(Path(folder) / name)
        for folder, folders, _ in os.walk("/sys/fs/cgroup")  # folders may disappear during the walk
        if name in folders
    ]
    entries += [str(path) for path in Path("/tmp").glob(name)]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        entries += [command_line] if name in command_line else []
    return entries


def eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_sandbox_runs_a_pod_and_cleans_up(kernel: None) -> None:
    process = subprocess.run(
        command(sys.executable, "-c", _PROGRAM, "0"), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert leftovers(Path(process.stdout.strip()).name) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_terminated_sandbox_is_cleaned_up(number: signal.Signals, kernel: None) -> None:
    with subprocess.Popen(
        command(sys.executable, "-c", _PROGRAM, "600"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = Path(process.stdout.readline().strip()).name
        assert len(leftovers(name)) > 3
        os.kill(process.pid, number)
        process.wait(_PATIENCE)
        eventually(lambda: leftovers(name) == [])


def test_exit_status_is_that_of_the_command() -> None:
    assert subprocess.run(command("sh", "-c", "exit 7"), check=False).returncode == 7


def test_only_one_sandbox_runs_at_a_time() -> None:
    with (
        cache.locked(cache.root() / "sandbox.lock"),
        subprocess.Popen(command("true"), stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        assert "waiting for another sandbox" in process.stderr.readline()
        process.terminate()
