"""The wall clocks of Holdfast's machines are wrong, and step while pods wait."""

from __future__ import annotations

from tests.e2e.pairs import LEAF
from tests.e2e.world import created
from tests.faults.rows.certificates import by_certificates, issue_time, renew
from tests.faults.scene import Fault, Scene

HOUR, DAY = 3_600, 86_400
ISSUED = 300.0
"""Seconds by which a leaf's time of issue may differ from the API server's."""


def wrong(scene: Scene) -> None:
    """Start controllers on wrong clocks, by an hour and by 400 days, and have a leaf renewed."""
    for seconds in (400 * DAY, -HOUR) if scene.short else (HOUR, -HOUR, 400 * DAY, -400 * DAY):
        scene.arena.shift_clocks(seconds)
        for each in scene.arena.controllers:
            each.stop()
            each.start()
        scene.go_on(20, 5)
        scene.arena.leader()
        renew(scene)
        made = scene.arena.installed
        apart = abs(issue_time(made) - created(made.get("secret", LEAF)))
        scene.check("seconds between a leaf's time and the API server's", apart, ISSUED)
    scene.arena.shift_clocks(0)
    by_certificates(scene)


def stepping(scene: Scene) -> None:
    """Step the clocks to and fro while pods wait."""
    for _ in range(1 if scene.short else 5):
        for seconds in (HOUR, -HOUR, 400 * DAY, -400 * DAY, 0):
            scene.arena.shift_clocks(seconds)
            scene.go_on(2)


FAULTS = [
    Fault(
        "clock-wrong",
        6,
        wrong,
        minutes=3.0,
        broken="wall-clock",
        caught_by="early",
        means="Releases and certificates go by the API server's clock, as its answers tell it. The "
        "machine's own only tells the admission server which times are long past, and where that "
        "is not so, the pod is refused.",
    ),
    Fault(
        "clock-stepping",
        6,
        stepping,
        tested=True,
        broken="wall-clock",
        caught_by="early",
        means="A step is not even noticed: time is measured by a clock that neither steps nor "
        "stops.",
    ),
]
