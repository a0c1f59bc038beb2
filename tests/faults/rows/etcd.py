"""etcd is killed, or its disk is slow."""

import time
from contextlib import closing
from statistics import median

from controlplane.components import API_SERVER, ETCD
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.client import Cluster
from tests.faults.rows.api_server import STARTS
from tests.faults.scenario import Scenario, Table

FAULTS = Table(5)

PAUSED, RUNNING = 0.35, 0.05
"""Seconds for which it stands still at a time, and for which it runs in between.

Of writes that come at any moment half wait for 0.15 s or more: all but those that come while it
runs, or within the last 0.15 s of a pause."""

KINDS = (
    *(f"/api/v1/namespaces/default/{kind}" for kind in ("pods", "secrets", "events")),
    *(f"/api/v1/{kind}" for kind in ("nodes", "namespaces")),
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    *(
        f"/apis/kubevirt.io/v1/namespaces/default/{kind}"
        for kind in ("virtualmachines", "virtualmachineinstances")
    ),
)
"""What Holdfast, the load, the scheduler and KubeVirt read and write. The API server has a client
of etcd for each kind, and each of those looks for an etcd that was away at its own intervals,
from one second to two minutes, 1.6 times as long each time (gRPC's connection back-off). After
three times twenty seconds VMs were there 26 s after pods."""
ANSWERS = 2.0
"""Seconds for one of these questions."""


@FAULTS.row(
    "etcd-killed",
    tested=True,
    broken="dies-of-errors",
    caught_by="stuck",
    outage=True,
    refuses=True,
    halts=True,
)
def killed(scenario: Scenario) -> None:
    """Kill it, and start it again after a while."""
    etcd, server = map(scenario.testbed.plane.process, (ETCD, API_SERVER))
    for _ in range(1 if scenario.short else 3):
        etcd.kill()
        scenario.go_on(20, 12)  # longer than a release waits for its answer
        etcd.start()
        for each in (etcd, server):
            each.wait_ready(STARTS)
        scenario.check("seconds until all kinds were there", _whole(scenario), STARTS)
        scenario.recovered = time.time()
        scenario.go_on(5, 1)


def _whole(scenario: Scenario) -> float:
    """Wait until the API server has every kind from etcd again; return how long that took."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        return scenario.eventually(lambda: all(_is_there(cluster, kind) for kind in KINDS), STARTS)


def _is_there(cluster: Cluster, kind: str) -> bool:
    """Ask for an object that there is not: what is asked for by its name, etcd itself answers."""
    try:
        cluster.request("GET", f"{kind}/none", timeout=ANSWERS)
    except ApiStatusError as exc:
        return exc.is_not_found
    return True


@FAULTS.row("etcd-slow", broken="early", caught_by="early")
def slow(scenario: Scenario) -> None:
    """Let etcd run for 50 ms of every 400 ms, as if each write waited for a busy disk."""
    etcd, load = scenario.testbed.plane.process(ETCD), scenario.load
    began = time.time()
    end = time.monotonic() + scenario.lasts(60, 10)
    try:
        while time.monotonic() < end:
            etcd.pause()
            time.sleep(PAUSED)
            etcd.resume()
            time.sleep(RUNNING)
    finally:
        etcd.resume()
    waits = [one.seconds for one in load.waits if one.began >= began]
    scenario.check("moments in which nothing was created", int(not waits))
    half = median(waits) if waits else PAUSED
    scenario.check("moments in which no creation waited", int(half < PAUSED / 4))
    scenario.figures["seconds for which half of creations waited"] = round(half, 3)
    audit = scenario.testbed.audit
    audit.read()
    worked = [
        one.at
        for name in list(load.due)
        for one in audit.releases[load.namespace, name]
        if one.worked and one.at >= began
    ]
    scenario.figures["released meanwhile"] = len(worked)
    scenario.check("moments in which nothing was released", int(not worked))
