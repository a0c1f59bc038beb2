from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.command import Command
from tests.e2e.accounts import NAMESPACE, controller_kubeconfig
from tests.e2e.world import Object, World, created, gates, pod, seconds
from webhook.leader import LEASE_SECONDS

GATE = "holdfast.dev/delay"
TAKEOVER = 20.0
"""Seconds in which another has to lead after the leader was killed or stopped."""
SPACING = 0.5
"""Seconds between two pods' due times."""


def held(name: str, delay: float) -> dict[str, object]:
    return pod(name, {"delay": f"{delay:.3f}s"}, schedulingGates=[{"name": GATE}])


def candidate(kubeconfig: Path, log: Path) -> Command:
    arguments = ["--kubeconfig", str(kubeconfig), "--health-port", "0"]
    return Command("controller", *arguments, "--leader-elect", "--namespace", NAMESPACE, log=log)


def lease(world: World) -> Object:
    text = world.plane.kubectl(
        "get", "lease", "holdfast-controller", "--namespace", NAMESPACE, "-o", "json"
    )
    return dict(json.loads(text)["spec"])


def holder(world: World) -> str:
    return str(lease(world).get("holderIdentity", ""))


def metric(command: Command, name: str) -> float:
    url = f"http://127.0.0.1:{command.address.rpartition(':')[2]}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextmanager
def two(world: World, folder: Path) -> Iterator[tuple[Command, Command]]:
    """Run a leader and a standby, in this order."""
    kubeconfig = controller_kubeconfig(world.plane, folder / "kubeconfig")
    with candidate(kubeconfig, folder / "first.log") as first:
        world.eventually(lambda: metric(first, "holdfast_leader "))
        with candidate(kubeconfig, folder / "second.log") as second:
            yield first, second


def times_released(world: World) -> dict[str, int]:
    """How many patches of ours each pod took."""
    return Counter(
        event["objectRef"]["name"]
        for event in world.audit()
        if event["verb"] == "patch"
        and event["objectRef"]["resource"] == "pods"
        and event["userAgent"] == "holdfast"
        and event["responseStatus"]["code"] == 200
    )


def assert_released_once_and_never_early(world: World, delays: dict[str, float]) -> None:
    pods = {each["metadata"]["name"]: each for each in world.all("pods")}
    assert {name: gates(each) for name, each in pods.items()} == {name: [] for name in delays}
    waited = {name: at - created(pods[name]) for name, at in world.releases().items()}
    assert {name: waited[name] for name in delays if waited[name] < delays[name]} == {}
    assert times_released(world) == dict.fromkeys(delays, 1)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_another_takes_over_and_nothing_is_released_twice_or_early(
    bare_world: Callable[[], World], tmp_path: Path, number: signal.Signals
) -> None:
    world = bare_world()
    with two(world, tmp_path) as (first, second):
        delays = {f"pod-{each:02}": 4 + SPACING * each for each in range(60)}
        world.create_pods(held(name, delay) for name, delay in delays.items())
        world.eventually(lambda: len(world.releases()) >= 5)
        assert metric(second, "holdfast_leader ") == 0
        assert metric(second, "holdfast_held_pods ") > 0  # it knows them already

        before = holder(world)
        os.kill(first.pid, number)
        at = time.time()
        world.eventually(lambda: holder(world) != before, TAKEOVER)
        world.eventually(lambda: max(world.releases().values()) > at + 4, TAKEOVER)
        world.eventually(lambda: len(world.releases()) >= len(delays) - 10)
        if number == signal.SIGSTOP:
            os.kill(first.pid, signal.SIGCONT)
            world.eventually(lambda: "leads no more" in first.log.read_text())
        world.eventually(lambda: len(world.releases()) == len(delays))

        if number == signal.SIGSTOP:
            assert metric(first, "holdfast_leader ") == 0
        assert seconds(lease(world)["acquireTime"]) - at <= TAKEOVER
        assert lease(world)["leaseTransitions"] == 1
        assert_released_once_and_never_early(world, delays)


def test_a_clean_stop_hands_over_at_once(bare_world: Callable[[], World], tmp_path: Path) -> None:
    world = bare_world()
    with two(world, tmp_path) as (first, second):
        delays = {f"pod-{each:02}": 2 + 0.2 * each for each in range(60)}
        world.create_pods(held(name, delay) for name, delay in delays.items())
        world.eventually(lambda: len(world.releases()) >= 5)
        before = holder(world)
        at = time.time()
        assert first.stop() == 0
        world.eventually(lambda: holder(world) not in {"", before}, 5)
        assert (
            seconds(lease(world)["acquireTime"]) - at < 5
        )  # a look every two seconds, and the end of the first process
        world.eventually(lambda: len(world.releases()) == len(delays))
        assert metric(second, "holdfast_leader_transitions_total") == 1
        assert_released_once_and_never_early(world, delays)


def test_one_that_starts_after_a_long_outage_leads_without_watching_the_lease(
    bare_world: Callable[[], World], tmp_path: Path
) -> None:
    world = bare_world()
    kubeconfig = controller_kubeconfig(world.plane, tmp_path / "kubeconfig")
    with candidate(kubeconfig, tmp_path / "first.log") as first:
        world.eventually(lambda: metric(first, "holdfast_leader "))
        first.kill()
    renewed = seconds(lease(world)["renewTime"])
    world.eventually(lambda: time.time() - renewed > LEASE_SECONDS + 1)
    with candidate(kubeconfig, tmp_path / "second.log") as second:
        world.eventually(lambda: metric(second, "holdfast_leader "), LEASE_SECONDS / 2)
    assert lease(world)["leaseTransitions"] == 1
