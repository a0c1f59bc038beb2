"""The lateness of releases at random due times, by the API server's audit log."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime

from bench import audit, stats
from bench.controllers import controlling
from bench.results import Outcome
from bench.size import Size
from bench.world import CLIENTS, Object, World, held_pod
from holdfast.webhook.model.annotations import NOT_BEFORE


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure from the due time to the API server's response, in milliseconds."""
    rounds = []
    with controlling(world.kubeconfig):
        for turn in range(size.due_rounds):
            step(f"round {turn + 1} of {size.due_rounds}")
            rounds.append(_round(world, f"due-{turn}", size))
    p50 = [stats.percentile(sample, 0.50) for sample in rounds]
    p99 = [stats.percentile(sample, 0.99) for sample in rounds]
    figures = {"lateness_ms_p50": statistics.median(p50), "lateness_ms_p99": statistics.median(p99)}
    early = min(min(sample) for sample in rounds)
    return Outcome(figures, details={"p50": p50, "p99": p99, "min": early, "rounds": rounds})


def _round(world: World, name: str, size: Size) -> list[float]:
    """Return the lateness of each release at a random due time, in milliseconds."""
    world.namespace(name)
    generator = random.Random(name)  # noqa: S311 - spreads load
    start = time.time() + world.lead(name, size.due)
    pods = [_due_at(start + generator.uniform(0, size.due_seconds)) for _ in range(size.due)]
    world.create(name, pods, size.due - CLIENTS, CLIENTS)  # plus one warm-up pod per client
    due = {pod["metadata"]["name"]: _due(pod) for pod in _pods(world, name)}
    log = world.plane.audit_log
    time.sleep(max(0.0, start + size.due_seconds - time.time()))
    world.until(lambda: len(audit.releases(log, name)) == size.due, step=1.0)
    events = audit.releases(log, name)
    world.clear(name)
    return [(event.answered - due[event.object_ref.name]) * 1e3 for event in events]


def _due_at(seconds: float) -> Object:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return held_pod({NOT_BEFORE: text})


def _due(pod: Object) -> float:
    return datetime.fromisoformat(pod["metadata"]["annotations"][NOT_BEFORE]).timestamp()


def _pods(world: World, namespace: str) -> list[Object]:
    return list(world.get(f"/api/v1/namespaces/{namespace}/pods")["items"])
