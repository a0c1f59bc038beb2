"""The controller is killed, stopped, away for long, or one of several that want to lead."""

from __future__ import annotations

import json
import os
import signal
import time

from demo.command import Command
from tests.e2e.accounts import NAMESPACE
from tests.e2e.test_leader import metric
from tests.e2e.world import created, pod
from tests.faults.arena import BROKEN, leads
from tests.faults.audit import Write
from tests.faults.load import terms
from tests.faults.scene import BOUND, Fault, Scene
from webhook.controller import WORKERS

TAKEOVER = 20.0
"""Seconds in which another leads after the leader has gone."""

START = 10.0
"""Seconds in which a controller starts and leads, when the Lease has ended before."""

AFTERWARDS, SHORT_AFTERWARDS = 480.0, 10.0
"""Seconds over which pods fall due that were created while no controller was there: six thousand,
beside the steady load, of which a small machine with a second lane binds no more."""


def killed(scene: Scene) -> None:
    """Kill the leader at random, again and again."""
    for _ in range(2 if scene.short else 10):
        scene.go_on(scene.source.uniform(0.5, 3))
        leader = scene.arena.leader()
        began = time.time()
        leader.kill()
        leader.start()
        seconds = scene.eventually(lambda: any(map(leads, scene.arena.controllers)), BOUND)
        scene.halted.append((began, time.time()))
        scene.check("seconds to a leader", seconds, TAKEOVER)


def stopped(scene: Scene) -> None:
    """Stop the leader for a minute; it wakes up with releases on its way."""
    leader = scene.arena.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    try:
        began = time.time()
        scene.arena.leader()
        until = time.time()
        scene.halted.append((began, until))
        scene.check("seconds to another leader", until - began, TAKEOVER)
        scene.go_on(max(0.0, began + 60 - until), 2)
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    scene.go_on(3)
    scene.check("leaders beside the new one", int(leads(leader)))
    once(scene)


def several(scene: Scene) -> None:
    """Run a controller that asks nobody, and let somebody write other holders into the Lease."""
    installed = scene.arena.installed
    rogue = Command(
        *("controller", "--kubeconfig", str(installed.kubeconfig), "--health-port", "0"),
        log=installed.folder / "rogue.log",
        module=BROKEN,
        environment=installed.environment,
    )
    with rogue:
        for number in range(3 if scene.short else 10):
            lease = {"spec": {"holderIdentity": f"usurper-{number}"}}
            patch = ("patch", "lease", "holdfast-controller", "--type=merge", "-p")
            scene.arena.plane.kubectl("--namespace", NAMESPACE, *patch, json.dumps(lease))
            scene.go_on(3)
        idle = int(not metric(rogue, "holdfast_releases_total"))
        scene.check("controllers that ask nobody and release nothing", idle)
    scene.check("seconds to a leader", scene.eventually(scene.arena.leader, 2 * TAKEOVER), TAKEOVER)
    once(scene)


def once(scene: Scene) -> None:
    """Check that no pod was released twice since the row began."""
    scene.go_on(2)
    scene.arena.audit.read()
    twice = [
        name
        for (space, name), writes in scene.arena.audit.releases.items()
        if space == scene.world.namespace
        and sum(one.worked and one.at >= scene.began for one in writes) > 1
    ]
    scene.check("released twice", len(twice))


def away(scene: Scene) -> None:
    """Have both controllers down while a thousand pods fall due, then start them.

    Meanwhile another configuration is rolled out, which they start with. What the load has
    delayed meanwhile falls due afterwards: its six thousand pods beside the thousand are more than
    a small machine can bind in a minute.
    """
    for each in scene.arena.controllers:
        each.kill()
    count, seconds = (100, 12.0) if scene.short else (1_000, 600.0)
    delays = {
        f"batch-{scene.mark}-{number}": round(scene.source.uniform(1, seconds - 2), 3)
        for number in range(count)
    }
    made = scene.world.create_pods(
        pod(name, {"delay": f"{delay:.3f}s"}) for name, delay in delays.items()
    )
    due = {one["metadata"]["name"]: created(one) for one in made}
    due = {name: at + delays[name] for name, at in due.items()}
    changed = scene.arena.roll_out()
    last_due = max(due.values())
    afterwards = last_due + scene.lasts(AFTERWARDS, SHORT_AFTERWARDS)
    with scene.load.due_within(last_due, afterwards):
        time.sleep(max(0.0, last_due - time.time()))
    began = time.time()
    for each in scene.arena.controllers:
        each.start()
    scene.recovered = began
    seconds = scene.eventually(lambda: any(map(leads, scene.arena.controllers)), BOUND)
    scene.check("seconds to a leader", seconds, START)

    def released() -> dict[str, Write]:
        scene.arena.audit.read()
        releases = scene.arena.audit.releases
        writes = {name: releases[scene.world.namespace, name] for name in due}
        return {name: each[-1] for name, each in writes.items() if each and each[-1].worked}

    scene.eventually(lambda: len(released()) == count, BOUND)
    found = released()
    scene.check("of the batch not released in time", count - len(found))
    last = max((one.ended for one in found.values()), default=began) - began
    scene.check("seconds to the last of the batch", last, BOUND)
    in_time = {name: place for place, name in enumerate(sorted(found, key=lambda one: due[one]))}
    came = sorted(found, key=lambda name: found[name].at)
    moved = [abs(place - in_time[name]) for place, name in enumerate(came)]
    scene.check("places out of order", max(moved, default=0), WORKERS)
    seconds = scene.eventually(lambda: is_placed(scene, changed), BOUND)
    scene.check("seconds until the other configuration was in force", seconds, BOUND)
    scene.go_on(max(0.0, afterwards - time.time()))


def is_placed(scene: Scene, annotation: str) -> bool:
    """Ask whether a pod with this annotation is placed: once with the term of the rule, or not."""
    asked = pod(f"asks-{scene.mark}", {annotation: "yes"})
    (seen,) = scene.world.create_pods([asked], dry_run=True)
    return terms(seen) == 1


FAULTS = [
    Fault(
        "controller-killed",
        3,
        killed,
        minutes=2.5,
        broken="leaves-the-lease",
        caught_by="seconds to a leader",
        means="The other controller takes the Lease within 20 s and releases what is overdue at "
        "once; one that is started again lists all held pods and carries on.",
    ),
    Fault(
        "controller-stopped",
        3,
        stopped,
        broken="always-leads",
        caught_by="leaders beside the new one",
        means="The other takes over within 20 s. The stopped one knows by the time alone that it "
        "leads no more; what it had on its way fails its own tests.",
    ),
    Fault(
        "controllers-several",
        3,
        several,
        broken="always-leads",
        caught_by="released twice",
        means="Two that release at once do no harm: each patch tests the pod's version, so that "
        "one of the two fails. A Lease that others have written is had again when it has ended.",
    ),
    Fault(
        "controller-away",
        3,
        away,
        minutes=20.0,
        alone=True,  # a thousand releases took 43.6 of their 60 s beside another lane
        broken="slow-hand",
        caught_by="of the batch not released in time",
        halts=True,
        means="Pods stay held. When a controller is back, it leads at once, by the Lease's time, "
        "and all that fell due meanwhile are released within a minute, by their due times but for "
        "those that are under way at once. A configuration that was rolled out meanwhile is in "
        "force then.",
    ),
]
