"""The controller is killed, paused, down for long, or runs without leader election."""

import json
import os
import signal
import time
from functools import partial

from demo.command import Command
from holdfast.webhook.controller.controller import WORKERS
from tests.e2e.accounts import NAMESPACE
from tests.e2e.namespace import created, pod
from tests.faults.load import count_requirements
from tests.faults.rows.own import final_releases
from tests.faults.scenario import BOUND, Scenario, Table
from tests.faults.testbed import BROKEN, is_leader
from tests.support.scrapes import metric

FAULTS = Table()

TAKEOVER = 20.0
"""Seconds in which another controller becomes the leader."""

START = 10.0
"""Seconds in which a controller starts and becomes the leader, if the Lease has expired."""

DUE_LATER, SHORT_DUE_LATER = 150.0, 10.0
"""Seconds over which the 1,500 pods fall due that were created while no controller ran: a small
machine with a second lane cannot bind them faster in addition to the steady load."""


@FAULTS.row(
    "controller-killed",
    minutes=2.5,
    broken="leaves-the-lease",
    caught_by="seconds until there was a leader",
)
def killed(scenario: Scenario) -> None:
    """Kill the leader repeatedly, at random times."""
    for _ in range(2 if scenario.short else 10):
        scenario.wait(scenario.rng.uniform(0.5, 3))
        leader = scenario.testbed.leader()
        began = time.time()
        leader.kill()
        leader.start()
        seconds = scenario.eventually(
            lambda: any(map(is_leader, scenario.testbed.controllers)), BOUND
        )
        scenario.halted.append((began, time.time()))
        scenario.check("seconds until there was a leader", seconds, TAKEOVER)


@FAULTS.row("controller-stopped", broken="always-leads", caught_by="former leader still leads")
def stopped(scenario: Scenario) -> None:
    """Pause the leader for a minute; it resumes with releases in flight."""
    leader = scenario.testbed.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    try:
        began = time.time()
        scenario.testbed.leader()
        until = time.time()
        scenario.halted.append((began, until))
        scenario.check("seconds until there was another leader", until - began, TAKEOVER)
        scenario.wait(max(0.0, began + 60 - until), 2)
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    scenario.wait(3)
    scenario.check("former leader still leads", int(is_leader(leader)))
    check_no_double_release(scenario)


@FAULTS.row("controllers-several", broken="always-leads", caught_by="pods released twice")
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
            lease = {"spec": {"holderIdentity": f"other-{number}"}}
            patch = ("patch", "lease", "holdfast-controller", "--type=merge", "-p")
            scenario.testbed.plane.kubectl("--namespace", NAMESPACE, *patch, json.dumps(lease))
            scenario.wait(3)
        idle = int(not metric(rogue, "holdfast_releases_total"))
        scenario.check("rogue controller released nothing", idle)
    scenario.check(
        "seconds until there was a leader",
        scenario.eventually(scenario.testbed.leader, 2 * TAKEOVER),
        TAKEOVER,
    )
    check_no_double_release(scenario)


def check_no_double_release(scenario: Scenario) -> None:
    """Check that no pod was released twice since the row started."""
    scenario.wait(2)
    scenario.testbed.audit.read()
    released_twice = [
        name
        for (namespace, name), writes in list(scenario.testbed.audit.releases.items())
        if namespace == scenario.ns.namespace
        and sum(write.succeeded and write.at >= scenario.began for write in writes) > 1
    ]
    scenario.check("pods released twice", len(released_twice))


# alone: with another lane, a thousand releases took 43.6 of their 60 s
@FAULTS.row(
    "controller-away",
    minutes=7.0,
    alone=True,
    broken="slow-hand",
    caught_by="batch pods not released in time",
    halts_releases=True,
)
def down(scenario: Scenario) -> None:
    """Stop both controllers while a thousand pods fall due, then start them again.

    They start with a new configuration, which is rolled out before. Delayed pods that the load
    creates before the start fall due after the batch: a small machine cannot bind all of them in a
    minute.
    """
    for command in scenario.testbed.controllers:
        command.kill()
    count, seconds = (100, 12.0) if scenario.short else (1_000, 150.0)
    delays = {
        f"batch-{scenario.mark}-{number}": round(scenario.rng.uniform(1, seconds - 2), 3)
        for number in range(count)
    }
    pods = scenario.ns.create_pods(
        pod(name, {"delay": f"{delay:.3f}s"}) for name, delay in delays.items()
    )
    due = {manifest["metadata"]["name"]: created(manifest) for manifest in pods}
    due = {name: created_at + delays[name] for name, created_at in due.items()}
    annotation = scenario.testbed.roll_out()
    last_due = max(due.values())
    due_end = last_due + scenario.long_or_short(DUE_LATER, SHORT_DUE_LATER)
    with scenario.load.due_within(last_due, due_end):
        time.sleep(max(0.0, last_due - time.time()))
    began = time.time()
    for command in scenario.testbed.controllers:
        command.start()
    scenario.recovered = began
    seconds = scenario.eventually(lambda: any(map(is_leader, scenario.testbed.controllers)), BOUND)
    scenario.check("seconds until there was a leader", seconds, START)

    released = partial(final_releases, scenario, scenario.ns, due)
    scenario.eventually(lambda: len(released()) == count, BOUND)
    final_writes = released()
    scenario.check("batch pods not released in time", count - len(final_writes))
    duration = max((write.ended for write in final_writes.values()), default=began) - began
    scenario.check("seconds until the batch was released", duration, BOUND)
    by_due_time = sorted(final_writes, key=lambda name: due[name])
    expected_positions = {name: position for position, name in enumerate(by_due_time)}
    by_release_time = sorted(final_writes, key=lambda name: final_writes[name].at)
    shifts = [
        abs(position - expected_positions[name]) for position, name in enumerate(by_release_time)
    ]
    scenario.check("positions out of order", max(shifts, default=0), WORKERS)
    seconds = scenario.eventually(lambda: is_placed(scenario, annotation), BOUND)
    scenario.check("seconds until the new configuration was in effect", seconds, BOUND)
    scenario.wait(max(0.0, due_end - time.time()))


def is_placed(scenario: Scenario, annotation: str) -> bool:
    """Return whether a pod with this annotation gets the term of the placement rule, once."""
    manifest = pod(f"dry-run-{scenario.mark}", {annotation: "yes"})
    (result,) = scenario.ns.create_pods([manifest], dry_run=True)
    return sum(count_requirements(result)) == 1
