"""The controller is killed, stopped, away for long, or one of several that want to lead."""

import json
import os
import signal
import time

from demo.command import Command
from holdfast.webhook.controller.controller import WORKERS
from tests.e2e.accounts import NAMESPACE
from tests.e2e.namespace import created, pod
from tests.e2e.test_leader import metric
from tests.faults.audit import Write
from tests.faults.load import terms
from tests.faults.scenario import BOUND, Scenario, Table
from tests.faults.testbed import BROKEN, leads

FAULTS = Table(3)

TAKEOVER = 20.0
"""Seconds in which another leads after the leader has gone."""

START = 10.0
"""Seconds in which a controller starts and leads, when the Lease has ended before."""

AFTERWARDS, SHORT_AFTERWARDS = 150.0, 10.0
"""Seconds over which pods fall due that were created while no controller was there: 1,500,
alongside the steady load, of which a small machine with a second lane binds no more."""


@FAULTS.row(
    "controller-killed", minutes=2.5, broken="leaves-the-lease", caught_by="seconds to a leader"
)
def killed(scenario: Scenario) -> None:
    """Kill the leader at random, again and again."""
    for _ in range(2 if scenario.short else 10):
        scenario.go_on(scenario.source.uniform(0.5, 3))
        leader = scenario.testbed.leader()
        began = time.time()
        leader.kill()
        leader.start()
        seconds = scenario.eventually(lambda: any(map(leads, scenario.testbed.controllers)), BOUND)
        scenario.halted.append((began, time.time()))
        scenario.check("seconds to a leader", seconds, TAKEOVER)


@FAULTS.row("controller-stopped", broken="always-leads", caught_by="leaders other than the new one")
def stopped(scenario: Scenario) -> None:
    """Stop the leader for a minute; it wakes up with releases on its way."""
    leader = scenario.testbed.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    try:
        began = time.time()
        scenario.testbed.leader()
        until = time.time()
        scenario.halted.append((began, until))
        scenario.check("seconds to another leader", until - began, TAKEOVER)
        scenario.go_on(max(0.0, began + 60 - until), 2)
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    scenario.go_on(3)
    scenario.check("leaders other than the new one", int(leads(leader)))
    once(scenario)


@FAULTS.row("controllers-several", broken="always-leads", caught_by="released twice")
def several(scenario: Scenario) -> None:
    """Run a controller that ignores the Lease, and write other holders into the Lease."""
    installed = scenario.testbed.installed
    rogue = Command(
        *("controller", "--kubeconfig", str(installed.kubeconfig), "--health-port", "0"),
        log=installed.folder / "rogue.log",
        module=BROKEN,
        environment=installed.environment,
    )
    with rogue:
        for number in range(3 if scenario.short else 10):
            lease = {"spec": {"holderIdentity": f"usurper-{number}"}}
            patch = ("patch", "lease", "holdfast-controller", "--type=merge", "-p")
            scenario.testbed.plane.kubectl("--namespace", NAMESPACE, *patch, json.dumps(lease))
            scenario.go_on(3)
        idle = int(not metric(rogue, "holdfast_releases_total"))
        scenario.check("controllers without leader election that release nothing", idle)
    scenario.check(
        "seconds to a leader", scenario.eventually(scenario.testbed.leader, 2 * TAKEOVER), TAKEOVER
    )
    once(scenario)


def once(scenario: Scenario) -> None:
    """Check that no pod was released twice since the row began."""
    scenario.go_on(2)
    scenario.testbed.audit.read()
    twice = [
        name
        for (space, name), writes in list(scenario.testbed.audit.releases.items())
        if space == scenario.ns.namespace
        and sum(one.worked and one.at >= scenario.began for one in writes) > 1
    ]
    scenario.check("released twice", len(twice))


# alone: a thousand releases took 43.6 of their 60 s alongside another lane
@FAULTS.row(
    "controller-away",
    minutes=7.0,
    alone=True,
    broken="slow-hand",
    caught_by="of the batch not released in time",
    halts=True,
)
def away(scenario: Scenario) -> None:
    """Have both controllers down while a thousand pods fall due, then start them.

    Meanwhile another configuration is rolled out, which they start with. The pods that the
    load delays meanwhile fall due afterwards: all of them are more than a small machine can bind in
    a minute.
    """
    for each in scenario.testbed.controllers:
        each.kill()
    count, seconds = (100, 12.0) if scenario.short else (1_000, 150.0)
    delays = {
        f"batch-{scenario.mark}-{number}": round(scenario.source.uniform(1, seconds - 2), 3)
        for number in range(count)
    }
    made = scenario.ns.create_pods(
        pod(name, {"delay": f"{delay:.3f}s"}) for name, delay in delays.items()
    )
    due = {one["metadata"]["name"]: created(one) for one in made}
    due = {name: at + delays[name] for name, at in due.items()}
    changed = scenario.testbed.roll_out()
    last_due = max(due.values())
    afterwards = last_due + scenario.lasts(AFTERWARDS, SHORT_AFTERWARDS)
    with scenario.load.due_within(last_due, afterwards):
        time.sleep(max(0.0, last_due - time.time()))
    began = time.time()
    for each in scenario.testbed.controllers:
        each.start()
    scenario.recovered = began
    seconds = scenario.eventually(lambda: any(map(leads, scenario.testbed.controllers)), BOUND)
    scenario.check("seconds to a leader", seconds, START)

    def released() -> dict[str, Write]:
        scenario.testbed.audit.read()
        releases = scenario.testbed.audit.releases
        writes = {name: releases[scenario.ns.namespace, name] for name in due}
        return {name: each[-1] for name, each in writes.items() if each and each[-1].worked}

    scenario.eventually(lambda: len(released()) == count, BOUND)
    found = released()
    scenario.check("of the batch not released in time", count - len(found))
    last = max((one.ended for one in found.values()), default=began) - began
    scenario.check("seconds to the last of the batch", last, BOUND)
    in_time = {name: place for place, name in enumerate(sorted(found, key=lambda one: due[one]))}
    came = sorted(found, key=lambda name: found[name].at)
    moved = [abs(place - in_time[name]) for place, name in enumerate(came)]
    scenario.check("places out of order", max(moved, default=0), WORKERS)
    seconds = scenario.eventually(lambda: is_placed(scenario, changed), BOUND)
    scenario.check("seconds until the other configuration was in force", seconds, BOUND)
    scenario.go_on(max(0.0, afterwards - time.time()))


def is_placed(scenario: Scenario, annotation: str) -> bool:
    """Ask whether a pod with this annotation is placed: once with the term of the rule, or not."""
    asked = pod(f"asks-{scenario.mark}", {annotation: "yes"})
    (seen,) = scenario.ns.create_pods([asked], dry_run=True)
    return terms(seen) == 1
