"""Pods that wait for other objects, on a real control plane."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.e2e.accounts import controller_kubeconfig
from tests.e2e.controllers import controller
from tests.e2e.namespace import Namespace, created, gates, pod, seconds

GATES = [{"name": "holdfast.dev/after"}]
BINDING = "clusterrolebinding/holdfast-controller-after"


def waiting(name: str, after: str, **annotations: str) -> dict[str, object]:
    all_annotations = {"holdfast.dev/after": after, **annotations}
    scheduling_gates = [*GATES, {"name": "holdfast.dev/delay"}] if annotations else GATES
    return pod(name, all_annotations, schedulingGates=scheduling_gates)


def complete_job(ns: Namespace) -> float:
    """Complete a Job; return the time at which the API server stored that."""
    ns.kubectl("create", "job", "migrate", "--image=busybox")
    ns.kubectl("wait", "--for=condition=Complete", "job/migrate", "--timeout=60s")
    return max(
        seconds(event["requestReceivedTimestamp"])
        for event in ns.audit()
        if (event["objectRef"]["resource"], event["objectRef"].get("subresource"))
        == ("jobs", "status")
    )


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_completed_job_releases_waiting_pods(
    plain_ns: Namespace, log: Path, restarted: bool
) -> None:
    ns = plain_ns
    names = [f"web-{number}" for number in range(50)]
    ns.create_pods(waiting(name, "job/migrate") for name in names)
    ns.apply(waiting("other", "job/other"), waiting("later", "job/migrate", delay="12"))
    with controller(ns.plane.kubeconfig, log) as process:
        ns.eventually(lambda: "watching: " in log.read_text())
        time.sleep(1.0)
        assert ns.releases() == {}
        if restarted:
            process.kill()
        completed_at = complete_job(ns)
        if restarted:
            process.start()
        ns.eventually(lambda: ns.releases().keys() >= {*names})
        assert min(ns.releases()[name] for name in names) >= completed_at
        ns.kubectl("delete", "job", "migrate")  # after the release, this changes nothing
        assert gates(ns.get("pod", "web-0")) == []
        assert gates(ns.get("pod", "other")) == ["holdfast.dev/after"]
        complete_job(ns)
        ns.eventually(lambda: "later" in ns.releases())
        later = ns.get("pod", "later")
        assert ns.releases()["later"] - created(later) >= 12


def test_missing_permission_is_reported_and_retried(
    plain_ns: Namespace, log: Path, tmp_path: Path
) -> None:
    ns = plain_ns
    kubeconfig = controller_kubeconfig(ns.plane, tmp_path / "kubeconfig")
    ns.kubectl("delete", BINDING)
    ns.apply(waiting("web", "service/db"))

    def notes() -> list[str]:
        events = ns.all("events.events.k8s.io")
        return [event["note"] for event in events if event["type"] == "Warning"]

    with controller(kubeconfig, log):
        (note,) = ns.eventually(notes)
        assert "after: waits for service/db:Ready; " in note
        assert 'cannot list resource "endpointslices"' in note
        controller_kubeconfig(ns.plane, tmp_path / "kubeconfig")
        slices = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        }
        ns.apply(slices)
        ns.eventually(lambda: "web" in ns.releases())
