"""Paces on a real control plane: concurrent pod starts, counted from the audit log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.rows.waiting import utilisation
from bench.world import SLOW_PODS
from controlplane.launcher import ControlPlane
from tests.e2e.accounts import controller_kubeconfig
from tests.e2e.controllers import candidate
from tests.e2e.namespace import Namespace, gates, pod, seconds
from tests.e2e.two_processes import TwoProcesses
from tests.support.scrapes import metric

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


@pytest.mark.parametrize("replicas", [8, pytest.param(120, marks=pytest.mark.slow)])
def test_pace_limits_releases_per_period(ns: Namespace, replicas: int) -> None:
    ns.apply(deployment("web", replicas, "1/1s"))
    ns.eventually(lambda: len(ns.releases()) == replicas, 3 * replicas)

    times = sorted(ns.releases().values())
    spans = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(spans) >= 1.0
    # a busy machine is late occasionally, but slots must not be skipped regularly
    assert sum(span >= 2.0 for span in spans) <= 1 + replicas // 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pace_is_kept_while_leaders_are_killed_repeatedly(
    slow_cluster: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = controller_kubeconfig(slow_cluster, tmp_path / "kubeconfig")
    with ExitStack() as stack:
        processes = stack.enter_context(TwoProcesses(slow_cluster, tmp_path))
        processes.kill("controller")
        ns = Namespace.create_new(slow_cluster, "pace-killed", processes.controller)
        candidates = [
            stack.enter_context(candidate(kubeconfig, tmp_path / f"{number}.log"))
            for number in range(2)
        ]
        ns.apply(deployment("web", 200, "4"))
        kills = 0
        while not all_ready(ns, 200):
            time.sleep(30)
            leader = next(
                (process for process in candidates if metric(process, "holdfast_leader ")), None
            )
            if leader is not None:
                leader.kill()
                leader.start()
                kills += 1

        assert kills >= 4
        assert most_starting(ns) <= 4
