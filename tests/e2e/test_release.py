"""Never early, never stuck: many pods, kills, wrong clocks, a crowd, and no webhook."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.errors import ControlPlaneError
from demo.command import Command
from tests.e2e.others import other_webhook
from tests.e2e.world import Object, World, created, gates, listens, pod

GATE = "holdfast.dev/delay"
SLACK = 5.0
"""Seconds of lateness that a crowded machine may add; nothing here measures speed."""


def gated(name: str, delay: float) -> Object:
    return pod(name, {"delay": f"{delay:.3f}s"}, schedulingGates=[{"name": GATE}])


def controller(world: World, log: Path) -> Command:
    kubeconfig = str(world.plane.kubeconfig)
    return Command("controller", "--kubeconfig", kubeconfig, "--health-port", "0", log=log)


@pytest.mark.long
def test_500_pods_and_five_kills(bare_world: Callable[[], World], log: Path) -> None:
    world = bare_world()
    source = random.Random(500)
    delays = {f"pod-{number}": source.uniform(0, 30) for number in range(500)}
    dead: list[tuple[float, float]] = []
    with Command("dev", "--kubeconfig", str(world.plane.kubeconfig), log=log) as holdfast:
        manifests = [pod(name, {"delay": f"{delay:.3f}s"}) for name, delay in delays.items()]
        made = world.create_pods(manifests)
        for _ in range(5):
            time.sleep(source.uniform(0.5, 3))
            died = time.time()
            holdfast.kill()
            holdfast.start()
            dead.append((died, time.time()))
        world.eventually(lambda: not [each for each in world.all("pods") if gates(each)], 60)

    due = {each["metadata"]["name"]: created(each) for each in made}
    due = {name: at + round(delays[name], 3) for name, at in due.items()}
    # an attempt whose sender was killed meanwhile may have worked, whatever its answer was
    attempts = world.release_attempts()
    early = {name: attempts[name][0] - at for name, at in due.items() if attempts[name][0] < at}
    assert early == {}
    # killed within a second of its start, it leaves some to the next: only its life counts
    late = {name: alive(at, attempts[name][-1], dead) for name, at in due.items()}
    assert {name: seconds for name, seconds in late.items() if seconds > SLACK} == {}


def alive(since: float, until: float, dead: Iterable[tuple[float, float]]) -> float:
    """Of the seconds between two times, those outside all the periods in which it was dead."""
    gaps = (min(until, end) - max(since, start) for start, end in dead)
    return until - since - sum(max(0.0, gap) for gap in gaps)


@pytest.mark.long
def test_ten_thousand_held_pods_do_not_slow_one_that_is_due(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    world.create_pods(gated(f"waits-{number}", 36_000 + number) for number in range(10_000))
    with controller(world, log):
        (made,) = world.apply(gated("due", 5))
        world.eventually(lambda: "due" in world.releases())
        assert 5 <= world.releases()["due"] - created(made) < 5 + SLACK
        assert len(world.releases()) == 1


def test_a_wrong_and_stepping_wall_clock_releases_nothing_early(
    bare_world: Callable[[], World], log: Path, tmp_path: Path
) -> None:
    world = bare_world()
    ahead = tmp_path / "seconds-ahead"
    for days in (400, -400):
        ahead.write_text(str(days * 86_400))
        name = f"pod{days}"
        command = Command(
            "controller",
            *("--kubeconfig", str(world.plane.kubeconfig), "--health-port", "0"),
            log=log,
            module="tests.e2e.wrong_clock",
            environment={"SECONDS_AHEAD": str(ahead)},
        )
        with command:
            (made,) = world.apply(gated(name, 6))
            for step in (3_600, -3_600, 0):
                ahead.write_text(str(days * 86_400 + step))
                time.sleep(1)
            assert name not in world.releases()
            world.eventually(lambda name=name: name in world.releases())  # type: ignore[misc]
            assert 6 <= world.releases()[name] - created(made) < 6 + SLACK


def test_with_every_replica_down_the_cluster_lives_on(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {
            "template": {
                "metadata": {"annotations": {"delay": "6"}},
                "spec": {
                    "containers": [{"name": "main", "image": "busybox"}],
                    "restartPolicy": "Never",
                },
            }
        },
    }
    replicas = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "replicas"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "scaled"}},
            "template": {
                "metadata": {"labels": {"app": "scaled"}, "annotations": {"delay": "3600"}},
                "spec": {"containers": [{"name": "main", "image": "busybox"}]},
            },
        },
    }
    with Command("dev", "--kubeconfig", str(world.plane.kubeconfig), log=log) as dev:
        world.apply(job, replicas, pod("alone", {"delay": "6"}))
        world.eventually(lambda: len(world.all("pods")) == 3)
        dev.kill()
        world.eventually(lambda: not listens(dev.address))

    assert "failed calling webhook" in world.refusal(pod("asks", {"delay": "1"}))
    world.apply(pod("asks-nothing"))
    world.kubectl("scale", "replicaset", "replicas", "--replicas=0")
    world.eventually(lambda: not world.all("pods", "app=scaled"))
    world.kubectl("label", "replicaset", "replicas", "still=editable")
    with controller(world, log):
        world.eventually(lambda: "alone" in world.releases())
        world.eventually(lambda: world.get("job", "job")["status"].get("succeeded") == 1)
        finished = world.all("pods", "batch.kubernetes.io/job-name=job")
        assert [each["metadata"].get("finalizers", []) for each in finished] == [[]]


REFUSING_POLICY: list[Object] = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "nothing-changes"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [{"name": "one", "expression": "object.metadata.name == 'blocked'"}],
            "validations": [{"expression": "false", "message": "not while we are closed"}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "nothing-changes"},
        "spec": {"policyName": "nothing-changes", "validationActions": ["Deny"]},
    },
]


def test_a_release_that_others_refuse_is_told_retried_and_holds_up_nobody(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    world.apply(*REFUSING_POLICY)
    world.apply(gated("blocked", 4), gated("free", 5))
    numbers = itertools.count()  # a label that does not change is not sent
    change = ("label", "pod", "blocked", "--overwrite")
    world.eventually(lambda: refused(world, *change, f"number={next(numbers)}"))
    with controller(world, log):
        world.eventually(lambda: "free" in world.releases())
        assert gates(world.get("pod", "blocked")) == [GATE]
        told = world.eventually(lambda: notes(world, "blocked").get("ReleaseFailed", ""))
        assert "not while we are closed" in told
        assert "it is tried again until it succeeds" in told
        world.kubectl("delete", "validatingadmissionpolicybinding", "nothing-changes")
        world.eventually(lambda: "blocked" in world.releases())
        world.eventually(lambda: "Released" in notes(world, "blocked"))


def test_a_webhook_that_hangs_and_is_passed_over_stops_no_release(
    bare_world: Callable[[], World], log: Path
) -> None:
    """The API server waits for it longer than a first try waits, and goes on then."""
    world, over = bare_world(), threading.Event()

    def hang(seen: Object) -> list[Object]:
        if seen["metadata"]["namespace"] == world.namespace and not gates(seen):
            over.wait(60)
        return []

    hanging = other_webhook(
        world.plane, "hangs", hang, operations=("UPDATE",), failure_policy="Ignore", seconds=15
    )
    with hanging, controller(world, log), ExitStack() as stack:
        stack.callback(over.set)
        world.apply(gated("late", 2))
        world.eventually(lambda: "late" in world.releases(), 60)
        assert "ReleaseFailed" in notes(world, "late")


def refused(world: World, *arguments: str) -> bool:
    try:
        world.kubectl(*arguments)
    except ControlPlaneError:
        return True
    return False


def notes(world: World, name: str) -> dict[str, str]:
    """What Events say about a pod, by reason."""
    events = world.all("events.events.k8s.io")
    return {each["reason"]: each["note"] for each in events if each["regarding"]["name"] == name}


def test_what_came_past_the_webhook_has_its_answer_too(
    bare_world: Callable[[], World], log: Path
) -> None:
    """No webhook saw these pods; one waits by a key that no configuration names."""
    world = bare_world()
    held = "holdfast.dev/held"
    gate = {"schedulingGates": [{"name": GATE}]}
    world.apply(
        pod("unreadable", {"delay": "soon", held: "delay=8s"}, **gate),
        pod("key-has-left", {"old/delay": "8", held: "old/delay=8s"}, **gate),
        pod("nothing-said", {}, **gate),
        pod("lengthened", {"delay": "4"}, **gate),
    )
    world.kubectl("annotate", "pod", "lengthened", "--overwrite", "delay=8")
    made = {each["metadata"]["name"]: created(each) for each in world.all("pods")}
    with controller(world, log):
        world.eventually(lambda: world.releases().keys() == made.keys())
        waited = {name: at - made[name] for name, at in world.releases().items()}
        del waited["nothing-said"]
        assert {name: seconds for name, seconds in waited.items() if seconds < 8} == {}
        world.eventually(lambda: "Released" in notes(world, "unreadable"))
        assert '"soon" is no duration' in notes(world, "unreadable")["Released"]
        assert "holdfast.dev/held decides instead" in notes(world, "unreadable")["Released"]
        world.eventually(lambda: "Released" in notes(world, "nothing-said"))
        assert "no annotation says" in notes(world, "nothing-said")["Released"]
