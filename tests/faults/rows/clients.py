"""Clients of the admission server stall, drip, and flood; the API server wants its answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.faults.arena import PRE_STOP_SECONDS
from tests.faults.rows.webhook import family
from tests.faults.scene import Fault, Scene

P99 = 1.0
"""Seconds: the API server's own histogram has a bucket that ends there."""
GROWTH = 200.0
"""MB by which a replica may grow: a thousand connections at 0.16 MB, and what they have sent."""
MANY, ENOUGH = 11.0, 10.0
"""How many times its capacity a replica is asked for: a bit more, for the time to connect."""
FLOODED = ("asked", "sent", "answers")
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
def crowd(scene: Scene, *orders: str) -> Iterator[subprocess.Popen[str]]:
    """Have clients at the first replica while the block lasts."""
    command = [sys.executable, "-m", "tests.faults.crowd"]
    command += [scene.arena.replicas[0].address, *orders]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()


def measured(scene: Scene, seconds: float, short: float, *orders: str) -> Mapping[str, float]:
    """Let them in for a while, check what the API server sees, and give their own account."""
    workers = family(scene.arena.replicas[0].pid)
    rss = sum(each.memory_info().rss for each in workers)
    before, most = buckets(scene), rss
    with alone(scene), crowd(scene, *orders) as process:
        for _ in range(10):
            scene.go_on(seconds / 10, short / 10)
            most = max(most, sum(each.memory_info().rss for each in workers))
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        account: dict[str, float] = json.loads(process.stdout.read())
    after = buckets(scene)
    reviews = after["+Inf"] - before["+Inf"]
    within = after[f"{P99:g}"] - before[f"{P99:g}"]
    slower = (reviews - within) / reviews if reviews else 1.0
    scene.figures["reviews"] = scene.figures.get("reviews", 0) + reviews
    scene.check("share of reviews over 1 s", slower, 0.01)
    scene.check("MB grown", (most - rss) / 1e6, GROWTH)
    return account


def buckets(scene: Scene) -> Counter[str]:
    """Count the reviews by how long the API server waited for them, cumulatively."""
    found: Counter[str] = Counter()
    for edge, count in _BUCKET.findall(scene.arena.plane.kubectl("get", "--raw", "/metrics")):
        found[edge] += int(float(count))
    return found


def stalled(scene: Scene) -> None:
    """Have 400 connections stall in the middle of each stage."""
    for kind in ("half-a-hello", "half-a-header", "half-a-body"):
        account = measured(scene, 20, 12, f"{kind}={100 if scene.short else 400}")
        scene.check("clients that nobody ended", account["never ended"])


def connects(scene: Scene) -> None:
    """Have a thousand connections that say nothing."""
    account = measured(scene, 30, 12, "bare=1000")
    scene.check("clients that nobody ended", account["never ended"])


def dripping(scene: Scene) -> None:
    """Have a hundred clients that send one byte a second."""
    account = measured(scene, 30, 12, "drip=100")
    scene.check("clients that nobody ended", account["never ended"])


def flood(scene: Scene) -> None:
    """Ask for ten times as many reviews as a replica answers, over a hundred connections."""
    known = measured(scene, 5, 4, "ask=16")
    capacity = known["answers"] / known["seconds"]
    account = measured(scene, 30, 8, f"flood=100@{MANY * capacity:.0f}")
    scene.figures["reviews a second at most"] = round(capacity)
    scene.figures |= {f"reviews of the flood {what}": account[what] for what in FLOODED}
    scene.check("floods that were not answered", int(not account["answers"]))
    missing = 1 - account["asked"] / (ENOUGH * capacity * account["seconds"])
    scene.check("share of ten times its capacity that was not asked", max(0.0, missing))


FAULTS = [
    Fault(
        "clients-stalled",
        2,
        stalled,
        broken="waits-for-ever",
        refuses=False,
        means="Handshakes are ended after 3 s, requests after 5 s; reviews are answered meanwhile.",
    ),
    Fault(
        "clients-silent",
        2,
        connects,
        broken="waits-for-ever",
        refuses=False,
        means="A thousand connections are the most; beyond, the oldest that has asked nothing "
        "makes room.",
    ),
    Fault(
        "clients-dripping",
        2,
        dripping,
        broken="waits-for-ever",
        means="A request that is not whole after 5 s is ended.",
    ),
    Fault(
        "clients-flood",
        2,
        flood,
        broken="reads-on",
        refuses=False,
        means="Requests are answered in turn, the API server's among them; what a client sends "
        "beyond 256 KiB is not read before its answers are taken. Memory is bounded.",
    ),
]
