"""Clients of the admission server stall, drip, or flood, while the API server needs responses."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from holdfast.webhook.telemetry.pages import CONNECTIONS
from tests.e2e import installed
from tests.faults.rows.webhook import process_tree
from tests.faults.scenario import Scenario, Table
from tests.faults.testbed import PRE_STOP_SECONDS, is_leader
from tests.server.memory import allowed, peak

FAULTS = Table()

P99 = 1.0
"""Seconds: the API server's own histogram has a bucket that ends there."""
GROWTH = 200.0
"""MB by which a replica may grow: 0.16 MB for each of a thousand connections, plus their input."""
TARGET, MINIMUM = 14.0, 10.0
"""The rate of the flood as a multiple of a replica's capacity: attempted, and required."""
FEW = 8
"""Extra threads and files that a controller may need for other work."""
CLIENTS = 200
"""Connections of the flood."""
MAX_NOT_CONNECTED = 100
"""Of a thousand clients, those that need not be connected at the same time as the others: a replica
limits its connections, which include those of the API server."""
_BUCKET = re.compile(
    r"^apiserver_admission_webhook_admission_duration_seconds_bucket"
    r'\{name="[^"]*holdfast[^"]*",.*le="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


@contextmanager
def first_replica_only(scenario: Scenario) -> Iterator[None]:
    """Send all reviews to the first replica; otherwise half of them go to an idle replica."""
    testbed = scenario.testbed
    testbed.taken_down.add(1)
    testbed.installed.join(1, testbed.installed.ports[1], ready=False)
    scenario.wait(PRE_STOP_SECONDS)
    testbed.replicas[1].terminate()
    try:
        yield
    finally:
        testbed.restart(1)


@contextmanager
def running_clients(address: str, *orders: str) -> Iterator[subprocess.Popen[str]]:
    """Run clients while the block runs; the block starts when all are connected."""
    module = f"tests.faults.{'flood' if '@' in orders[0] else 'client_load'}"
    command = [sys.executable, "-m", module, address, *orders]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def measure(scenario: Scenario, seconds: float, short: float, *orders: str) -> Mapping[str, float]:
    """Run clients for a while, check latency and memory, and return the clients' counts."""
    processes = process_tree(scenario.testbed.replicas[0].pid)
    with (
        first_replica_only(scenario),
        running_clients(scenario.testbed.replicas[0].address, *orders) as process,
    ):
        initial_bytes = reset_peaks(processes)
        buckets_before = buckets(scenario)
        scenario.wait(seconds, short)
        buckets_after = buckets(scenario)
        peak_bytes = sum(map(peak, processes))
        counts = stop_clients(process)
    reviews = buckets_after["+Inf"] - buckets_before["+Inf"]
    fast_reviews = buckets_after[f"{P99:g}"] - buckets_before[f"{P99:g}"]
    slow_share = (reviews - fast_reviews) / reviews if reviews else 1.0
    scenario.check("share of reviews over 1 s", slow_share, 0.01)
    scenario.check("MB of memory growth", (peak_bytes - initial_bytes) / 1e6, GROWTH)
    scenario.check("peak memory in MB", peak_bytes / 1e6, allowed() / 1e6)
    return counts


def stop_clients(clients: subprocess.Popen[str]) -> Mapping[str, float]:
    """Stop the clients, and return their counts."""
    assert clients.stdin is not None
    clients.stdin.close()
    assert clients.stdout is not None
    return dict(json.loads(clients.stdout.read()))


def reset_peaks(processes: Iterable[psutil.Process]) -> int:
    """Reset the peak memory of processes, and return the sum of their current memory in bytes."""
    for process in processes:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return sum(process.memory_info().rss for process in processes)


def buckets(scenario: Scenario) -> Counter[str]:
    """Return the API server's cumulative histogram of the durations of reviews."""
    counts: Counter[str] = Counter()
    for edge, count in _BUCKET.findall(scenario.testbed.plane.kubectl("get", "--raw", "/metrics")):
        counts[edge] += int(float(count))
    return counts


def check_disconnected(
    scenario: Scenario, counts: Mapping[str, float], client_count: int, not_connected: int = 0
) -> None:
    """Check that `client_count` clients were connected at once, and all were disconnected.

    At most `not_connected` clients may be missing.
    """
    scenario.check("clients not disconnected", counts["not disconnected"])
    scenario.check(
        "clients not connected at the same time",
        client_count - counts["connected at once"],
        not_connected,
    )


# alone, like the flood: with another lane, 2.9 % of reviews took over 1 s
@FAULTS.row(
    "clients-stalled",
    minutes=3.0,
    alone=True,
    broken="waits-for-ever",
    caught_by="clients not disconnected",
)
def stalled(scenario: Scenario) -> None:
    """Stall 400 connections in the middle of each stage.

    Then a hundred clients each send a handshake, a header, and a body, one byte a second.
    """
    client_count = 100 if scenario.short else 400
    for kind in ("half-hello", "half-header", "half-body"):
        check_disconnected(
            scenario, measure(scenario, 20, 12, f"{kind}={client_count}"), client_count
        )
    kinds = ("drip-hello=100", "drip-header=100", "drip-body=100")
    check_disconnected(scenario, measure(scenario, 30, 12, *kinds), 300)


# alone: with another lane, 8.3 % of reviews took over 1 s
@FAULTS.row(
    "clients-silent",
    alone=True,
    broken="waits-for-ever",
    caught_by="clients not disconnected",
)
def silent(scenario: Scenario) -> None:
    """Open a thousand silent connections, to a replica and to the leading controller.

    Before that, a hundred clients connect to the replica and disconnect at once, repeatedly.
    """
    measure(scenario, 15, 6, "disconnect=100")
    check_disconnected(
        scenario, measure(scenario, 30, 12, "silent=1000"), 1000, not_connected=MAX_NOT_CONNECTED
    )
    leader = scenario.testbed.leader()
    process = psutil.Process(leader.pid)
    threads, files = process.num_threads(), process.num_fds()
    with running_clients(f"127.0.0.1:{installed.port(leader)}", "silent=1000") as clients:
        scenario.wait(30, 8)
        scenario.check("controllers not responding", int(not is_leader(leader)))
        scenario.check("extra controller threads", process.num_threads() - threads, FEW)
        scenario.check("extra controller files", process.num_fds() - files, CONNECTIONS + FEW)
        counts = stop_clients(clients)
    scenario.check("controller clients not disconnected", counts["not disconnected"])


@FAULTS.row("clients-flood", alone=True, broken="reads-on", caught_by="peak memory in MB")
def flood(scenario: Scenario) -> None:
    """Send ten times as many reviews as a replica can handle, over two hundred connections.

    The capacity is the higher rate of responses, either to sixteen clients that wait for each
    response, or to the flood. Only requests that the replica's kernel has accepted count.
    """
    normal = measure(scenario, 5, 4, "reviews=16")
    capacity = normal["answers"] / normal["seconds"]
    counts = measure(scenario, 30, 8, f"{CLIENTS}@{TARGET * capacity:.0f}")
    answered = counts["answers"] / counts["seconds"]
    multiple = counts["offered"] / counts["seconds"] / max(capacity, answered)
    scenario.check("multiples of the capacity missing from the flood", max(0.0, MINIMUM - multiple))
    scenario.check("flood without a response", int(not counts["answers"]))
