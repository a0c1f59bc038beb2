"""Releases are never early and never stuck, despite wrong clocks and missing webhooks."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e.controllers import GATE, controller, gated
from tests.e2e.foreign_webhook import other_webhook
from tests.e2e.installed import KINDS
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, Object, created, gates, listens, pod
from tests.e2e.secured import Ban, policy
from tests.e2e.workloads import workload

SLACK = 5.0
"""Seconds of lateness that a busy machine may add; nothing here measures speed."""


def test_wrong_or_stepped_clock_does_not_cause_early_releases(
    plain_ns: Namespace, log: Path, tmp_path: Path
) -> None:
    ns = plain_ns
    offset_file = tmp_path / "seconds-ahead"
    for days in (400, -400):
        offset_file.write_text(str(days * 86_400))
        name = f"pod{days}"
        command = Command(
            "controller",
            *("--kubeconfig", str(ns.plane.kubeconfig), "--health-port", "0"),
            log=log,
            module="tests.e2e.wrong_clock",
            environment={"SECONDS_AHEAD": str(offset_file)},
        )
        with command:
            (stored,) = ns.apply(gated(name, 6))
            for step in (3_600, -3_600, 0):
                offset_file.write_text(str(days * 86_400 + step))
                time.sleep(1)
            assert name not in ns.releases()
            ns.eventually(lambda name=name: name in ns.releases())  # type: ignore[misc]
            assert 6 <= ns.releases()[name] - created(stored) < 6 + SLACK


@pytest.fixture
def unregistered(plain_cluster: ControlPlane) -> Iterator[None]:
    """Delete all webhooks after a test that kills the process that would have done so."""
    yield
    plain_cluster.kubectl("delete", "--all", ",".join(KINDS))


@pytest.mark.usefixtures("unregistered")
def test_cluster_keeps_working_with_every_replica_down(plain_ns: Namespace, log: Path) -> None:
    ns = plain_ns
    job, replicas = workload("Job", delay="6"), workload("ReplicaSet", delay="3600")
    with Command("dev", "--kubeconfig", str(ns.plane.kubeconfig), log=log) as dev:
        ns.apply(job, replicas, pod("alone", {"delay": "6"}))
        ns.eventually(lambda: len(ns.all("pods")) == 3)
        dev.kill()
        ns.eventually(lambda: not listens(dev.address))

    assert "failed calling webhook" in ns.refusal(pod("delayed", {"delay": "1"}))
    ns.apply(pod("plain"))
    ns.kubectl("scale", "replicaset", "it", "--replicas=0")
    scaled = "made-by=the-controller,!batch.kubernetes.io/job-name"
    ns.eventually(lambda: not ns.all("pods", scaled))
    ns.kubectl("label", "replicaset", "it", "still=editable")
    with controller(ns.plane.kubeconfig, log):
        ns.eventually(lambda: "alone" in ns.releases())
        ns.eventually(lambda: ns.get("job", "it")["status"].get("succeeded") == 1)
        pods = ns.all("pods", "batch.kubernetes.io/job-name=it")
        assert [manifest["metadata"].get("finalizers", []) for manifest in pods] == [[]]


def test_rejected_release_is_retried_without_blocking_others(
    plain_ns: Namespace, log: Path
) -> None:
    ns = plain_ns
    ban = Ban("not while we are closed", "object.metadata.name != 'blocked'", {})
    ns.apply(*policy(ns.namespace, ban, ["UPDATE"]))
    ns.apply(gated("blocked", 4), gated("free", 5))
    numbers = itertools.count()  # an unchanged label is not sent
    change = ("label", "pod", "blocked", "--overwrite")
    ns.eventually(lambda: refusal(ns.kubectl, *change, f"number={next(numbers)}"))
    with controller(ns.plane.kubeconfig, log):
        ns.eventually(lambda: "free" in ns.releases())
        assert gates(ns.get("pod", "blocked")) == [GATE]
        note = ns.eventually(lambda: ns.notes("blocked").get("ReleaseFailed", ""))
        assert "not while we are closed" in note
        assert "it is retried until it succeeds" in note
        ns.kubectl("delete", "validatingadmissionpolicybinding", f"bans-{ns.namespace}")
        ns.eventually(lambda: "blocked" in ns.releases())
        ns.eventually(lambda: "Released" in ns.notes("blocked"))


@pytest.mark.slow
def test_hanging_webhook_with_policy_ignore_does_not_block_release(
    plain_ns: Namespace, log: Path
) -> None:
    """The API server waits for it longer than the first attempt's timeout, then continues."""
    ns, ended = plain_ns, threading.Event()

    def hang(manifest: Object) -> list[Object]:
        if manifest["metadata"]["namespace"] == ns.namespace and not gates(manifest):
            ended.wait(60)
        return []

    hanging = other_webhook(
        ns.plane, "hangs", hang, operations=("UPDATE",), failure_policy="Ignore", seconds=15
    )
    with hanging, controller(ns.plane.kubeconfig, log), ExitStack() as stack:
        stack.callback(ended.set)
        ns.apply(gated("late", 2))
        ns.eventually(lambda: "late" in ns.releases(), 60)
        assert "ReleaseFailed" in ns.notes("late")


def test_pods_that_bypassed_the_webhook_are_released(plain_ns: Namespace, log: Path) -> None:
    """One of them has an annotation key that no configuration names."""
    ns = plain_ns
    hint_key = "holdfast.dev/held"
    spec = {"schedulingGates": [{"name": GATE}]}
    ns.apply(
        pod("unreadable", {"delay": "soon", hint_key: "delay=8s"}, **spec),
        pod("key-has-left", {"old/delay": "8", hint_key: "old/delay=8s"}, **spec),
        pod("nothing-said", {}, **spec),
        pod("lengthened", {"delay": "4"}, **spec),
    )
    ns.kubectl("annotate", "pod", "lengthened", "--overwrite", "delay=8")
    created_at = {manifest["metadata"]["name"]: created(manifest) for manifest in ns.all("pods")}
    with controller(ns.plane.kubeconfig, log):
        ns.eventually(lambda: ns.releases().keys() == created_at.keys())
        waited = {
            name: released_at - created_at[name] for name, released_at in ns.releases().items()
        }
        del waited["nothing-said"]
        assert {name: seconds for name, seconds in waited.items() if seconds < 8} == {}
        ns.eventually(lambda: "Released" in ns.notes("unreadable"))
        assert 'invalid value "soon"' in ns.notes("unreadable")["Released"]
        assert "using annotation holdfast.dev/held instead" in ns.notes("unreadable")["Released"]
        ns.eventually(lambda: "Released" in ns.notes("nothing-said"))
        assert "no annotation asks for a hold" in ns.notes("nothing-said")["Released"]


def test_overdue_pods_are_released_at_startup(plain_ns: Namespace, log: Path) -> None:
    ns = plain_ns
    ns.apply(*(gated(f"pod-{10 - number:02}", 0.2 * number) for number in range(1, 11)))
    ns.apply(gated("later", 3600))
    status = '{"status":{"phase":"Running"}}'  # anyone who may write a pod's status can do this
    ns.kubectl("patch", "pod", "pod-00", "--subresource=status", "--type=merge", "-p", status)
    ns.eventually(lambda: len(ns.all("pods")) == 11)
    with controller(ns.plane.kubeconfig, log):
        ns.eventually(lambda: len(ns.releases()) == 10)
        assert gates(ns.get("pod", "later")) == [GATE]
