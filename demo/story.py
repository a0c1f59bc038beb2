"""`make run`: the delay plugin's own example, told as it happens on a real control plane."""

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
from demo.witness import Sighting, sightings
from webhook.cluster import Cluster
from webhook.errors import ClusterError
from webhook.holds import HELD

ASKED = 15
"""Seconds that the example's annotation asks for."""
PLUGIN_SECONDS = 85
"""What the delay scheduler plugin's author saw for the same example."""
PATIENCE = 60.0
"""Seconds in which the pod has to be running."""
EXAMPLE = Path(__file__).with_name("busybox.yaml")

_out = Console(highlight=False, soft_wrap=True)


class StoryError(Exception):
    """The pod was not released and running; the text says how far it came."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured, in seconds since the pod's creationTimestamp."""

    asked_s: int
    released_s: float
    scheduled_s: float
    running_s: float
    node: str


def tell(build: Path) -> Outcome:
    """Run the example and print what happens; write it to `build/run.json`.

    Raises StoryError when the pod is not released and running in time.
    """
    build.mkdir(exist_ok=True)
    _say("building etcd and Kubernetes' own programs: minutes the first time, nothing later")
    ensure()
    _say("starting them: API server, scheduler, controllers, three kwok nodes")
    started = time.monotonic()
    with ControlPlane(nodes=3) as cluster:
        _say(f"Kubernetes is up after {time.monotonic() - started:.1f} s")
        log = build / "run-holdfast.log"
        log.unlink(missing_ok=True)
        with Command("dev", "--kubeconfig", str(cluster.kubeconfig), log=log) as holdfast:
            _say(f"holdfast dev serves it from {holdfast.address}")
            outcome = _example(cluster, holdfast)
    (build / "run.json").write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    return outcome


def _example(cluster: ControlPlane, holdfast: Command) -> Outcome:
    seen: queue.Queue[Sighting | None] = queue.Queue()
    client = Cluster.connect(cluster.kubeconfig)
    witness = threading.Thread(target=_watch, args=(client, seen), daemon=True)
    witness.start()
    _kubectl(cluster, "apply", "-f", str(EXAMPLE))
    _kubectl(cluster, "scale", "deployment", "busybox", "--replicas=1")
    try:
        return _follow(cluster, _until_patience_ends(seen, holdfast))
    finally:
        client.close()


def _watch(client: Cluster, seen: queue.Queue[Sighting | None]) -> None:
    try:
        for sighting in sightings(client, "run=busybox", PATIENCE):
            seen.put(sighting)
    except ClusterError:
        seen.put(None)


def _until_patience_ends(
    seen: queue.Queue[Sighting | None], holdfast: Command
) -> Iterator[Sighting]:
    deadline = time.monotonic() + PATIENCE
    while (left := deadline - time.monotonic()) > 0:
        holdfast.check()
        try:
            sighting = seen.get(timeout=min(left, 1.0))
        except queue.Empty:
            continue
        if sighting is None:
            return
        yield sighting


def _follow(cluster: ControlPlane, life: Iterator[Sighting]) -> Outcome:
    held = next(life, None)
    if held is None:
        raise StoryError("no pod was created")
    _event(held, f"pod {held.name} is created")
    if not held.gates:
        raise StoryError("the pod was created without a gate: Holdfast was not asked about it")
    _event(held, f"gated: {', '.join(held.gates)}")
    _event(held, f"hint:  {HELD}: {held.annotation(HELD)}")
    _kubectl(cluster, "get", "pods")
    with _countdown(held.age):
        released = _first(life, lambda sighting: not sighting.gates, "is still held")
    _event(released, "released: the gate is gone")
    scheduled = _first(
        chain([released], life), lambda sighting: bool(sighting.node), "is not scheduled"
    )
    _event(scheduled, f"scheduled to {scheduled.node}")
    running = _first(chain([scheduled], life), lambda sighting: sighting.running, "does not run")
    _event(running, "running")
    _kubectl(cluster, "get", "pods")
    return Outcome(
        ASKED,
        round(released.age, 3),
        round(scheduled.age, 3),
        round(running.age, 3),
        running.node,
    )


def _first(life: Iterable[Sighting], is_so: Callable[[Sighting], bool], otherwise: str) -> Sighting:
    for sighting in life:
        if is_so(sighting):
            return sighting
    raise StoryError(f"after {PATIENCE:.0f} s the pod {otherwise}")


@contextmanager
def _countdown(age: float) -> Iterator[None]:
    """Show the wait: as a bar on a terminal, as one line elsewhere."""
    if not _out.is_terminal:
        _say(f"waiting for the {ASKED} s to pass")
        yield
        return
    stop = threading.Event()
    columns = TextColumn("  held"), BarColumn(), TextColumn("{task.fields[left]:.0f} s left")
    with Progress(*columns, console=_out, transient=True) as progress:
        task = progress.add_task("", total=ASKED, left=ASKED)
        began = time.monotonic() - age

        def tick() -> None:
            while not stop.wait(0.1):
                passed = time.monotonic() - began
                progress.update(task, completed=passed, left=max(0.0, ASKED - passed))

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            yield
        finally:
            stop.set()
            ticker.join()


def _kubectl(cluster: ControlPlane, *arguments: str) -> None:
    shown = " ".join(Path(word).name if word == str(EXAMPLE) else word for word in arguments)
    _out.print(f"  $ kubectl {shown}", style="bold")
    for line in cluster.kubectl(*arguments).splitlines():
        _out.print(f"    {line}", markup=False)


def _say(text: str) -> None:
    _out.print(f"holdfast: {text}", markup=False)


def _event(sighting: Sighting, text: str) -> None:
    _out.print(f"  {sighting.age:6.2f} s  {text}", markup=False)
