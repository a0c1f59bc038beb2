"""The API server ends, is out of reach, slow, busy, silent, or has forgotten."""

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
from tests.faults.rows.own import due_times, mine, waiting
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table(4)

GONE = 410
STARTS = 120.0
"""Seconds in which the API server may start: it gives each of its caches a minute."""
WITNESSES = 10
"""Pods that are held in the snapshot, and released before it is restored."""
NOTICED = WATCH_SILENCE_SECONDS + 5.0
"""Seconds after which no silent watch is left, so that the next row has working ones."""
UNSEEN = "could not look up what it needs"
"""The message about a pod whose lookup fails."""


@FAULTS.row(
    "api-server-restarted",
    broken="gives-up",
    caught_by="stuck",
    outage=True,
    refuses=True,
    halts=True,
)
def restarted(scenario: Scenario) -> None:
    """Restart it three times: as an upgrade does, and as a crash does."""
    server = scenario.testbed.plane.process(API_SERVER)
    for how in (server.stop, server.kill, server.stop)[: 1 if scenario.short else 3]:
        how()
        scenario.go_on(2)
        server.start()
        server.wait_ready(STARTS)
        scenario.go_on(5, 1)


@FAULTS.row(
    "api-server-unreachable",
    minutes=3.0,
    broken="guesses",
    caught_by="VMs' pods admitted without a lookup",
    halts=True,
)
def unreachable(scenario: Scenario) -> None:
    """Cut Holdfast off from it: connections are refused, then taken and not answered."""
    scenario.testbed.proxy.turn(unreachable=True)
    vms_wait(scenario)
    scenario.go_on(60, 12)
    if not scenario.short:
        scenario.testbed.proxy.turn(hanging=True)
        vms_wait(scenario)
        scenario.go_on(60)
    well_again(scenario)


@FAULTS.row("api-server-slow", broken="early", caught_by="early")
def slow(scenario: Scenario) -> None:
    """Make each of Holdfast's requests take two seconds longer."""
    scenario.testbed.proxy.turn(delay=2.0)
    vms_wait(scenario)
    scenario.go_on(60, 12)
    well_again(scenario)


@FAULTS.row(
    "api-server-busy",
    minutes=2.5,
    broken="hurries",
    caught_by="releases tried again before Retry-After",
    halts=True,
)
def busy(scenario: Scenario) -> None:
    """Answer 429 for a while, then 503."""
    proxy = scenario.testbed.proxy
    hasty = proxy.hasty
    for status in (429, 503):
        before = proxy.told[status]
        proxy.turn(status=status)
        vms_wait(scenario)
        scenario.go_on(45, 6)
        scenario.check(f"no answer of {status}", int(proxy.told[status] == before))
    well_again(scenario)
    scenario.check("releases tried again before Retry-After", proxy.hasty - hasty)


def vms_wait(scenario: Scenario) -> None:
    """Check that a VM's pod is refused while its VM cannot be looked up."""
    admitted = 0

    def refused() -> bool:
        nonlocal admitted
        try:
            scenario.testbed.vm_load.ask()
        except ControlPlaneError as exc:
            return UNSEEN in str(exc)
        admitted += 1
        return False

    seconds = scenario.eventually(refused)
    scenario.check("seconds until a VM's pod was rejected without a lookup", seconds, BOUND)
    scenario.check("VMs' pods admitted without a lookup", admitted)


def well_again(scenario: Scenario) -> None:
    """Turn the weather, and wait until a VM's pod is sent to its node again."""
    scenario.testbed.proxy.turn()
    scenario.recovered = time.time()

    def sent() -> bool:
        with suppress(ControlPlaneError):
            return bool(scenario.testbed.vm_load.ask())
        return False

    scenario.check(
        "seconds until a VM's pod was sent to its node", scenario.eventually(sent), BOUND
    )


@FAULTS.row("watches-silent", tested=True, broken="trusts-silence", caught_by="stuck")
def silent(scenario: Scenario) -> None:
    """Let each watch that is open go silent permanently, without closing it.

    The test does not repair them, so each release counts from its own due time.
    """
    muted = scenario.testbed.proxy.mute()
    scenario.check("watches that were not there to be silenced", int(not muted))
    scenario.figures["watches silenced"] = muted
    scenario.go_on(60, NOTICED)


@FAULTS.row("watches-expired", broken="dies-of-gone", caught_by="stuck", halts=True)
def gone(scenario: Scenario) -> None:
    """Expire every watch."""
    proxy = scenario.testbed.proxy
    before = proxy.told[GONE]
    proxy.turn(expired=True)
    proxy.cut()
    scenario.go_on(60, 8)
    proxy.turn()
    # by status and by event, in turn
    scenario.check("ways in which no watch was expired", max(0, 2 - (proxy.told[GONE] - before)))


@FAULTS.row(
    "etcd-restored",
    broken="forgets-to-list",
    caught_by="stuck",
    outage=True,
    refuses=True,
    halts=True,
)
def forgotten(scenario: Scenario) -> None:
    """Set etcd back to what it was some seconds ago, as a restored snapshot does.

    Kubernetes' own components are started again then, as its guide to restoring asks: they would
    go on with what they have seen. Holdfast is not.
    """
    plane = scenario.testbed.plane
    names = [f"{mine(scenario)}{number}" for number in range(WITNESSES)]
    scenario.own |= due_times(scenario.ns.create_pods(pod(name, {"delay": "4"}) for name in names))
    server, etcd = plane.process(API_SERVER), plane.process(ETCD)
    data = plane.directory / "etcd"
    snapshot = plane.directory / "snapshot"
    server.stop()
    etcd.stop()
    shutil.copytree(data, snapshot)
    for each in (etcd, server):
        each.start()
        each.wait_ready(STARTS)
    scenario.go_on(20, 6)
    scenario.eventually(lambda: not waiting(scenario, GATE))
    then = version(plane)
    server.stop()
    etcd.stop()
    shutil.rmtree(data)
    snapshot.rename(data)
    for each in (etcd, server):
        each.start()
        each.wait_ready(STARTS)
    scenario.check("versions that did not jump back", int(version(plane) >= then))
    others = [plane.process(name) for name in plane.names if name not in {API_SERVER, ETCD}]
    for each in others:
        if each.running:
            each.kill()
    scenario.eventually(lambda: all(each.running for each in others))
    audit, space = scenario.testbed.audit, scenario.ns.namespace

    def again() -> int:
        audit.read()
        return sum(sum(one.worked for one in audit.releases[space, name]) > 1 for name in names)

    scenario.eventually(lambda: again() == WITNESSES)
    scenario.check("pods that were not held and released again", WITNESSES - again())


def version(plane: ControlPlane) -> int:
    """Read the version of all pods: a list's, which etcd counts up at each write."""
    listed = json.loads(plane.kubectl("get", "--raw", "/api/v1/pods?limit=1"))
    return int(listed["metadata"]["resourceVersion"])
