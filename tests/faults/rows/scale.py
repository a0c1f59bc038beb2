"""Very many held pods, and very many that are due in the same second."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import psutil
import yaml

from demo.command import Command
from tests.e2e.accounts import MANIFESTS
from tests.e2e.test_leader import metric
from tests.e2e.world import World, pod
from tests.faults.audit import Write
from tests.faults.scene import BOUND, Fault, Scene
from webhook.cluster import Cluster
from webhook.errors import ClusterError

RATE = 100.0
"""Creations a second that a small machine can take before the load begins."""
AT_ONCE = 1_000
"""Pods that are created before the leader has to know of all that there are."""
MANY, CROWD = "many", "crowd"
"""What the namespaces are called after: of those that are held, and that are due at once."""
HELD = "holdfast_held_pods "
"""The metric of how many pods a controller knows to be held."""
LISTERS = 4
"""Clients that list pods without end, to have the API server at its limit."""
IDLE = 5.0
"""Percent of the processors that may be idle while the API server is at its limit."""


def count_held(scene: Scene) -> int:
    """Tell how many pods are held."""
    return 2_000 if scene.short else 50_000


def hold(scene: Scene) -> None:
    """Make pods that wait for long, as many as are to be held."""
    count, apart = count_held(scene), namespace_apart(scene, MANY)
    leader = scene.arena.leader()
    asked = {"delay": "36000"}
    for first in range(0, count, AT_ONCE):  # no faster than the API server tells of them
        end = first + AT_ONCE
        apart.create_pods(pod(f"many-{number}", asked) for number in range(first, end))
        scene.eventually(partial(knows, leader, end))


def many(scene: Scene) -> None:
    """Restart both controllers while 50,000 pods are held."""
    count = count_held(scene)
    for each in scene.arena.controllers:
        each.kill()
    began = time.monotonic()
    for each in scene.arena.controllers:
        each.start()
    leader = scene.arena.leader()
    scene.eventually(partial(knows, leader, count))
    scene.check("seconds until all were known", time.monotonic() - began, BOUND)
    scene.go_on(10)
    grown = max(
        process.memory_info().rss
        for name, process in scene.arena.processes().items()
        if name.startswith("controller")
    )
    scene.check("MB of a controller", grown / 2**20, memory_limit())
    with scene.load.asking_nothing():  # the load's own are released by and by
        scene.eventually(lambda: metric(leader, HELD) == count)
        wrong = abs(count - metric(leader, HELD))
    scene.check("held pods more or less than the leader knows", wrong)
    scene.arena.audit.read()
    touched = sum(space == name_apart(scene, MANY) for space, _ in scene.arena.audit.releases)
    scene.check("early: of those that wait", touched)
    scene.figures["held"] = count


def name_apart(scene: Scene, name: str) -> str:
    """Name a namespace beside the load's."""
    return f"{name}-{scene.mark}"


def namespace_apart(scene: Scene, name: str) -> World:
    """Make a namespace beside the load's, whose pods are listed, and deleted, all the time."""
    apart = World.in_new_namespace(scene.arena.plane, name_apart(scene, name))
    scene.apart.append(apart.namespace)
    return apart


def knows(controller: Command, count: int) -> bool:
    """Tell whether a controller knows of so many held pods."""
    return metric(controller, HELD) >= count


def crowd(scene: Scene) -> list[str]:
    """Name the pods that are due at once."""
    return [f"crowd-{number}" for number in range(200 if scene.short else 5_000)]


def gather(scene: Scene) -> None:
    """Make the pods that are due at once, of which all are to be there before."""
    names = crowd(scene)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10 + len(names) / RATE)
    scene.due = due.timestamp()
    asked = {"holdfast.dev/not-before": due.strftime("%Y-%m-%dT%H:%M:%SZ")}
    namespace_apart(scene, CROWD).create_pods(pod(name, asked) for name in names)


def at_once(scene: Scene) -> None:
    """Let 5,000 pods be due in the same second, while others keep the API server busy."""
    names, due = crowd(scene), scene.due
    scene.check("seconds by which the last was made too late", time.time() - due)
    space, audit, stop = name_apart(scene, CROWD), scene.arena.audit, threading.Event()

    def released() -> list[Write]:
        audit.read()
        writes = [audit.releases[space, name] for name in names]
        return [each[-1] for each in writes if each and each[-1].worked]

    with ThreadPoolExecutor(LISTERS) as pool:
        time.sleep(max(0.0, due - time.time() - 1))
        for _ in range(LISTERS):
            pool.submit(list_pods, scene, stop)
        psutil.cpu_percent()
        scene.eventually(lambda: len(released()) == len(names), 2 * BOUND)
        idle = round(100 - psutil.cpu_percent(), 1)
        stop.set()
    if scene.short:
        scene.figures["percent of the processors idle meanwhile"] = idle
    else:
        scene.check("percent of the processors idle meanwhile", idle, IDLE)
    found = released()
    scene.check("early", sum(one.at < due for one in found))
    scene.check("not released", len(names) - len(found))
    scene.check("seconds to the last", max((one.ended for one in found), default=0) - due, BOUND)


def list_pods(scene: Scene, stop: threading.Event) -> None:
    """List all pods again and again."""
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        while not stop.is_set():
            with suppress(ClusterError):
                cluster.request("GET", "/api/v1/pods", query={"limit": 500})


def memory_limit() -> float:
    """Read the memory, in MiB, that the manifests give to a controller."""
    text = (MANIFESTS / "base" / "controller.yaml").read_text()
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return float(container["resources"]["limits"]["memory"].removesuffix("Mi"))


FAULTS = [
    Fault(
        "held-50000",
        9,
        many,
        prepare=hold,
        minutes=7.0,
        alone=True,
        fills=True,
        broken="forgets-to-list",
        caught_by="stuck",
        means="A controller that starts lists them page by page, and releases meanwhile what is "
        "due. Where the API server's own cache is behind, it asks for the next page until that has "
        "caught up, and does not begin anew.",
    ),
    Fault(
        "due-5000-at-once",
        9,
        at_once,
        prepare=gather,
        minutes=3.5,
        alone=True,
        fills=True,
        broken="slow-hand",
        caught_by="not released",
        means="Up to 32 releases of a namespace are under way at once; none waits longer than a "
        "minute.",
    ),
]
