"""Clients of the admission server stall, drip, and flood; the API server wants its answers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.rows.webhook import family
from tests.faults.scene import Fault, Scene

P99 = 1.0
"""Seconds: the API server's own histogram has a bucket that ends there."""
GROWTH = 200.0
"""MB by which a replica may grow: a thousand connections at 0.16 MB, and what they have sent."""
_BUCKET = re.compile(
    r"^apiserver_admission_webhook_admission_duration_seconds_bucket"
    r'\{name="[^"]*holdfast[^"]*",.*le="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


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


def measured(scene: Scene, seconds: float, short: float, *orders: str) -> int:
    """Let them in for a while, check what the API server sees, and give how many answers they had.

    A check is kept where an earlier crowd of the same row was worse.
    """
    workers = family(scene.arena.replicas[0].pid)
    rss = sum(each.memory_info().rss for each in workers)
    before, most = buckets(scene), rss
    with crowd(scene, *orders) as process:
        for _ in range(10):
            scene.go_on(seconds / 10, short / 10)
            most = max(most, sum(each.memory_info().rss for each in workers))
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        answers = int(process.stdout.read() or 0)
    after = buckets(scene)
    reviews = after["+Inf"] - before["+Inf"]
    within = after[f"{P99:g}"] - before[f"{P99:g}"]
    slower = (reviews - within) / reviews if reviews else 1.0
    scene.figures["reviews"] = scene.figures.get("reviews", 0) + reviews
    worse(scene, "share of reviews over 1 s", slower, 0.01)
    worse(scene, "MB grown", (most - rss) / 1e6, GROWTH)
    return answers


def worse(scene: Scene, name: str, found: float, most: float) -> None:
    """Note a figure, unless a worse one is there."""
    known = scene.checks.get(name)
    if known is None or found > known.found:
        scene.check(name, found, most)


def buckets(scene: Scene) -> Counter[str]:
    """Count the reviews by how long the API server waited for them, cumulatively."""
    found: Counter[str] = Counter()
    for edge, count in _BUCKET.findall(scene.arena.plane.kubectl("get", "--raw", "/metrics")):
        found[edge] += int(float(count))
    return found


def stalled(scene: Scene) -> None:
    """Have 400 connections stall in the middle of each stage."""
    for kind in ("half-a-hello", "half-a-header", "half-a-body"):
        measured(scene, 20, 5, f"{kind}={100 if scene.short else 400}")


def connects(scene: Scene) -> None:
    """Have a thousand connections that say nothing."""
    measured(scene, 30, 8, "bare=1000")


def dripping(scene: Scene) -> None:
    """Have a hundred clients that send one byte a second."""
    measured(scene, 30, 8, "drip=100")


def flood(scene: Scene) -> None:
    """Ask for as many reviews as fit, over a hundred connections."""
    answers = measured(scene, 30, 8, "flood=100")
    scene.figures["answers to the flood"] = answers
    scene.check("floods that were not answered", int(not answers))


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
        broken="waits-for-ever",
        refuses=False,
        means="Requests are answered in turn, the API server's among them; memory is bounded.",
    ),
]
