"""Hostile neighbours in the cluster: their webhook, their crowd, and their objects.

Other tenants' pods are the load's. They are to be released within a second of their time, as in a
cluster without such neighbours.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import msgspec

from holdfast.webhook.framework.json_patch import pointer
from holdfast.webhook.kube.api import MERGE_PATCH
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.annotations import HELD_LABEL, RELEASED_ANNOTATION
from tests.e2e.foreign_webhook import Object, other_webhook
from tests.e2e.namespace import Namespace, gates, pod
from tests.faults.load import GATE
from tests.faults.rows.actors import ELSEWHERE, lateness
from tests.faults.rows.own import due_times, mine
from tests.faults.rows.scale import RATE, name_apart
from tests.faults.scenario import BOUND, Names, Scenario, Table

FAULTS = Table(7)

WITHIN = 1.0
"""Seconds by which other tenants' pods may be late."""
STRIPS, REWRITES = "strips", "rewrites"
"""Suffixes of the namespaces in which the webhook removes our label, and rewrites our notes."""
SLOW = 1.0
"""Seconds that the webhook takes for each answer."""
FORGED = {RELEASED_ANNOTATION: "2020-01-01T00:00:00Z", "holdfast.dev/held": "delay=1"}
"""Notes on a pod that was released long ago, and asked for less than it does."""
OBJECTS_OF_ONE = 5
"""Objects that each pod alone waits for: the first is never ready before the end."""
SHARED = "shared"
"""The object that all of them wait for."""
CHANGES = 100.0
"""Changes of objects a second that a small machine takes alongside the load."""
SHARED_EVERY = 25
"""Of so many changes one is of the shared object, for which every pod is asked about again."""
AT_ONCE = 16
"""Requests at once."""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"


@FAULTS.row(
    "neighbour-rewrites",
    alone=True,
    broken="goes-by-labels",
    caught_by="pods without their label not released",
)
def rewriting(scenario: Scenario) -> None:
    """Have another webhook remove our label, or forge our notes, at creation and at each update.

    It takes its time each time.
    """
    plane = scenario.testbed.plane
    spaces = [name_apart(scenario, name) for name in (STRIPS, REWRITES)]
    strips, rewrites = (Namespace.create_new(plane, space) for space in spaces)
    scenario.apart += spaces
    names = [f"{mine(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    wanted = [pod(name, {"delay": "15"}) for name in names]

    def decide(seen: Object) -> list[Object]:
        time.sleep(SLOW)
        about = seen["metadata"]
        notes = about.get("annotations", {})
        if about["namespace"] == rewrites.namespace:
            forged = {**notes, **FORGED}
            return [{"op": "add", "path": "/metadata/annotations", "value": forged}]
        if HELD_LABEL in about.get("labels", {}):
            return [{"op": "remove", "path": f"/metadata/labels/{pointer(HELD_LABEL)}"}]
        return []

    def is_called() -> bool:
        (seen,) = strips.create_pods(wanted[:1], dry_run=True)
        return HELD_LABEL not in seen["metadata"].get("labels", {})

    both = ("CREATE", "UPDATE")
    with other_webhook(plane, "zz-other", decide, operations=both, changes=True, namespaces=spaces):
        called = scenario.eventually(is_called)
        scenario.check("seconds until the neighbour was called", called, BOUND)
        made = [*strips.create_pods(wanted), *rewrites.create_pods(wanted)]
        scenario.own |= due_times(made)
        scenario.check("pods let through", sum(GATE not in gates(one) for one in made))
        due = min(scenario.own.values())
        scenario.go_on(max(0.0, due - time.time()))
        for ns, what in ((strips, "without their label"), (rewrites, "with forged notes")):
            scenario.eventually(partial(_is_free, ns), BOUND)
            scenario.check(f"pods {what} not released", len(_held(ns)))
        _others(scenario, due, time.time())


def _is_free(ns: Namespace) -> bool:
    return not _held(ns)


def _held(ns: Namespace) -> list[Object]:
    return [one for one in ns.all("pods") if GATE in gates(one)]


def flock(scenario: Scenario) -> list[Names]:
    """Return the pods of one namespace that are due at once; nothing schedules them."""
    count = 200 if scenario.short else 3_000
    return [(name_apart(scenario, "flock"), f"flock-{number}") for number in range(count)]


def gather(scenario: Scenario) -> None:
    """Make them before they are due; a machine that does something else needs longer."""
    keys = flock(scenario)
    ns = Namespace.create_new(scenario.testbed.plane, keys[0][0])
    scenario.apart.append(ns.namespace)
    began = time.time()
    scenario.due = int(began + 15 + 2 * len(keys) / RATE)
    at = datetime.fromtimestamp(scenario.due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = {"holdfast.dev/not-before": at}
    ns.create_pods(pod(name, asked, schedulerName="none") for _, name in keys)


@FAULTS.row(
    "neighbour-crowd",
    prepare=gather,
    minutes=2.5,
    alone=True,
    fills=True,
    broken="largest-crowd-first",
    caught_by="seconds late elsewhere, median",
)
def crowding(scenario: Scenario) -> None:
    """Let 3,000 pods of one namespace be due in the same second.

    They take all of a small machine, on which the API server itself is late for others.
    """
    keys, due = flock(scenario), scenario.due
    scenario.check("seconds by which the last was made too late", time.time() - due)
    time.sleep(max(0.0, due - time.time()))
    scenario.eventually(lambda: len(_released(scenario, keys)) == len(keys), BOUND)
    until = time.time()
    scenario.figures["seconds until the crowd was released"] = round(until - due, 1)
    scenario.check("pods of the crowd not released", len(keys) - len(_released(scenario, keys)))
    _others(scenario, due - 1, until, ELSEWHERE)


def waiters(scenario: Scenario) -> int:
    """Return how many pods wait for objects: five objects each, and one that they share."""
    return 40 if scenario.short else 1_000


def entangle(scenario: Scenario) -> None:
    """Make a namespace with the objects and the pods that wait for them."""
    space = name_apart(scenario, "after")
    ns = Namespace.create_new(scenario.testbed.plane, space)
    scenario.apart.append(space)
    numbers = range(waiters(scenario) * OBJECTS_OF_ONE)
    with (
        closing(Cluster.connect(ns.plane.kubeconfig)) as cluster,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def make(name: str) -> None:
            one = {"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}}}
            ready = name != SHARED and int(name.removeprefix("s-")) % OBJECTS_OF_ONE > 0
            body = msgspec.json.encode({**one, "addressType": "IPv4", **_endpoints(ready=ready)})
            cluster.request("POST", SLICES.format(space), body=body)

        list(pool.map(make, [SHARED, *(f"s-{number}" for number in numbers)]))
    ns.create_pods(
        pod(f"waits-{number}", {"holdfast.dev/after": _targets(number)}, schedulerName="none")
        for number in range(waiters(scenario))
    )


@FAULTS.row(
    "neighbour-after-5000",
    prepare=entangle,
    minutes=3.0,
    alone=True,
    fills=True,
    broken="asks-everybody",
    caught_by="seconds late elsewhere",
)
def entangled(scenario: Scenario) -> None:
    """Change 5,000 objects that a tenant's pods wait for, and one that all of them wait for."""
    space = name_apart(scenario, "after")
    keys = [(space, f"waits-{number}") for number in range(waiters(scenario))]
    path = SLICES.format(space)
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:

        def change(name: str, ready: bool) -> None:
            body = msgspec.json.encode(_endpoints(ready=ready))
            cluster.request("PATCH", f"{path}/{name}", body=body, content_type=MERGE_PATCH)

        began = time.time()
        made = _churn(scenario, change)
        until = time.time()
        scenario.figures["changes a second"] = round(made / (until - began), 1)
        scenario.check("pods released before their objects", len(_released(scenario, keys)))
        _others(scenario, began, until)
        firsts = [f"s-{number * OBJECTS_OF_ONE}" for number in range(len(keys))]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(partial(change, ready=True), [SHARED, *firsts]))
    scenario.eventually(lambda: len(_released(scenario, keys)) == len(keys), BOUND)
    scenario.check("waiting pods not released", len(keys) - len(_released(scenario, keys)))


def _churn(scenario: Scenario, change: Callable[[str, bool], None]) -> int:
    """Take objects away and bring them back, at a steady rate; return how many changes it was."""
    began, seconds = time.monotonic(), scenario.lasts(30, 8)
    numbers = range(waiters(scenario) * OBJECTS_OF_ONE)
    others = [f"s-{number}" for number in numbers if number % OBJECTS_OF_ONE]

    def flip(name: str) -> None:
        change(name, False)
        change(name, True)

    flips = int(seconds * CHANGES / 2)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for flipped in range(flips):
            time.sleep(max(0.0, began + 2 * flipped / CHANGES - time.monotonic()))
            turn = flipped % SHARED_EVERY
            pool.submit(flip, others[flipped % len(others)] if turn else SHARED)
    return 2 * flips


def _targets(number: int) -> str:
    own = (f"service/s-{number * OBJECTS_OF_ONE + each}" for each in range(OBJECTS_OF_ONE))
    return ", ".join([f"service/{SHARED}", *own])


def _endpoints(*, ready: bool) -> Object:
    return {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]}


def _released(scenario: Scenario, keys: Sequence[Names]) -> list[Names]:
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    return [key for key in keys if any(one.worked for one in releases[key])]


def _others(scenario: Scenario, since: float, until: float, most: float = WITHIN) -> None:
    """Check by how much the load's pods were late meanwhile: half of them, and each."""
    late = sorted(lateness(scenario, since, until))
    scenario.check("moments without a due pod elsewhere", int(not late))
    if late:
        scenario.check("seconds late elsewhere, median", late[len(late) // 2], WITHIN)
        scenario.check("seconds late elsewhere", late[-1], most)
