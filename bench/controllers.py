"""Run Holdfast's controller in a separate process, and read its metrics."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.servers import STOP_SECONDS, BenchError, cpu_seconds
from controlplane.ports import free_ports

START_SECONDS = 300.0
HELD = "holdfast_held_pods"
"""The metric for the number of held pods that the controller knows."""
LOOK_SECONDS = 2.0
"""Seconds between two checks for held pods. Each check is a scrape, which costs CPU."""
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Controller:
    """A running controller."""

    process: psutil.Process
    port: int

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far, in seconds."""
        return cpu_seconds([self.process])

    def rss_mb(self) -> float:
        """Return its resident memory in MiB."""
        return float(self.process.memory_info().rss) / 2**20

    def peak_rss_mb(self) -> float:
        """Return its peak resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 2**10

    def is_synced(self) -> bool:
        """Return whether it knows all held pods."""
        try:
            self._ask("/readyz")
        except OSError:
            return False
        return True

    def metric(self, name: str) -> float:
        """Scrape a metric, and return the sum of all its series."""
        lines = self._ask("/metrics").splitlines()
        series = [line for line in lines if line.partition(" ")[0].partition("{")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in series)

    def _ask(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return str(response.read(), "utf-8")


@contextmanager
def controlling(kubeconfig: Path) -> Iterator[Controller]:
    """Run a controller until the context exits, and yield it once it knows all held pods.

    Raises BenchError if it exits or is not ready in time.
    """
    port = free_ports(1)[0]
    command = [
        sys.executable,
        "-m",
        "holdfast.webhook",
        "controller",
        "--kubeconfig",
        str(kubeconfig),
    ]
    command += ["--health-host", "127.0.0.1", "--health-port", str(port)]
    command += ["--log-level", "warning"]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL)
    try:
        controller = Controller(psutil.Process(process.pid), port)
        end = time.monotonic() + START_SECONDS
        while not controller.is_synced():
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError("the controller did not start: check its output above")
            time.sleep(0.1)
        yield controller
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
