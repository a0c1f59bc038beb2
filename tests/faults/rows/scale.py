"""Very many held pods, and very many that are due in the same second."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import psutil
import yaml

from demo.command import Command
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.accounts import MANIFESTS
from tests.e2e.namespace import Namespace, pod
from tests.e2e.test_leader import metric
from tests.faults.audit import Write
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table(9)

RATE = 100.0
"""Creations a second that a small machine can take before the load begins."""
AT_ONCE = 1_000
"""Pods that are created before the leader has to know of all that there are."""
MANY, CROWD = "many", "crowd"
"""Name suffixes of the namespaces with held pods and with pods that are due at once."""
HELD = "holdfast_held_pods "
"""The metric of how many pods a controller knows to be held."""
LISTERS = 4
"""Clients that list pods without end, to have the API server at its limit."""
IDLE = 5.0
"""Percent of the processors that may be idle while the API server is at its limit."""


def count_held(scenario: Scenario) -> int:
    """Return how many pods are held."""
    return 2_000 if scenario.short else 50_000


def hold(scenario: Scenario) -> None:
    """Make pods that wait for long, as many as are to be held."""
    count, apart = count_held(scenario), namespace_apart(scenario, MANY)
    leader = scenario.testbed.leader()
    asked = {"delay": "36000"}
    for first in range(0, count, AT_ONCE):  # no faster than the API server notifies
        end = first + AT_ONCE
        apart.create_pods(pod(f"many-{number}", asked) for number in range(first, end))
        scenario.eventually(partial(knows, leader, end))


@FAULTS.row(
    "held-50000",
    prepare=hold,
    minutes=7.0,
    alone=True,
    fills=True,
    broken="forgets-to-list",
    caught_by="stuck",
)
def many(scenario: Scenario) -> None:
    """Restart both controllers while 50,000 pods are held."""
    count = count_held(scenario)
    for each in scenario.testbed.controllers:
        each.kill()
    began = time.monotonic()
    for each in scenario.testbed.controllers:
        each.start()
    leader = scenario.testbed.leader()
    scenario.eventually(partial(knows, leader, count))
    scenario.check("seconds until all were known", time.monotonic() - began, BOUND)
    scenario.go_on(10)
    grown = max(
        process.memory_info().rss
        for name, process in scenario.testbed.processes().items()
        if name.startswith("controller")
    )
    scenario.check("MB of a controller", grown / 2**20, memory_limit())
    with scenario.load.asking_nothing():  # the load's own are released over time
        scenario.eventually(lambda: metric(leader, HELD) == count)
        wrong = abs(count - metric(leader, HELD))
    scenario.check("held pods more or less than the leader knows", wrong)
    scenario.testbed.audit.read()
    touched = sum(
        space == name_apart(scenario, MANY) for space, _ in list(scenario.testbed.audit.releases)
    )
    scenario.check("early releases of waiting pods", touched)
    scenario.figures["held"] = count


def name_apart(scenario: Scenario, name: str) -> str:
    """Name a namespace alongside the load's."""
    return f"{name}-{scenario.mark}"


def namespace_apart(scenario: Scenario, name: str) -> Namespace:
    """Make a namespace alongside the load's, whose pods are listed, and deleted, all the time."""
    apart = Namespace.create_new(scenario.testbed.plane, name_apart(scenario, name))
    scenario.apart.append(apart.namespace)
    return apart


def knows(controller: Command, count: int) -> bool:
    """Return whether a controller knows of this many held pods."""
    return metric(controller, HELD) >= count


def crowd(scenario: Scenario) -> list[str]:
    """Name the pods that are due at once."""
    return [f"crowd-{number}" for number in range(200 if scenario.short else 5_000)]


def gather(scenario: Scenario) -> None:
    """Make the pods that are due at once, of which all are to be there before."""
    names = crowd(scenario)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10 + len(names) / RATE)
    scenario.due = due.timestamp()
    asked = {"holdfast.dev/not-before": due.strftime("%Y-%m-%dT%H:%M:%SZ")}
    namespace_apart(scenario, CROWD).create_pods(pod(name, asked) for name in names)


@FAULTS.row(
    "due-5000-at-once",
    prepare=gather,
    minutes=3.5,
    alone=True,
    fills=True,
    broken="slow-hand",
    caught_by="not released",
)
def at_once(scenario: Scenario) -> None:
    """Let 5,000 pods be due in the same second, while others keep the API server busy."""
    names, due = crowd(scenario), scenario.due
    scenario.check("seconds by which the last was made too late", time.time() - due)
    space, audit, stop = name_apart(scenario, CROWD), scenario.testbed.audit, threading.Event()

    def released() -> list[Write]:
        audit.read()
        writes = [audit.releases[space, name] for name in names]
        return [each[-1] for each in writes if each and each[-1].worked]

    with ThreadPoolExecutor(LISTERS) as pool:
        time.sleep(max(0.0, due - time.time() - 1))
        for _ in range(LISTERS):
            pool.submit(list_pods, scenario, stop)
        psutil.cpu_percent()
        scenario.eventually(lambda: len(released()) == len(names), 2 * BOUND)
        idle = round(100 - psutil.cpu_percent(), 1)
        stop.set()
    if scenario.short:
        scenario.figures["percent of the processors idle meanwhile"] = idle
    else:
        scenario.check("percent of the processors idle meanwhile", idle, IDLE)
    found = released()
    scenario.check("early", sum(one.at < due for one in found))
    scenario.check("not released", len(names) - len(found))
    scenario.check("seconds to the last", max((one.ended for one in found), default=0) - due, BOUND)


def list_pods(scenario: Scenario, stop: threading.Event) -> None:
    """List all pods again and again."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        while not stop.is_set():
            with suppress(ClusterError):
                cluster.request("GET", "/api/v1/pods", query={"limit": 500})


def memory_limit() -> float:
    """Read the memory, in MiB, that the manifests give to a controller."""
    text = (MANIFESTS / "base" / "controller.yaml").read_text()
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return float(container["resources"]["limits"]["memory"].removesuffix("Mi"))
