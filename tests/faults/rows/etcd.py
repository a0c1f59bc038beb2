"""etcd is killed, or its disk is slow."""

from __future__ import annotations

import time

from controlplane.components import ETCD
from tests.faults.scene import Fault, Scene


def killed(scene: Scene) -> None:
    """Kill it, and start it again after a while."""
    etcd = scene.arena.plane.process(ETCD)
    for _ in range(1 if scene.short else 3):
        etcd.kill()
        scene.go_on(20, 12)  # longer than a release waits for its answer
        etcd.start()
        etcd.wait_ready()
        scene.go_on(5, 1)


def slow(scene: Scene) -> None:
    """Let it work for 50 ms of each 400, as one whose every write waits for a crowded disk."""
    etcd = scene.arena.plane.process(ETCD)
    end = time.monotonic() + scene.lasts(60, 10)
    try:
        while time.monotonic() < end:
            etcd.pause()
            time.sleep(0.35)
            etcd.resume()
            time.sleep(0.05)
    finally:
        etcd.resume()


FAULTS = [
    Fault(
        "etcd-killed",
        5,
        killed,
        tested=True,
        broken="dies-of-errors",
        caught_by="stuck",
        outage=True,
        refuses=True,
        halts=True,
        means="Writes fail until it is back; each release is tried again until it succeeds.",
    ),
    Fault(
        "etcd-slow",
        5,
        slow,
        broken="early",
        caught_by="early",
        outage=True,
        refuses=True,
        halts=True,
        means="Releases are as late as the API server's answers, never early.",
    ),
]
