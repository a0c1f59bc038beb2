"""The API server ends, is out of reach, slow, busy, silent, or has forgotten."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress

from controlplane.components import API_SERVER, ETCD
from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane
from tests.e2e.world import pod
from tests.faults.load import GATE
from tests.faults.rows.own import due_times, mine, waiting
from tests.faults.scene import BOUND, Fault, Scene
from webhook.reflector import WATCH_SILENCE_SECONDS

GONE = 410
STARTS = 120.0
"""Seconds in which the API server may start: it gives each of its caches a minute."""
WITNESSES = 10
"""Pods that are held in the snapshot, and released before it is restored."""
NOTICED = WATCH_SILENCE_SECONDS + 5.0
"""Seconds after which nobody follows a silent watch any more: what comes next in the soak has whole
ones."""
UNSEEN = "could not look up what decides"
"""What the refusal of a pod says for which a lookup fails."""


def restarted(scene: Scene) -> None:
    """Restart it three times: as an upgrade does, and as a crash does."""
    server = scene.arena.plane.process(API_SERVER)
    for how in (server.stop, server.kill, server.stop)[: 1 if scene.short else 3]:
        how()
        scene.go_on(2)
        server.start()
        server.wait_ready(STARTS)
        scene.go_on(5, 1)


def unreachable(scene: Scene) -> None:
    """Cut Holdfast off from it: connections are refused, then taken and not answered."""
    scene.arena.proxy.turn(unreachable=True)
    vms_wait(scene)
    scene.go_on(60, 12)
    if not scene.short:
        scene.arena.proxy.turn(hanging=True)
        vms_wait(scene)
        scene.go_on(60)
    well_again(scene)


def slow(scene: Scene) -> None:
    """Make each of Holdfast's requests take two seconds longer."""
    scene.arena.proxy.turn(delay=2.0)
    vms_wait(scene)
    scene.go_on(60, 12)
    well_again(scene)


def busy(scene: Scene) -> None:
    """Answer 429 for a while, then 503."""
    proxy = scene.arena.proxy
    hasty = proxy.hasty
    for status in (429, 503):
        before = proxy.told[status]
        proxy.turn(status=status)
        vms_wait(scene)
        scene.go_on(45, 6)
        scene.check(f"no answer of {status}", int(proxy.told[status] == before))
    well_again(scene)
    scene.check("releases tried again before Retry-After", proxy.hasty - hasty)


def vms_wait(scene: Scene) -> None:
    """Check that a VM's pod is refused while its VM cannot be looked up."""
    admitted = 0

    def refused() -> bool:
        nonlocal admitted
        try:
            scene.arena.machines.ask()
        except ControlPlaneError as exc:
            return UNSEEN in str(exc)
        admitted += 1
        return False

    seconds = scene.eventually(refused)
    scene.check("seconds until a VM's pod was refused for want of a lookup", seconds, BOUND)
    scene.check("VMs' pods admitted without a lookup", admitted)


def well_again(scene: Scene) -> None:
    """Turn the weather, and wait until a VM's pod is sent to its node again."""
    scene.arena.proxy.turn()
    scene.recovered = time.time()

    def sent() -> bool:
        with suppress(ControlPlaneError):
            return bool(scene.arena.machines.ask())
        return False

    scene.check("seconds until a VM's pod was sent to its node", scene.eventually(sent), BOUND)


def silent(scene: Scene) -> None:
    """Let each watch that is open go silent for good, without closing it.

    Nobody puts that right, so that each release counts from its own due time.
    """
    muted = scene.arena.proxy.mute()
    scene.check("watches that were not there to be silenced", int(not muted))
    scene.figures["watches silenced"] = muted
    scene.go_on(60, NOTICED)


def gone(scene: Scene) -> None:
    """Tell every watch that its version has expired."""
    proxy = scene.arena.proxy
    before = proxy.told[GONE]
    proxy.turn(expired=True)
    proxy.cut()
    scene.go_on(60, 8)
    proxy.turn()
    # by status and by event, in turn
    scene.check("ways in which no watch was told", max(0, 2 - (proxy.told[GONE] - before)))


def forgotten(scene: Scene) -> None:
    """Set etcd back to what it was some seconds ago, as a restored snapshot does.

    Kubernetes' own components are started anew then, as its guide to restoring asks: they would
    go on with what they have seen. Holdfast is not.
    """
    plane = scene.arena.plane
    names = [f"{mine(scene)}{number}" for number in range(WITNESSES)]
    scene.own |= due_times(scene.world.create_pods(pod(name, {"delay": "4"}) for name in names))
    server, etcd = plane.process(API_SERVER), plane.process(ETCD)
    data = plane.directory / "etcd"
    snapshot = plane.directory / "snapshot"
    server.stop()
    etcd.stop()
    shutil.copytree(data, snapshot)
    for each in (etcd, server):
        each.start()
        each.wait_ready(STARTS)
    scene.go_on(20, 6)
    scene.eventually(lambda: not waiting(scene, GATE))
    then = version(plane)
    server.stop()
    etcd.stop()
    shutil.rmtree(data)
    snapshot.rename(data)
    for each in (etcd, server):
        each.start()
        each.wait_ready(STARTS)
    scene.check("versions that did not jump back", int(version(plane) >= then))
    others = [plane.process(name) for name in plane.names if name not in {API_SERVER, ETCD}]
    for each in others:
        if each.running:
            each.kill()
    scene.eventually(lambda: all(each.running for each in others))
    audit, space = scene.arena.audit, scene.world.namespace

    def again() -> int:
        audit.read()
        return sum(sum(one.worked for one in audit.releases[space, name]) > 1 for name in names)

    scene.eventually(lambda: again() == WITNESSES)
    scene.check("pods that were not held and released again", WITNESSES - again())


def version(plane: ControlPlane) -> int:
    """Read the version of all pods: a list's, which etcd counts up at each write."""
    listed = json.loads(plane.kubectl("get", "--raw", "/api/v1/pods?limit=1"))
    return int(listed["metadata"]["resourceVersion"])


FAULTS = [
    Fault(
        "api-server-restarted",
        4,
        restarted,
        broken="gives-up",
        caught_by="stuck",
        outage=True,
        refuses=True,
        halts=True,
        means="Releases that fail are tried again, at most 20 s apart; everything is "
        "listed anew when the API server is back.",
    ),
    Fault(
        "api-server-unreachable",
        4,
        unreachable,
        minutes=3.0,
        broken="guesses",
        caught_by="VMs' pods admitted without a lookup",
        halts=True,
        means="The controller stops to lead after eight seconds and releases nothing meanwhile. "
        "When it is back, it lists, and releases what is overdue at once. A VM's pod is refused "
        "until its VM can be looked up, and comes again; other pods are served.",
    ),
    Fault(
        "api-server-slow",
        4,
        slow,
        broken="early",
        caught_by="early",
        means="An answer that takes long says less about the API server's clock: releases are "
        "late by about as much as the answers, never early. A lookup has a second: until then, "
        "a VM's pod is refused, and comes again.",
    ),
    Fault(
        "api-server-busy",
        4,
        busy,
        minutes=2.5,
        broken="hurries",
        caught_by="releases tried again before Retry-After",
        halts=True,
        means="What is answered 429 or 503 is tried again, not before Retry-After, of which 30 s "
        "count at most; a VM's pod is refused, and comes again.",
    ),
    Fault(
        "watches-silent",
        4,
        silent,
        tested=True,
        broken="trusts-silence",
        caught_by="stuck",
        means="A watch that says nothing for 35 s is ended, and everything is listed anew.",
    ),
    Fault(
        "watches-expired",
        4,
        gone,
        broken="dies-of-gone",
        caught_by="stuck",
        halts=True,
        means="After 410 Gone everything is listed anew.",
    ),
    Fault(
        "etcd-restored",
        4,
        forgotten,
        broken="forgets-to-list",
        caught_by="stuck",
        outage=True,
        refuses=True,
        halts=True,
        means="Truth is what the API server has: pods that were released after the snapshot are "
        "held again, and released again; none early. What was created after it is lost, with or "
        "without Holdfast.",
    ),
]
