"""Hostile tenants in the cluster: their webhooks, their bursts of pods, and their objects.

The load's pods stand for other tenants' pods. They have to be released within a second of their due
time, as in a cluster without hostile tenants.
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
from tests.faults.audit import PodKey
from tests.faults.load import GATE
from tests.faults.rows.actors import MAX_LATE, lateness
from tests.faults.rows.own import (
    create_extra_namespace,
    due_times,
    extra_namespace,
    held_pods,
    own_prefix,
)
from tests.faults.rows.scale import RATE
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table()

MAX_MEDIAN_LATE = 1.0
"""Seconds by which half of other tenants' pods may be late; by default, all of them."""
RESPONSE_SECONDS = 1.0
"""Seconds that the webhook takes for each response."""
FORGED = {RELEASED_ANNOTATION: "2020-01-01T00:00:00Z", "holdfast.dev/held": "delay=1"}
"""Annotations that pretend an earlier release, and a shorter delay."""
OBJECTS_PER_POD = 5
"""Objects that only one pod waits for: the first is not ready before the end."""
SHARED = "shared"
"""The object that all of the pods wait for."""
CHANGES = 100.0
"""Changes of objects a second that a small machine can handle in addition to the load."""
SHARED_EVERY = 25
"""One in this many changes is of the shared object, after which every pod is checked again."""
IN_FLIGHT = 16
"""Requests in flight."""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"


@FAULTS.row(
    "neighbour-rewrites",
    alone=True,
    broken="goes-by-labels",
    caught_by="pods without their label not released",
)
def rewriting(scenario: Scenario) -> None:
    """Have another webhook remove our label, or forge our annotations, at creation and each update.

    Each of its responses is slow.
    """
    plane = scenario.testbed.plane
    strips, rewrites = (create_extra_namespace(scenario, name) for name in ("strips", "rewrites"))
    namespaces = [strips.namespace, rewrites.namespace]
    names = [f"{own_prefix(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    manifests = [pod(name, {"delay": "15"}) for name in names]

    def decide(manifest: Object) -> list[Object]:
        time.sleep(RESPONSE_SECONDS)
        meta = manifest["metadata"]
        annotations = meta.get("annotations", {})
        if meta["namespace"] == rewrites.namespace:
            forged = {**annotations, **FORGED}
            return [{"op": "add", "path": "/metadata/annotations", "value": forged}]
        if HELD_LABEL in meta.get("labels", {}):
            return [{"op": "remove", "path": f"/metadata/labels/{pointer(HELD_LABEL)}"}]
        return []

    def is_called() -> bool:
        (manifest,) = strips.create_pods(manifests[:1], dry_run=True)
        return HELD_LABEL not in manifest["metadata"].get("labels", {})

    operations = ("CREATE", "UPDATE")
    with other_webhook(
        plane, "zz-other", decide, operations=operations, changes=True, namespaces=namespaces
    ):
        seconds = scenario.eventually(is_called)
        scenario.check("seconds until the other webhook was called", seconds, BOUND)
        pods = [*strips.create_pods(manifests), *rewrites.create_pods(manifests)]
        scenario.own |= due_times(pods)
        scenario.check(
            "pods admitted without a gate", sum(GATE not in gates(manifest) for manifest in pods)
        )
        due = min(scenario.own.values())
        scenario.wait(max(0.0, due - time.time()))
        for ns, description in (
            (strips, "without their label"),
            (rewrites, "with forged annotations"),
        ):
            scenario.eventually(partial(_has_no_held_pods, ns), BOUND)
            scenario.check(f"pods {description} not released", len(held_pods(ns)))
        _check_other_tenants(scenario, due, time.time())


def _has_no_held_pods(ns: Namespace) -> bool:
    return not held_pods(ns)


def burst_keys(scenario: Scenario) -> list[PodKey]:
    """Return the keys of the pods in one namespace that are due at once."""
    count = 200 if scenario.short else 3_000
    namespace = extra_namespace(scenario, "burst").namespace
    return [(namespace, f"burst-{number}") for number in range(count)]


def create_burst(scenario: Scenario) -> None:
    """Create the pods before they are due, with time to spare on a busy machine.

    No scheduler binds them.
    """
    keys, ns = burst_keys(scenario), create_extra_namespace(scenario, "burst")
    scenario.due = int(time.time() + 15 + 2 * len(keys) / RATE)
    timestamp = datetime.fromtimestamp(scenario.due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotations = {"holdfast.dev/not-before": timestamp}
    ns.create_pods(pod(name, annotations, schedulerName="none") for _, name in keys)


@FAULTS.row(
    "neighbour-crowd",
    prepare=create_burst,
    minutes=2.5,
    alone=True,
    fills=True,
    broken="largest-crowd-first",
    caught_by="seconds late in other namespaces, median",
)
def burst(scenario: Scenario) -> None:
    """Let 3,000 pods of one namespace be due in the same second.

    They use all of a small machine, on which the API server itself then delays others.
    """
    keys, due = burst_keys(scenario), scenario.due
    scenario.check("seconds by which the last pod was created too late", time.time() - due)
    time.sleep(max(0.0, due - time.time()))
    scenario.eventually(lambda: len(_released(scenario, keys)) == len(keys), BOUND)
    until = time.time()
    scenario.check("burst pods not released", len(keys) - len(_released(scenario, keys)))
    _check_other_tenants(scenario, due - 1, until, MAX_LATE)


def count_waiting(scenario: Scenario) -> int:
    """Return how many pods wait for objects: five objects each, and one shared object."""
    return 40 if scenario.short else 1_000


def create_waiting_pods(scenario: Scenario) -> None:
    """Create a namespace with the objects, and the pods that wait for them."""
    ns = create_extra_namespace(scenario, "after")
    numbers = range(count_waiting(scenario) * OBJECTS_PER_POD)
    with (
        closing(Cluster.connect(ns.plane.kubeconfig)) as cluster,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):

        def create(name: str) -> None:
            slice_ = {"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}}}
            ready = name != SHARED and int(name.removeprefix("s-")) % OBJECTS_PER_POD > 0
            body = msgspec.json.encode({**slice_, "addressType": "IPv4", **_endpoints(ready=ready)})
            cluster.request("POST", SLICES.format(ns.namespace), body=body)

        list(pool.map(create, [SHARED, *(f"s-{number}" for number in numbers)]))
    ns.create_pods(
        pod(f"waits-{number}", {"holdfast.dev/after": _targets(number)}, schedulerName="none")
        for number in range(count_waiting(scenario))
    )


@FAULTS.row(
    "neighbour-after-5000",
    prepare=create_waiting_pods,
    minutes=3.0,
    alone=True,
    fills=True,
    broken="asks-everybody",
    caught_by="seconds late in other namespaces",
)
def changing_objects(scenario: Scenario) -> None:
    """Change 5,000 objects that a tenant's pods wait for, and one that all of them wait for."""
    namespace = extra_namespace(scenario, "after").namespace
    keys = [(namespace, f"waits-{number}") for number in range(count_waiting(scenario))]
    path = SLICES.format(namespace)
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:

        def change(name: str, ready: bool) -> None:
            body = msgspec.json.encode(_endpoints(ready=ready))
            cluster.request("PATCH", f"{path}/{name}", body=body, content_type=MERGE_PATCH)

        began = time.time()
        _change_repeatedly(scenario, change)
        until = time.time()
        scenario.check("pods released before their objects", len(_released(scenario, keys)))
        _check_other_tenants(scenario, began, until)
        not_ready = [f"s-{number * OBJECTS_PER_POD}" for number in range(len(keys))]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(partial(change, ready=True), [SHARED, *not_ready]))
    scenario.eventually(lambda: len(_released(scenario, keys)) == len(keys), BOUND)
    scenario.check("waiting pods not released", len(keys) - len(_released(scenario, keys)))


def _change_repeatedly(scenario: Scenario, change: Callable[[str, bool], None]) -> None:
    """Make objects not ready and ready again at a steady rate."""
    began, seconds = time.monotonic(), scenario.long_or_short(30, 8)
    numbers = range(count_waiting(scenario) * OBJECTS_PER_POD)
    names = [f"s-{number}" for number in numbers if number % OBJECTS_PER_POD]

    def flip(name: str) -> None:
        change(name, False)
        change(name, True)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for flipped in range(int(seconds * CHANGES / 2)):
            time.sleep(max(0.0, began + 2 * flipped / CHANGES - time.monotonic()))
            position = flipped % SHARED_EVERY
            pool.submit(flip, names[flipped % len(names)] if position else SHARED)


def _targets(number: int) -> str:
    targets = (f"service/s-{number * OBJECTS_PER_POD + index}" for index in range(OBJECTS_PER_POD))
    return ", ".join([f"service/{SHARED}", *targets])


def _endpoints(*, ready: bool) -> Object:
    return {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]}


def _released(scenario: Scenario, keys: Sequence[PodKey]) -> list[PodKey]:
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    return [key for key in keys if any(write.succeeded for write in releases[key])]


def _check_other_tenants(
    scenario: Scenario, since: float, until: float, limit: float = MAX_MEDIAN_LATE
) -> None:
    """Check the lateness of the load's pods that were due in a span: the median and the maximum."""
    late_seconds = sorted(lateness(scenario, since, until))
    scenario.check("no due pods in other namespaces", int(not late_seconds))
    if late_seconds:
        scenario.check(
            "seconds late in other namespaces, median",
            late_seconds[len(late_seconds) // 2],
            MAX_MEDIAN_LATE,
        )
        scenario.check("seconds late in other namespaces", late_seconds[-1], limit)
