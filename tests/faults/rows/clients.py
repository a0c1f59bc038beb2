"""Clients of the admission server stall, drip, and flood; the API server wants its answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.e2e import installed
from tests.faults.arena import PRE_STOP_SECONDS, leads
from tests.faults.rows.webhook import family
from tests.faults.scene import Fault, Scene
from tests.server.test_memory import allowed, peak
from webhook.plain_server import CONNECTIONS

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
keeps so many connections at most, and the API server's are among them."""
_BUCKET = re.compile(
    r"^apiserver_admission_webhook_admission_duration_seconds_bucket"
    r'\{name="[^"]*holdfast[^"]*",.*le="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


@contextmanager
def alone(scene: Scene) -> Iterator[None]:
    """Leave the first replica alone with all reviews: else half of them meet one at rest."""
    arena = scene.arena
    arena.resting.add(1)
    arena.installed.join(1, arena.installed.ports[1], ready=False)
    scene.go_on(PRE_STOP_SECONDS)
    arena.replicas[1].terminate()
    try:
        yield
    finally:
        arena.revive(1)


@contextmanager
def crowd(address: str, *orders: str) -> Iterator[subprocess.Popen[str]]:
    """Have clients at an address while the block lasts; it begins when each has come."""
    module = f"tests.faults.{'flood' if '@' in orders[0] else 'crowd'}"
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


def measured(scene: Scene, seconds: float, short: float, *orders: str) -> Mapping[str, float]:
    """Let them in for a while, check what the API server sees, and give their own account."""
    processes = family(scene.arena.replicas[0].pid)
    with alone(scene), crowd(scene.arena.replicas[0].address, *orders) as process:
        had = forget_peaks(processes)
        before = buckets(scene)
        scene.go_on(seconds, short)
        after = buckets(scene)
        most = sum(map(peak, processes))
        account = told(process)
    reviews = after["+Inf"] - before["+Inf"]
    within = after[f"{P99:g}"] - before[f"{P99:g}"]
    slower = (reviews - within) / reviews if reviews else 1.0
    scene.figures["reviews"] = scene.figures.get("reviews", 0) + reviews
    scene.check("share of reviews over 1 s", slower, 0.01)
    scene.check("MB grown", (most - had) / 1e6, GROWTH)
    scene.check("MB at most", most / 1e6, allowed() / 1e6)
    return account


def told(clients: subprocess.Popen[str]) -> Mapping[str, float]:
    """End the clients, and give their own account."""
    assert clients.stdin is not None
    clients.stdin.close()
    assert clients.stdout is not None
    return dict(json.loads(clients.stdout.read()))


def forget_peaks(processes: Iterable[psutil.Process]) -> int:
    """Begin anew with the most that processes have had, and give what they have now: bytes."""
    for each in processes:
        Path(f"/proc/{each.pid}/clear_refs").write_text("5")
    return sum(each.memory_info().rss for each in processes)


def buckets(scene: Scene) -> Counter[str]:
    """Count the reviews by how long the API server waited for them, cumulatively."""
    found: Counter[str] = Counter()
    for edge, count in _BUCKET.findall(scene.arena.plane.kubectl("get", "--raw", "/metrics")):
        found[edge] += int(float(count))
    return found


def ended(scene: Scene, account: Mapping[str, float], many: int, spared: int = 0) -> None:
    """Check that so many clients, but for some, were there at once, and that each was ended."""
    scene.check("clients that nobody ended", account["never ended"])
    scene.check("clients that were not there at once", many - account["at once"], spared)


def stalled(scene: Scene) -> None:
    """Have 400 connections stall in the middle of each stage."""
    many = 100 if scene.short else 400
    for kind in ("half-a-hello", "half-a-header", "half-a-body"):
        ended(scene, measured(scene, 20, 12, f"{kind}={many}"), many)


def connects(scene: Scene) -> None:
    """Have a thousand connections that say nothing, to a replica and to the leading controller.

    Before it a hundred clients come to the replica and go at once, as fast as they can.
    """
    measured(scene, 15, 6, "knock=100")
    ended(scene, measured(scene, 30, 12, "bare=1000"), 1000, spared=SPARED)
    leader = scene.arena.leader()
    process = psutil.Process(leader.pid)
    threads, files = process.num_threads(), process.num_fds()
    with crowd(f"127.0.0.1:{installed.port(leader)}", "bare=1000") as clients:
        scene.go_on(30, 8)
        scene.check("controllers that do not answer", int(not leads(leader)))
        scene.check("threads of a controller more", process.num_threads() - threads, FEW)
        scene.check("files of a controller more", process.num_fds() - files, CONNECTIONS + FEW)
        account = told(clients)
    scene.check("clients of a controller that nobody ended", account["never ended"])


def dripping(scene: Scene) -> None:
    """Have a hundred clients each that send a handshake, a head, and a body, one byte a second."""
    kinds = ("drip-a-hello=100", "drip-a-header=100", "drip-a-body=100")
    ended(scene, measured(scene, 30, 12, *kinds), 300)


def flood(scene: Scene) -> None:
    """Ask for ten times as many reviews as a replica answers, over two hundred connections.

    What it answers is taken from sixteen clients that ask one after the other, or from the flood
    itself, whichever is more. Of the flood only what the replica's kernel has taken counts.
    """
    known = measured(scene, 5, 4, "ask=16")
    capacity = known["answers"] / known["seconds"]
    account = measured(scene, 30, 8, f"{CLIENTS}@{MANY * capacity:.0f}")
    answered = account["answers"] / account["seconds"]
    times = account["offered"] / account["seconds"] / max(capacity, answered)
    scene.figures["reviews a second at most"] = round(capacity)
    scene.figures |= {f"flood: {what}": round(number, 1) for what, number in account.items()}
    scene.figures["flood: times the capacity"] = round(times, 1)
    scene.check("times its capacity that the flood lacks", max(0.0, ENOUGH - times))
    scene.check("floods that were not answered", int(not account["answers"]))


FAULTS = [
    Fault(
        "clients-stalled",
        2,
        stalled,
        minutes=2.5,
        alone=True,  # as the next two: beside another lane 2.9 % of reviews took over 1 s
        broken="waits-for-ever",
        caught_by="clients that nobody ended",
        refuses=False,
        means="Handshakes are ended after 3 s, requests after 5 s; reviews are answered meanwhile.",
    ),
    Fault(
        "clients-silent",
        2,
        connects,
        broken="waits-for-ever",
        caught_by="clients that nobody ended",
        refuses=False,
        means="A thousand connections are the most; beyond, the oldest that has asked nothing "
        "makes room. A controller has 64 at its port, and releases pods meanwhile.",
    ),
    Fault(
        "clients-dripping",
        2,
        dripping,
        alone=True,
        broken="waits-for-ever",
        caught_by="clients that nobody ended",
        means="A handshake is ended after 3 s, and a request that is not whole after 5 s.",
    ),
    Fault(
        "clients-flood",
        2,
        flood,
        alone=True,
        broken="reads-on",
        caught_by="MB at most",
        refuses=False,
        means="Requests are answered in turn, the API server's among them. Of what a client sends "
        "ahead of its answers 64 KiB are read, and no more before they are taken; of one that has "
        "gone nothing is kept. Memory is bounded.",
    ),
]
