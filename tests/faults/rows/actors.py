"""Others act on the same pods: webhooks, admins."""

import threading
import time
from collections.abc import Container
from contextlib import closing

import msgspec

from holdfast.webhook.kube.client import Cluster
from tests.e2e.foreign_webhook import Object, other_webhook
from tests.e2e.namespace import Namespace, created, gates, pod
from tests.faults.load import GATE
from tests.faults.rows.own import due_times, mine, take_off, waiting
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table(7)

FOREIGN = "example.com/other"
HANGING = 100
"""Pods whose releases hang: three times as many as there are releases under way at once."""
HANGS = 30.0
"""Seconds for which a webhook hangs: longer than the API server waits for it."""
ELSEWHERE = 5.0
"""Seconds by which others may be late: half of what one that hangs takes."""


@FAULTS.row("gates-foreign", broken="writes-blindly", caught_by="seconds until ours were gone")
def foreign_gates(scenario: Scenario) -> None:
    """Add gates of others before and after ours, and take them off before or after its release."""
    count = 6 if scenario.short else 40
    held = {"name": FOREIGN}
    names = [f"{mine(scenario)}{number}" for number in range(count)]
    before, after = names[: count // 2], names[count // 2 :]

    def add(seen: Object) -> list[Object]:
        if seen["metadata"].get("name") not in after or FOREIGN in gates(seen):
            return []
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": held}]

    first = [pod(name, {"delay": "6"}, schedulingGates=[held]) for name in before]
    last = [pod(name, {"delay": "6"}) for name in after]

    def is_called() -> bool:
        (seen,) = scenario.ns.create_pods(last[:1], dry_run=True)
        return gates(seen) == [GATE, FOREIGN]

    with other_webhook(scenario.testbed.plane, "zz-gates", add):
        scenario.eventually(is_called)
        made = scenario.ns.create_pods([*first, *last])
        scenario.own |= due_times(made)
    misplaced = [one for one in made if gates(one) != gates_of(one, before)]
    scenario.check("pods without both gates in their order", len(misplaced))
    take_off(scenario, before, FOREIGN)
    seconds = scenario.eventually(lambda: not waiting(scenario, GATE))
    scenario.check("seconds until ours were gone", seconds, BOUND)
    left = set(waiting(scenario, FOREIGN))
    scenario.check("gates of others that went with ours", len(set(after) - left))
    scenario.check("gates of others that came back", len(set(before) & left))
    take_off(scenario, after, FOREIGN)


def gates_of(seen: Object, before: Container[str]) -> list[str]:
    """Give the gates that a pod is to have, by whether the other one was there before ours."""
    return [FOREIGN, GATE] if seen["metadata"]["name"] in before else [GATE, FOREIGN]


@FAULTS.row("gate-stripped", broken="never-forgets", caught_by="releases of pods that are not held")
def stripped(scenario: Scenario) -> None:
    """Take our gate off by hand."""
    names = [f"{mine(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    delay = scenario.lasts(40, 12)
    made = scenario.ns.create_pods(pod(name, {"delay": f"{delay:.0f}"}) for name in names)
    times = [created(one) for one in made]
    take_off(scenario, names, GATE)
    due = max(times) + delay
    scenario.check("seconds until all were off", time.time() - min(times), delay)
    audit, space = scenario.testbed.audit, scenario.ns.namespace

    def scheduled() -> bool:
        audit.read()
        return all((space, name) in audit.bindings for name in names)

    seconds = scenario.eventually(scheduled, BOUND)
    scenario.check("seconds until they were scheduled", seconds, BOUND)
    scenario.check("gates that came back", len(waiting(scenario, GATE)))
    time.sleep(max(0.0, due + 3 - time.time()))
    audit.read()
    tried = sum(len(audit.releases[space, name]) for name in names)
    scenario.check("releases of pods that are not held", tried)


@FAULTS.row("pods-recreated", broken="goes-by-names", caught_by="released by their former time")
def recreated(scenario: Scenario) -> None:
    """Delete pods that wait, and make others of their names that wait for longer."""
    names = [f"{mine(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    # kubectl deletes forty in up to eight seconds: none is to be released before
    first, then = (8, 14) if scenario.short else (20, 30)
    scenario.ns.create_pods(pod(name, {"delay": str(first)}) for name in names)
    scenario.go_on(2)
    scenario.ns.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
    made = scenario.ns.create_pods(pod(name, {"delay": str(then)}) for name in names)
    scenario.own |= due_times(made)
    since = {one["metadata"]["name"]: created(one) for one in made}
    seconds = scenario.eventually(lambda: not waiting(scenario, GATE), BOUND)
    scenario.check("seconds until they were released", seconds, BOUND)
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    early = [
        name
        for name, at in since.items()
        for one in releases[scenario.ns.namespace, name]
        if one.worked and at <= one.at < at + then
    ]
    scenario.check("released by their former time", len(early))


@FAULTS.row(
    "release-refused", minutes=3.0, broken="gives-up", caught_by="seconds until they were released"
)
def refused(scenario: Scenario) -> None:
    """Have a validating webhook refuse the releases of some pods, and of no others."""
    names = [f"{mine(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    path = f"/api/v1/namespaces/{scenario.ns.namespace}/events"
    selector = f"reason=ReleaseFailed,involvedObject.name={names[0]}"
    query: dict[str, str | int] = {"fieldSelector": selector, "limit": 1}

    def told() -> bool:
        with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
            return bool(msgspec.json.decode(cluster.request("GET", path, query=query))["items"])

    def decide(seen: Object) -> list[Object] | str:
        about = seen["metadata"]["name"].startswith(mine(scenario))
        open_still = gates(seen) or seen["spec"].get("nodeName") or not about
        return [] if open_still else "closed for two minutes"

    with other_webhook(scenario.testbed.plane, "closed", decide, operations=("UPDATE",)):
        made = scenario.ns.create_pods(pod(name, {"delay": "8"}) for name in names)
        scenario.own |= due_times(made)
        scenario.check(
            "seconds until an Event reported it", scenario.eventually(told, BOUND), BOUND
        )
        scenario.go_on(120, 10)
        scenario.check("released despite the rejection", len(names) - len(waiting(scenario, GATE)))
    seconds = scenario.eventually(lambda: not waiting(scenario, GATE), BOUND)
    scenario.check("seconds until they were released", seconds, BOUND)


@FAULTS.row("release-hangs", minutes=2.5, broken="one-lane", caught_by="seconds late elsewhere")
def hanging(scenario: Scenario) -> None:
    """Have a validating webhook hang at the releases of a namespace's pods until it times out."""
    plane, name = scenario.testbed.plane, f"{scenario.ns.namespace}-{scenario.mark}-hangs"
    scenario.apart.append(name)
    ns, over = type(scenario.ns).create_new(plane, name), threading.Event()

    def decide(_: Object) -> list[Object]:
        over.wait(HANGS)
        return []

    names = [f"{mine(scenario)}{number}" for number in range(HANGING)]
    with other_webhook(plane, "hangs", decide, operations=("UPDATE",), namespaces=[name]):
        due = due_times(ns.create_pods(pod(one, {"delay": "8"}) for one in names))
        scenario.own |= due
        since = max(due.values())
        scenario.go_on(max(0.0, since - time.time()))
        scenario.go_on(60, 25)
        until = time.time()
        scenario.testbed.audit.read()
        late = lateness(scenario, since, until)
        left = len(waiting_in(ns))
    over.set()
    scenario.figures["held while it hung"] = left
    scenario.check("moments in which nothing hung", int(not left))
    scenario.check("seconds late elsewhere", max(late, default=2 * ELSEWHERE), ELSEWHERE)
    seconds = scenario.eventually(lambda: not waiting_in(ns), BOUND)
    scenario.check("seconds until they were released", seconds, BOUND)


def lateness(scenario: Scenario, since: float, until: float) -> list[float]:
    """Return by how much the load's pods that were due within a span were, or are, late."""
    scenario.testbed.audit.read()
    releases, space = scenario.testbed.audit.releases, scenario.load.namespace
    found = []
    for name, due in list(scenario.load.due.items()):
        if since <= due <= until:
            worked = [one.ended for one in releases[space, name] if one.worked]
            found.append(min([until, *worked]) - due)
    return found


def waiting_in(ns: Namespace) -> list[str]:
    """Name the pods of a namespace that carry our gate."""
    return [str(one["metadata"]["name"]) for one in ns.all("pods") if GATE in gates(one)]
