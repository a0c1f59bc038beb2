"""`python -m bench`: what one review costs, server by server.

All servers run at the same time and are measured in turn, round after round, so that whatever
else the machine does strikes them alike; the medians of the rounds are shown, and all rounds are
kept in bench/results.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.load import BODY_SIZE, CONNECTIONS
from bench.servers import SERVERS
from certs import authority

RESULTS = Path(__file__).with_name("results.json")
PATIENCE = 30.0
"""Seconds for a server to start or to end."""
WARM_UP = 500
"""Requests before the first round, which are not counted."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Running:
    """A server that runs: its name, port and master process."""

    name: str
    port: int
    master: psutil.Process

    def cpu_seconds(self) -> float:
        """Tell the CPU that master and worker have used so far."""
        processes = [self.master, *self.master.children(recursive=True)]
        times = [process.cpu_times() for process in processes]
        return sum(one.user + one.system for one in times)


@click.command()
@click.option("--rounds", default=7, show_default=True, help="How often each server is measured.")
@click.option("--requests", default=5000, show_default=True, help="Reviews in each round.")
def main(rounds: int, requests: int) -> None:
    """Measure Holdfast's server beside the usual ones: CPU, latency and throughput per review."""
    measured: dict[str, list[Figures]] = {name: [] for name in SERVERS}
    with ExitStack() as stack, Progress(console=Console(stderr=True)) as progress:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        write_pair(folder)
        servers = [stack.enter_context(run(name, folder)) for name in SERVERS]
        task = progress.add_task("rounds", total=rounds * len(servers))
        for server in servers:
            load(server, WARM_UP)
        for turn in range(rounds):
            for server in servers[turn % len(servers) :] + servers[: turn % len(servers)]:
                measured[server.name].append(measure(server, requests))
                progress.advance(task)
    medians = {name: median(figures) for name, figures in measured.items()}
    Console().print(table(medians, rounds, requests))
    RESULTS.write_text(json.dumps(report(measured, medians, requests), indent=1) + "\n", "utf-8")


def write_pair(folder: Path) -> None:
    """Write a certificate for 127.0.0.1 and its key."""
    now = datetime.now(UTC)
    ca = authority.new_ca("bench", now=now)
    pair = authority.issue(ca, common_name="bench", now=now, ip_addresses=["127.0.0.1"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


@contextmanager
def run(name: str, folder: Path) -> Iterator[Running]:
    """Run a server for as long as the context lasts. Raises ClickException if it does not start."""
    ready = folder / f"ready-{list(SERVERS).index(name)}"
    files = [str(folder / "tls.crt"), str(folder / "tls.key"), str(ready)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.servers", name, *files], stdin=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + PATIENCE
        while not (ready.exists() and ready.read_text("utf-8")):
            if process.poll() is not None or time.monotonic() > end:
                raise click.ClickException(f"{name}: did not start; see its message above")
            time.sleep(0.05)
        port = int(ready.read_text("utf-8").rpartition(":")[2])
        yield Running(name, port, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(PATIENCE)


def load(server: Running, requests: int) -> Figures:
    """Put load on a server from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", str(server.port), str(requests)],
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def measure(server: Running, requests: int) -> Figures:
    """Measure one round; the server's CPU in microseconds per review."""
    before = server.cpu_seconds()
    figures = load(server, requests)
    used = server.cpu_seconds() - before
    return {"cpu_us": used / figures["requests"] * 1e6, **figures}


def median(rounds: list[Figures]) -> Figures:
    """Take the median of each figure over the rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def table(medians: dict[str, Figures], rounds: int, requests: int) -> Table:
    """Lay the medians out for a reader."""
    title = (
        f"A review of {BODY_SIZE} bytes over TLS, {CONNECTIONS} kept-alive connections; "
        f"medians of {rounds} rounds of {requests}"
    )
    shown = Table("server", title=title)
    for heading in ("CPU/review", "p50", "p99", "reviews/s", "client"):
        shown.add_column(heading, justify="right")
    for name, figures in medians.items():
        shown.add_row(
            name,
            f"{figures['cpu_us']:.0f} µs",
            f"{figures['p50_ms']:.2f} ms",
            f"{figures['p99_ms']:.2f} ms",
            f"{figures['per_second']:.0f}",
            f"{figures['client_cpu_us']:.0f} µs",
        )
    return shown


def report(
    measured: dict[str, list[Figures]], medians: dict[str, Figures], requests: int
) -> dict[str, object]:
    """Gather the figures with what they were measured on."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            **{name: version(name) for name in ("gunicorn", "flask", "msgspec")},
        },
        "requests_per_round": requests,
        "body_bytes": BODY_SIZE,
        "connections": CONNECTIONS,
        "medians": medians,
        "rounds": measured,
    }


if __name__ == "__main__":
    main()
