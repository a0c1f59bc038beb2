"""Thousands of held pods, and thousands of pods that are due in the same second."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import psutil

from demo.command import Command
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import pod
from tests.faults.rows.own import create_extra_namespace, extra_namespace, final_releases
from tests.faults.scenario import BOUND, Scenario, Table
from tests.server.memory import allowed
from tests.support.scrapes import metric

FAULTS = Table()

RATE = 100.0
"""Creations a second that a small machine can handle before the load starts."""
BATCH = 1_000
"""Pods that are created before the leader has to know all pods so far."""
HELD, DUE = "held", "due"
"""Name suffixes of the namespaces with held pods and with pods that are due at once."""
HELD_PODS = "holdfast_held_pods "
"""The metric with the number of held pods."""
LISTERS = 4
"""Clients that list pods in a loop, to keep the API server at its limit."""
MAX_IDLE = 5.0
"""Percent of processor time that may be idle while the API server is at its limit."""


def count_held(scenario: Scenario) -> int:
    """Return how many pods are held."""
    return 2_000 if scenario.short else 50_000


def create_held_pods(scenario: Scenario) -> None:
    """Create the pods that are held for long."""
    count, ns = count_held(scenario), create_extra_namespace(scenario, HELD)
    leader = scenario.testbed.leader()
    annotations = {"delay": "36000"}
    for first in range(0, count, BATCH):  # not faster than watches report them
        end = first + BATCH
        ns.create_pods(pod(f"held-{number}", annotations) for number in range(first, end))
        scenario.eventually(partial(knows, leader, end))


@FAULTS.row(
    "held-50000",
    prepare=create_held_pods,
    minutes=7.0,
    alone=True,
    fills=True,
    broken="forgets-to-list",
    caught_by="stuck",
)
def many(scenario: Scenario) -> None:
    """Restart both controllers while 50,000 pods are held."""
    count = count_held(scenario)
    for controller in scenario.testbed.controllers:
        controller.kill()
    began = time.monotonic()
    for controller in scenario.testbed.controllers:
        controller.start()
    leader = scenario.testbed.leader()
    scenario.eventually(partial(knows, leader, count))
    scenario.check("seconds until the leader knew all held pods", time.monotonic() - began, BOUND)
    scenario.wait(10)
    peak_bytes = max(
        process.memory_info().rss
        for name, process in scenario.testbed.processes().items()
        if name.startswith("controller")
    )
    scenario.check("MiB of a controller", peak_bytes / 2**20, allowed("controller") / 2**20)
    with scenario.load.without_annotations():  # until the load's held pods are released
        scenario.eventually(lambda: metric(leader, HELD_PODS) == count)
        difference = abs(count - metric(leader, HELD_PODS))
    scenario.check("held pods miscounted by the leader", difference)
    scenario.testbed.audit.read()
    releases = sum(
        namespace == extra_namespace(scenario, HELD).namespace
        for namespace, _ in list(scenario.testbed.audit.releases)
    )
    scenario.check("early releases of held pods", releases)


def knows(controller: Command, count: int) -> bool:
    """Return whether a controller knows at least this many held pods."""
    return metric(controller, HELD_PODS) >= count


def due_names(scenario: Scenario) -> list[str]:
    """Return the names of the pods that are due at once."""
    return [f"due-{number}" for number in range(200 if scenario.short else 5_000)]


def create_due_pods(scenario: Scenario) -> None:
    """Create the pods that are due at once, all of them before that time."""
    names = due_names(scenario)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10 + len(names) / RATE)
    scenario.due = due.timestamp()
    annotations = {"holdfast.dev/not-before": due.strftime("%Y-%m-%dT%H:%M:%SZ")}
    create_extra_namespace(scenario, DUE).create_pods(pod(name, annotations) for name in names)


@FAULTS.row(
    "due-5000-at-once",
    prepare=create_due_pods,
    minutes=3.5,
    alone=True,
    fills=True,
    broken="slow-hand",
    caught_by="pods not released",
)
def at_once(scenario: Scenario) -> None:
    """Let 5,000 pods be due in the same second, while others keep the API server busy."""
    names, due = due_names(scenario), scenario.due
    scenario.check("seconds by which the last pod was created too late", time.time() - due)
    released = partial(final_releases, scenario, extra_namespace(scenario, DUE), names)
    stop = threading.Event()
    with ThreadPoolExecutor(LISTERS) as pool:
        time.sleep(max(0.0, due - time.time() - 1))
        for _ in range(LISTERS):
            pool.submit(list_pods, scenario, stop)
        psutil.cpu_percent()
        scenario.eventually(lambda: len(released()) == len(names), 2 * BOUND)
        idle = round(100 - psutil.cpu_percent(), 1)
        stop.set()
    if not scenario.short:
        scenario.check("percent of processor time idle", idle, MAX_IDLE)
    final_writes = released().values()
    scenario.check("early", sum(write.at < due for write in final_writes))
    scenario.check("pods not released", len(names) - len(final_writes))
    scenario.check(
        "seconds until the last release",
        max((write.ended for write in final_writes), default=0) - due,
        BOUND,
    )


def list_pods(scenario: Scenario, stop: threading.Event) -> None:
    """List pods until stopped."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        while not stop.is_set():
            with suppress(ClusterError):
                cluster.request("GET", "/api/v1/pods", query={"limit": 500})
