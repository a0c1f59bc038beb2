"""etcd is killed, or its disk is slow."""

import time
from contextlib import closing
from statistics import median

from controlplane.components import API_SERVER, ETCD
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.client import Cluster
from tests.faults.rows.api_server import START_SECONDS
from tests.faults.scenario import Scenario, Table

FAULTS = Table()

PAUSED, RUNNING = 0.35, 0.05
"""Seconds for which etcd is paused each time, and for which it runs in between.

Half of all writes wait for 0.15 s or more: all except those that arrive while etcd runs, or in the
last 0.15 s of a pause."""

KINDS = (
    *(f"/api/v1/namespaces/default/{kind}" for kind in ("pods", "secrets", "events")),
    *(f"/api/v1/{kind}" for kind in ("nodes", "namespaces")),
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    *(
        f"/apis/kubevirt.io/v1/namespaces/default/{kind}"
        for kind in ("virtualmachines", "virtualmachineinstances")
    ),
)
"""What Holdfast, the load, the scheduler and KubeVirt read and write. The API server has an etcd
client for each kind. Each client reconnects on its own, after one second to two minutes, 1.6 times
as long each time (gRPC's connection back-off). After three outages of twenty seconds, VMs were
readable 26 s later than pods."""
READ_TIMEOUT = 2.0
"""Seconds for one of these reads."""


@FAULTS.row(
    "etcd-killed",
    tested=True,
    broken="dies-of-errors",
    caught_by="stuck",
    outage=True,
    rejects=True,
    halts_releases=True,
)
def killed(scenario: Scenario) -> None:
    """Kill etcd, and start it again after a while."""
    etcd, server = map(scenario.testbed.plane.process, (ETCD, API_SERVER))
    for _ in range(1 if scenario.short else 3):
        etcd.kill()
        scenario.wait(20, 12)  # longer than the timeout of a release
        etcd.start()
        for process in (etcd, server):
            process.wait_ready(START_SECONDS)
        scenario.check(
            "seconds until all kinds were readable", _await_all_kinds(scenario), START_SECONDS
        )
        scenario.recovered = time.time()
        scenario.wait(5, 1)


def _await_all_kinds(scenario: Scenario) -> float:
    """Wait until the API server can read every kind from etcd, and return the seconds it took."""
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        return scenario.eventually(
            lambda: all(_is_readable(cluster, kind) for kind in KINDS), START_SECONDS
        )


def _is_readable(cluster: Cluster, kind: str) -> bool:
    """Get an object that does not exist: a get by name reads from etcd, not from a cache."""
    try:
        cluster.request("GET", f"{kind}/none", timeout=READ_TIMEOUT)
    except ApiStatusError as exc:
        return exc.is_not_found
    return True


@FAULTS.row("etcd-slow", broken="early", caught_by="early")
def slow(scenario: Scenario) -> None:
    """Let etcd run for 50 ms of every 400 ms, as if each write waited for a busy disk."""
    etcd, load = scenario.testbed.plane.process(ETCD), scenario.load
    began = time.time()
    end = time.monotonic() + scenario.long_or_short(60, 10)
    try:
        while time.monotonic() < end:
            etcd.pause()
            time.sleep(PAUSED)
            etcd.resume()
            time.sleep(RUNNING)
    finally:
        etcd.resume()
    latencies = [latency.seconds for latency in load.latencies if latency.began >= began]
    scenario.check("no pods created", int(not latencies))
    median_latency = median(latencies) if latencies else PAUSED
    scenario.check("creations not slowed down", int(median_latency < PAUSED / 4))
    audit = scenario.testbed.audit
    audit.read()
    was_released = any(
        write.succeeded and write.at >= began
        for name in list(load.due)
        for write in audit.releases[load.namespace, name]
    )
    scenario.check("no pods released", int(not was_released))
