"""One row's run: the load, the harm, the cure, and the verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.e2e.world import World
from tests.faults.arena import Arena
from tests.faults.judge import AFTER, judge
from tests.faults.load import DELAY, SHORT_DELAY, Load
from tests.faults.scene import Fault, Result, Scene

ROOM_SECONDS = 600.0
"""How long the namespaces of the rows before may take to be gone."""
CALM = 3.0
"""Seconds of load before the harm."""
SAID, MOST_SAID = 300, 3
"""How much is kept of what failed creations said: characters of each, and how many."""


def run(fault: Fault, arena: Arena, *, seed: int, short: bool) -> Result:
    """Run a row in a namespace of its own."""
    source = random.Random(f"{seed} {fault.name}")
    _await_room(arena)
    world = World.in_new_namespace(arena.plane, f"{fault.name}-{source.randrange(16**6):06x}")
    load = Load(arena.plane, world.namespace, random.Random(source.random()))
    load.delay = SHORT_DELAY if short else DELAY
    scene = Scene(arena, world, load, source, short)

    def harm() -> None:
        with arena.machines.restarting(random.Random(source.random())), load.running():
            time.sleep(CALM)
            scene.act(fault)
            time.sleep(AFTER)

    said = [_attempt(harm), _attempt(lambda: judge(fault, scene))]
    arena.proxy.turn()
    spaces = [world.namespace, *scene.apart]
    arena.plane.kubectl("delete", "namespace", *spaces, "--wait=false", check=False)
    said_of = Counter(one.said[:SAID] for one in load.failures).most_common(MOST_SAID)
    texts = tuple(text for text, _ in said_of)
    return Result(fault, scene.checks, scene.figures, "; ".join(filter(None, said)), texts)


def _attempt(deed: Callable[[], None]) -> str:
    """Do something, and tell what broke it: a row that breaks has failed, and others go on."""
    try:
        deed()
    except Exception as exc:  # noqa: BLE001 - as above
        return f"{type(exc).__name__}: {exc}"
    return ""


def _await_room(arena: Arena) -> None:
    """Wait until the rows before have left: thousands of their pods would fill the nodes."""
    phases = ("get", "namespaces", "--output=jsonpath={.items[*].status.phase}")
    end = time.monotonic() + ROOM_SECONDS
    while "Terminating" in arena.plane.kubectl(*phases) and time.monotonic() < end:
        time.sleep(1.0)
