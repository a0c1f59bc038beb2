"""`make run`: create a delayed pod on a real control plane and print each step."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from controlplane.build import ensure
from controlplane.launcher import ControlPlane
from demo.command import Command
from demo.observer import Observation, observe
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.annotations import HELD_ANNOTATION

DELAY = 15
"""The delay in the example's annotation, in seconds."""
TIMEOUT = 60.0
"""Seconds until the pod has to be running."""
EXAMPLE = Path(__file__).with_name("busybox.yaml")

_out = Console(highlight=False, soft_wrap=True)


class WalkthroughError(Exception):
    """The pod was not released and running in time; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The times of the steps, in seconds since the pod's creationTimestamp."""

    delay_s: int
    released_s: float
    scheduled_s: float
    running_s: float
    node: str


def run(build: Path) -> Outcome:
    """Run the example, print each step, and write the outcome to `build/run.json`.

    Raises WalkthroughError if the pod is not released and running in time.
    """
    build.mkdir(exist_ok=True)
    _say("building etcd and Kubernetes (takes a few minutes the first time)")
    ensure()
    _say("starting the API server, scheduler, controllers and three kwok nodes")
    started = time.monotonic()
    with ControlPlane(nodes=3) as cluster:
        _say(f"Kubernetes is up after {time.monotonic() - started:.1f} s")
        log = build / "run-holdfast.log"
        log.unlink(missing_ok=True)
        with Command("dev", "--kubeconfig", str(cluster.kubeconfig), log=log) as holdfast:
            _say(f"holdfast dev serves webhooks at {holdfast.address}")
            outcome = _example(cluster, holdfast)
    (build / "run.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    return outcome


def _example(cluster: ControlPlane, holdfast: Command) -> Outcome:
    observations: queue.Queue[Observation | None] = queue.Queue()
    client = Cluster.connect(cluster.kubeconfig)
    observer = threading.Thread(target=_watch, args=(client, observations), daemon=True)
    observer.start()
    _kubectl(cluster, "apply", "-f", str(EXAMPLE))
    _kubectl(cluster, "scale", "deployment", "busybox", "--replicas=1")
    try:
        return _follow(cluster, _until_timeout(observations, holdfast))
    finally:
        client.close()


def _watch(client: Cluster, observations: queue.Queue[Observation | None]) -> None:
    try:
        for observation in observe(client, "run=busybox", TIMEOUT):
            observations.put(observation)
    except ClusterError:
        observations.put(None)


def _until_timeout(
    observations: queue.Queue[Observation | None], holdfast: Command
) -> Iterator[Observation]:
    deadline = time.monotonic() + TIMEOUT
    while (timeout := deadline - time.monotonic()) > 0:
        holdfast.check()
        try:
            observation = observations.get(timeout=min(timeout, 1.0))
        except queue.Empty:
            continue
        if observation is None:
            return
        yield observation


def _follow(cluster: ControlPlane, observations: Iterator[Observation]) -> Outcome:
    held = next(observations, None)
    if held is None:
        raise WalkthroughError("no pod was created")
    _event(held, f"pod {held.name} created")
    if not held.gates:
        raise WalkthroughError("the pod was created without a gate: the webhook was not called")
    _event(held, f"gated: {', '.join(held.gates)}")
    _event(held, f"hint:  {HELD_ANNOTATION}: {held.annotation(HELD_ANNOTATION)}")
    _kubectl(cluster, "get", "pods")
    with _countdown(held.age):
        released = _first(observations, lambda observation: not observation.gates, "is still held")
    _event(released, "released: gate removed")
    scheduled = _first(
        chain([released], observations),
        lambda observation: bool(observation.node),
        "is not scheduled",
    )
    _event(scheduled, f"scheduled to {scheduled.node}")
    running = _first(
        chain([scheduled], observations), lambda observation: observation.running, "does not run"
    )
    _event(running, "running")
    _kubectl(cluster, "get", "pods")
    return Outcome(
        DELAY,
        round(released.age, 3),
        round(scheduled.age, 3),
        round(running.age, 3),
        running.node,
    )


def _first(
    observations: Iterable[Observation], condition: Callable[[Observation], bool], otherwise: str
) -> Observation:
    for observation in observations:
        if condition(observation):
            return observation
    raise WalkthroughError(f"after {TIMEOUT:.0f} s the pod {otherwise}")


@contextmanager
def _countdown(age: float) -> Iterator[None]:
    """Show the time left: a bar on a terminal, one line otherwise."""
    if not _out.is_terminal:
        _say(f"waiting {DELAY} s")
        yield
        return
    stop = threading.Event()
    columns = TextColumn("  held"), BarColumn(), TextColumn("{task.fields[left]:.0f} s left")
    with Progress(*columns, console=_out, transient=True) as progress:
        task = progress.add_task("", total=DELAY, left=DELAY)
        began = time.monotonic() - age

        def tick() -> None:
            while not stop.wait(0.1):
                elapsed = time.monotonic() - began
                progress.update(task, completed=elapsed, left=max(0.0, DELAY - elapsed))

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            yield
        finally:
            stop.set()
            ticker.join()


def _kubectl(cluster: ControlPlane, *arguments: str) -> None:
    command = " ".join(Path(word).name if word == str(EXAMPLE) else word for word in arguments)
    _out.print(f"  $ kubectl {command}", style="bold")
    for line in cluster.kubectl(*arguments).splitlines():
        _out.print(f"    {line}", markup=False)


def _say(text: str) -> None:
    _out.print(f"holdfast: {text}", markup=False)


def _event(observation: Observation, text: str) -> None:
    _out.print(f"  {observation.age:6.2f} s  {text}", markup=False)
