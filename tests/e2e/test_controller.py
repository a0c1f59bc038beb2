from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from demo.command import Command
from tests.e2e.world import World, created, gates, pod

GATE = "holdfast.dev/delay"


def gated(name: str, delay: float) -> dict[str, object]:
    return pod(name, {"delay": f"{delay:.3f}s"}, schedulingGates=[{"name": GATE}])


def test_a_killed_controller_carries_on_from_what_the_api_server_has(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    spread = random.Random(1)
    delays = {f"pod-{number}": spread.uniform(2, 14) for number in range(10)}
    made = world.apply(*(gated(name, delay) for name, delay in delays.items()))
    command = Command(
        "controller", "--kubeconfig", str(world.plane.kubeconfig), "--health-port", "0", log=log
    )
    with command as controller:
        for round_ in range(3):
            world.eventually(lambda done=2 * round_: len(world.releases()) >= done)  # type: ignore[misc]
            controller.kill()
            controller.start()
        world.eventually(lambda: len(world.releases()) == len(delays))

    waited = {each["metadata"]["name"]: -created(each) for each in made}
    for name, received in world.releases().items():
        waited[name] += received
    early = {name: waited[name] for name, delay in delays.items() if waited[name] < delay}
    assert early == {}
    assert [gates(each) for each in world.all("pods")] == [[]] * len(delays)


def test_what_fell_due_while_nobody_watched_is_released_at_the_start_in_order(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    world.apply(*(gated(f"pod-{10 - number:02}", 0.2 * number) for number in range(1, 11)))
    world.apply(gated("later", 3600))
    world.eventually(lambda: len(world.all("pods")) == 11)
    command = Command(
        "controller", "--kubeconfig", str(world.plane.kubeconfig), "--health-port", "0", log=log
    )
    with command:
        world.eventually(lambda: len(world.releases()) == 10)
        assert gates(world.get("pod", "later")) == [GATE]
