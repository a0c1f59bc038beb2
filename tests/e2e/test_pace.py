"""Paces on a real control plane: concurrent pod starts, counted from the audit log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rows.waiting import utilisation
from bench.world import SLOW_PODS
from controlplane.launcher import ControlPlane
from tests.e2e.namespace import Namespace, gates, pod, seconds
from tests.e2e.two_processes import TwoProcesses

pytestmark = pytest.mark.xdist_group("pace")


@pytest.fixture(scope="module")
def slow_cluster() -> Iterator[ControlPlane]:
    """A cluster whose pods with the label `slow` take 1 to 5 s to become ready.

    It fits the pods of all tests: a node takes 110.
    """
    with ControlPlane(nodes=8, audit=True, stages=[SLOW_PODS]) as plane:
        yield plane


@pytest.fixture
def ns(
    slow_cluster: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace in it, with Holdfast."""
    name = f"pace-{abs(hash(request.node.name)) % 10**6}"
    with TwoProcesses(slow_cluster, tmp_path) as processes:
        yield Namespace.create_new(slow_cluster, name, processes.controller)


def deployment(name: str, replicas: int, pace: str) -> dict[str, object]:
    labels = {"app": name, "slow": "yes"}
    template = pod(name, {"holdfast.dev/pace": pace})
    template["metadata"] = {"labels": labels, "annotations": template["metadata"]["annotations"]}
    del template["apiVersion"], template["kind"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    }


def ready(ns: Namespace) -> dict[str, float]:
    """Return when the API server received the status that made each pod ready."""
    ready_times: dict[str, float] = {}
    for event in ns.audit():
        reference = event["objectRef"]
        if reference.get("subresource") == "status" and event["userAgent"].startswith("kwok"):
            name, received = reference["name"], seconds(event["requestReceivedTimestamp"])
            ready_times[name] = min(received, ready_times.get(name, received))
    return ready_times


def most_starting(ns: Namespace) -> int:
    """Return the maximum number of pods that were released but not yet ready."""
    released, became_ready = ns.releases(), ready(ns)
    changes = [(moment, 1) for moment in released.values()] + [
        (became_ready[name], -1) for name in released
    ]
    most = count = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


def all_ready(ns: Namespace, replicas: int) -> bool:
    manifest = ns.get("deployment", "web")
    return bool(manifest["status"].get("readyReplicas", 0) == replicas)


def test_pace_limits_concurrent_pod_starts(ns: Namespace) -> None:
    ns.apply(deployment("web", 20, "4"))
    ns.eventually(lambda: all_ready(ns, 20), 60)

    assert most_starting(ns) == 4
    # The benchmark's `pace_utilisation` measures it on a quiet machine.
    assert utilisation(ns.releases(), ready(ns), slots=4) > 0.8
    assert not any(gates(manifest) for manifest in ns.all("pods"))


def test_pace_limits_releases_per_period(ns: Namespace) -> None:
    ns.apply(deployment("web", 8, "1/1s"))
    ns.eventually(lambda: len(ns.releases()) == 8)

    times = sorted(ns.releases().values())
    spans = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(spans) >= 1.0
    # a busy machine is late occasionally, but slots must not be skipped regularly
    assert sum(span >= 2.0 for span in spans) <= 1
