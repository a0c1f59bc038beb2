import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.command import Command
from holdfast.webhook.kube.leader_election import LEASE_SECONDS
from tests.e2e.accounts import NAMESPACE, controller_kubeconfig
from tests.e2e.controllers import candidate, gated
from tests.e2e.namespace import Namespace, Object, created, gates, seconds
from tests.support.scrapes import metric

GATE = "holdfast.dev/delay"
LEASE = "holdfast-controller"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
TAKEOVER = 20.0
"""Maximum seconds until the standby leads after the leader was killed."""
SPACING = 0.5
"""Seconds between two pods' due times."""


@pytest.fixture
def ns(plain_ns: Namespace) -> Namespace:
    plane = plain_ns.plane
    plane.kubectl("delete", "lease", LEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    return plain_ns


def lease(ns: Namespace) -> Object:
    manifest = ns.plane.api.get(PATH)
    assert manifest is not None
    return dict(manifest["spec"])


def holder(ns: Namespace) -> str:
    return str(lease(ns).get("holderIdentity", ""))


@contextmanager
def leader_and_standby(ns: Namespace, folder: Path) -> Iterator[tuple[Command, Command]]:
    """Run a leader and a standby, in this order."""
    kubeconfig = controller_kubeconfig(ns.plane, folder / "kubeconfig")
    with candidate(kubeconfig, folder / "first.log") as first:
        ns.eventually(lambda: metric(first, "holdfast_leader "))
        with candidate(kubeconfig, folder / "second.log") as second:
            yield first, second


def release_counts(ns: Namespace) -> dict[str, int]:
    """Return the number of successful Holdfast patches of each pod."""
    return Counter(
        event["objectRef"]["name"]
        for event in ns.patches()
        if event["responseStatus"]["code"] == 200
    )


def assert_released_once_and_never_early(ns: Namespace, delays: dict[str, float]) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in ns.all("pods")}
    assert {name: gates(pod) for name, pod in pods.items()} == {name: [] for name in delays}
    waited = {
        name: released_at - created(pods[name]) for name, released_at in ns.releases().items()
    }
    assert {name: waited[name] for name in delays if waited[name] < delays[name]} == {}
    assert release_counts(ns) == dict.fromkeys(delays, 1)


def test_standby_takes_over_without_duplicate_or_early_releases(
    ns: Namespace, tmp_path: Path
) -> None:
    with leader_and_standby(ns, tmp_path) as (first, second):
        delays = {f"pod-{index:02}": 4 + SPACING * index for index in range(40)}
        ns.create_pods(gated(name, delay) for name, delay in delays.items())
        ns.eventually(lambda: len(ns.releases()) >= 5)
        assert metric(second, "holdfast_leader ") == 0
        assert metric(second, "holdfast_held_pods ") > 0  # the standby tracks them too

        before = holder(ns)
        killed_at = time.time()
        first.kill()
        ns.eventually(lambda: holder(ns) != before, TAKEOVER)
        ns.eventually(lambda: max(ns.releases().values()) > killed_at + 4, TAKEOVER)
        ns.eventually(lambda: len(ns.releases()) == len(delays))

        assert seconds(lease(ns)["acquireTime"]) - killed_at <= TAKEOVER
        assert lease(ns)["leaseTransitions"] == 1
        assert_released_once_and_never_early(ns, delays)


def test_clean_shutdown_hands_over_immediately(ns: Namespace, tmp_path: Path) -> None:
    with leader_and_standby(ns, tmp_path) as (first, second):
        delays = {f"pod-{index:02}": 2 + 0.2 * index for index in range(30)}
        ns.create_pods(gated(name, delay) for name, delay in delays.items())
        ns.eventually(lambda: len(ns.releases()) >= 5)
        before = holder(ns)
        stopped_at = time.time()
        assert first.stop() == 0
        ns.eventually(lambda: holder(ns) not in {"", before})
        # the standby did not wait for the Lease to expire
        assert seconds(lease(ns)["acquireTime"]) - stopped_at < LEASE_SECONDS / 2
        ns.eventually(lambda: len(ns.releases()) == len(delays))
        assert metric(second, "holdfast_leader_transitions_total") == 1
        assert_released_once_and_never_early(ns, delays)
