"""The API server is restarted, unreachable, slow, busy, silent, or restored from a snapshot."""

import json
import shutil
import time
from contextlib import suppress

from controlplane.components import API_SERVER, ETCD
from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane
from holdfast.webhook.kube.reflector import WATCH_SILENCE_SECONDS
from tests.e2e.namespace import pod
from tests.faults.load import GATE
from tests.faults.rows.own import due_times, own_prefix, pods_with_gate
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table()

GONE = 410
START_SECONDS = 120.0
"""Seconds in which the API server may start: each of its caches may take a minute."""
SNAPSHOT_PODS = 10
"""Pods that are held in the snapshot, and released before it is restored."""
WATCHES_RENEWED = WATCH_SILENCE_SECONDS + 5.0
"""Seconds after which all silent watches have been replaced: the next row needs working ones."""
LOOKUP_FAILED = "could not look up what it needs"
"""The message about a pod whose lookup fails."""


@FAULTS.row(
    "api-server-restarted",
    broken="gives-up",
    caught_by="stuck",
    outage=True,
    rejects=True,
    halts_releases=True,
)
def restarted(scenario: Scenario) -> None:
    """Restart the API server three times, as in an upgrade and after a crash."""
    server = scenario.testbed.plane.process(API_SERVER)
    for action in (server.stop, server.kill, server.stop)[: 1 if scenario.short else 3]:
        action()
        scenario.wait(2)
        server.start()
        server.wait_ready(START_SECONDS)
        scenario.wait(5, 1)


@FAULTS.row(
    "api-server-unreachable",
    minutes=3.0,
    broken="guesses",
    caught_by="VM pods admitted without a lookup",
    halts_releases=True,
)
def unreachable(scenario: Scenario) -> None:
    """Cut Holdfast off from the API server: connections are refused, then requests hang."""
    scenario.testbed.proxy.turn(unreachable=True)
    check_vm_pods_rejected(scenario)
    scenario.wait(60, 12)
    if not scenario.short:
        scenario.testbed.proxy.turn(hanging=True)
        check_vm_pods_rejected(scenario)
        scenario.wait(60)
    recover(scenario)


@FAULTS.row("api-server-slow", broken="early", caught_by="early")
def slow(scenario: Scenario) -> None:
    """Delay each of Holdfast's requests by two seconds."""
    scenario.testbed.proxy.turn(delay=2.0)
    check_vm_pods_rejected(scenario)
    scenario.wait(60, 12)
    recover(scenario)


@FAULTS.row(
    "api-server-busy",
    minutes=2.5,
    broken="hurries",
    caught_by="releases retried before Retry-After",
    halts_releases=True,
)
def busy(scenario: Scenario) -> None:
    """Respond with 429 for a while, then with 503."""
    proxy = scenario.testbed.proxy
    early_retries = proxy.early_retries
    for status in (429, 503):
        injected_count = proxy.injected[status]
        proxy.turn(status=status)
        check_vm_pods_rejected(scenario)
        scenario.wait(45, 6)
        scenario.check(f"no {status} response sent", int(proxy.injected[status] == injected_count))
    recover(scenario)
    scenario.check("releases retried before Retry-After", proxy.early_retries - early_retries)


def check_vm_pods_rejected(scenario: Scenario) -> None:
    """Check that a VM's pod is rejected while its VM cannot be looked up."""
    admitted_count = 0

    def is_rejected() -> bool:
        nonlocal admitted_count
        try:
            scenario.testbed.vm_load.dry_run_pod()
        except ControlPlaneError as exc:
            return LOOKUP_FAILED in str(exc)
        admitted_count += 1
        return False

    seconds = scenario.eventually(is_rejected)
    scenario.check("seconds until a VM pod without a lookup was rejected", seconds, BOUND)
    scenario.check("VM pods admitted without a lookup", admitted_count)


def recover(scenario: Scenario) -> None:
    """End the fault, and wait until a VM's pod requires its node again."""
    scenario.testbed.proxy.turn()
    scenario.recovered = time.time()

    def requires_node() -> bool:
        with suppress(ControlPlaneError):
            return bool(scenario.testbed.vm_load.dry_run_pod())
        return False

    scenario.check(
        "seconds until a VM pod required its node again", scenario.eventually(requires_node), BOUND
    )


@FAULTS.row("watches-silent", tested=True, broken="trusts-silence", caught_by="stuck")
def silent(scenario: Scenario) -> None:
    """Silence each open watch permanently, without closing it.

    Nothing repairs the watches, so each release counts from its own due time.
    """
    muted_watches = scenario.testbed.proxy.mute()
    scenario.check("no open watch to silence", int(not muted_watches))
    scenario.wait(60, WATCHES_RENEWED)


@FAULTS.row("watches-expired", broken="dies-of-gone", caught_by="stuck", halts_releases=True)
def gone(scenario: Scenario) -> None:
    """Expire every watch."""
    proxy = scenario.testbed.proxy
    injected_count = proxy.injected[GONE]
    proxy.turn(expired=True)
    proxy.cut()
    scenario.wait(60, 8)
    proxy.turn()
    # as a status, and as an event
    scenario.check(
        "kinds of watch expiry not sent", max(0, 2 - (proxy.injected[GONE] - injected_count))
    )


@FAULTS.row(
    "etcd-restored",
    broken="forgets-to-list",
    caught_by="stuck",
    outage=True,
    rejects=True,
    halts_releases=True,
)
def restored(scenario: Scenario) -> None:
    """Restore etcd from a snapshot that is some seconds old.

    Kubernetes' own components are restarted after that, as its guide requires, since their caches
    are outdated. Holdfast is not restarted.
    """
    plane = scenario.testbed.plane
    names = [f"{own_prefix(scenario)}{number}" for number in range(SNAPSHOT_PODS)]
    scenario.own |= due_times(scenario.ns.create_pods(pod(name, {"delay": "4"}) for name in names))
    server, etcd = plane.process(API_SERVER), plane.process(ETCD)
    data_folder, snapshot = plane.directory / "etcd", plane.directory / "snapshot"
    server.stop()
    etcd.stop()
    shutil.copytree(data_folder, snapshot)
    for process in (etcd, server):
        process.start()
        process.wait_ready(START_SECONDS)
    scenario.wait(20, 6)
    scenario.eventually(lambda: not pods_with_gate(scenario, GATE))
    old_version = version(plane)
    server.stop()
    etcd.stop()
    shutil.rmtree(data_folder)
    snapshot.rename(data_folder)
    for process in (etcd, server):
        process.start()
        process.wait_ready(START_SECONDS)
    scenario.check("resource version did not go back", int(version(plane) >= old_version))
    components = [plane.process(name) for name in plane.names if name not in {API_SERVER, ETCD}]
    for process in components:
        if process.running:
            process.kill()
    scenario.eventually(lambda: all(process.running for process in components))
    audit, namespace = scenario.testbed.audit, scenario.ns.namespace

    def count_released_again() -> int:
        audit.read()
        releases = [audit.releases[namespace, name] for name in names]
        return sum(sum(write.succeeded for write in writes) > 1 for writes in releases)

    scenario.eventually(lambda: count_released_again() == SNAPSHOT_PODS)
    scenario.check("restored pods not released again", SNAPSHOT_PODS - count_released_again())


def version(plane: ControlPlane) -> int:
    """Return the resource version of the list of pods, which every write to etcd increases."""
    pod_list = json.loads(plane.kubectl("get", "--raw", "/api/v1/pods?limit=1"))
    return int(pod_list["metadata"]["resourceVersion"])
