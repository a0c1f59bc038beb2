"""Clients of the admission server stall, drip, and flood; the API server wants its answers."""

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
from tests.faults.rows.webhook import family
from tests.faults.scenario import Scenario, Table
from tests.faults.testbed import PRE_STOP_SECONDS, leads
from tests.server.test_memory import allowed, peak

FAULTS = Table(2)

P99 = 1.0
"""Seconds: the API server's own histogram has a bucket that ends there."""
GROWTH = 200.0
"""MB by which a replica may grow: a thousand connections at 0.16 MB, and what they have sent."""
MANY, ENOUGH = 14.0, 10.0
"""How many times its capacity a replica is asked for, and how many it has to come to."""
FEW = 8
"""Threads and files that a controller may need more for other things meanwhile."""
CLIENTS = 200
"""Connections of the flood."""
SPARED = 100
"""Of a thousand clients, those that need not be connected at the same time as the others: a replica
keeps at most this many connections, and the API server's are among them."""
_BUCKET = re.compile(
    r"^apiserver_admission_webhook_admission_duration_seconds_bucket"
    r'\{name="[^"]*holdfast[^"]*",.*le="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


@contextmanager
def alone(scenario: Scenario) -> Iterator[None]:
    """Leave the first replica alone with all reviews: else half of them meet one at rest."""
    testbed = scenario.testbed
    testbed.resting.add(1)
    testbed.installed.join(1, testbed.installed.ports[1], ready=False)
    scenario.go_on(PRE_STOP_SECONDS)
    testbed.replicas[1].terminate()
    try:
        yield
    finally:
        testbed.revive(1)


@contextmanager
def crowd(address: str, *orders: str) -> Iterator[subprocess.Popen[str]]:
    """Run clients against an address while the block lasts; it begins when all are connected."""
    module = f"tests.faults.{'flood' if '@' in orders[0] else 'client_load'}"
    command = [sys.executable, "-m", module, address, *orders]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()


def measured(scenario: Scenario, seconds: float, short: float, *orders: str) -> Mapping[str, float]:
    """Run clients for a while, check what the API server sees, and return what they counted."""
    processes = family(scenario.testbed.replicas[0].pid)
    with alone(scenario), crowd(scenario.testbed.replicas[0].address, *orders) as process:
        had = forget_peaks(processes)
        before = buckets(scenario)
        scenario.go_on(seconds, short)
        after = buckets(scenario)
        most = sum(map(peak, processes))
        account = told(process)
    reviews = after["+Inf"] - before["+Inf"]
    within = after[f"{P99:g}"] - before[f"{P99:g}"]
    slower = (reviews - within) / reviews if reviews else 1.0
    scenario.figures["reviews"] = scenario.figures.get("reviews", 0) + reviews
    scenario.check("share of reviews over 1 s", slower, 0.01)
    scenario.check("MB of growth", (most - had) / 1e6, GROWTH)
    scenario.check("peak MB", most / 1e6, allowed() / 1e6)
    return account


def told(clients: subprocess.Popen[str]) -> Mapping[str, float]:
    """End the clients, and give their own account."""
    assert clients.stdin is not None
    clients.stdin.close()
    assert clients.stdout is not None
    return dict(json.loads(clients.stdout.read()))


def forget_peaks(processes: Iterable[psutil.Process]) -> int:
    """Begin again with the most that processes have had, and give what they have now: bytes."""
    for each in processes:
        Path(f"/proc/{each.pid}/clear_refs").write_text("5")
    return sum(each.memory_info().rss for each in processes)


def buckets(scenario: Scenario) -> Counter[str]:
    """Count the reviews by how long the API server waited for them, cumulatively."""
    found: Counter[str] = Counter()
    for edge, count in _BUCKET.findall(scenario.testbed.plane.kubectl("get", "--raw", "/metrics")):
        found[edge] += int(float(count))
    return found


def ended(scenario: Scenario, account: Mapping[str, float], many: int, spared: int = 0) -> None:
    """Check that all clients but `spared` connected at once, and that each was disconnected."""
    scenario.check("clients that were not disconnected", account["never ended"])
    scenario.check("clients that did not connect at once", many - account["at once"], spared)


# alone, as the flood: alongside another lane 2.9 % of reviews took over 1 s
@FAULTS.row(
    "clients-stalled",
    minutes=3.0,
    alone=True,
    broken="waits-for-ever",
    caught_by="clients that were not disconnected",
)
def stalled(scenario: Scenario) -> None:
    """Have 400 connections stall in the middle of each stage.

    Then a hundred clients each send a handshake, a head, and a body, one byte a second.
    """
    many = 100 if scenario.short else 400
    for kind in ("half-a-hello", "half-a-header", "half-a-body"):
        ended(scenario, measured(scenario, 20, 12, f"{kind}={many}"), many)
    kinds = ("drip-a-hello=100", "drip-a-header=100", "drip-a-body=100")
    ended(scenario, measured(scenario, 30, 12, *kinds), 300)


# alone: alongside another lane 8.3 % of reviews took over 1 s
@FAULTS.row(
    "clients-silent",
    alone=True,
    broken="waits-for-ever",
    caught_by="clients that were not disconnected",
)
def connects(scenario: Scenario) -> None:
    """Have a thousand connections that say nothing, to a replica and to the leading controller.

    Before it a hundred clients come to the replica and go at once, as fast as they can.
    """
    measured(scenario, 15, 6, "knock=100")
    ended(scenario, measured(scenario, 30, 12, "bare=1000"), 1000, spared=SPARED)
    leader = scenario.testbed.leader()
    process = psutil.Process(leader.pid)
    threads, files = process.num_threads(), process.num_fds()
    with crowd(f"127.0.0.1:{installed.port(leader)}", "bare=1000") as clients:
        scenario.go_on(30, 8)
        scenario.check("controllers that do not answer", int(not leads(leader)))
        scenario.check("threads of a controller more", process.num_threads() - threads, FEW)
        scenario.check("files of a controller more", process.num_fds() - files, CONNECTIONS + FEW)
        account = told(clients)
    scenario.check("clients of a controller that were not disconnected", account["never ended"])


@FAULTS.row("clients-flood", alone=True, broken="reads-on", caught_by="peak MB")
def flood(scenario: Scenario) -> None:
    """Ask for ten times as many reviews as a replica answers, over two hundred connections.

    The capacity is the rate of sixteen clients that each wait for the response, or that of the
    flood, whichever is more. Of the flood, only requests that the replica's kernel accepted count.
    """
    known = measured(scenario, 5, 4, "ask=16")
    capacity = known["answers"] / known["seconds"]
    account = measured(scenario, 30, 8, f"{CLIENTS}@{MANY * capacity:.0f}")
    answered = account["answers"] / account["seconds"]
    times = account["offered"] / account["seconds"] / max(capacity, answered)
    scenario.figures["peak reviews per second"] = round(capacity)
    scenario.figures |= {f"flood: {what}": round(number, 1) for what, number in account.items()}
    scenario.figures["flood: times the capacity"] = round(times, 1)
    scenario.check("times its capacity that the flood lacks", max(0.0, ENOUGH - times))
    scenario.check("unanswered floods", int(not account["answers"]))
