"""Other webhooks and admins change the same pods."""

import threading
import time

from tests.e2e.foreign_webhook import Object, other_webhook
from tests.e2e.namespace import created, gates, pod
from tests.faults.load import GATE
from tests.faults.rows.own import (
    create_extra_namespace,
    due_times,
    held_pods,
    own_prefix,
    pods_with_gate,
    remove_gate,
)
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table()

FOREIGN = "example.com/other"
HANGING = 100
"""Pods whose releases hang: three times the releases in flight at a time."""
HANG_SECONDS = 30.0
"""Seconds for which a webhook hangs: longer than its timeout."""
MAX_LATE = 5.0
"""Seconds by which other pods may be late: half of the time that a hanging release takes."""


@FAULTS.row(
    "gates-foreign", broken="writes-blindly", caught_by="seconds until our gates were removed"
)
def foreign_gates(scenario: Scenario) -> None:
    """Add other gates before and after ours, and remove them before or after the release."""
    count = 6 if scenario.short else 40
    gate = {"name": FOREIGN}
    names = [f"{own_prefix(scenario)}{number}" for number in range(count)]
    names_before, names_after = names[: count // 2], names[count // 2 :]

    def add(manifest: Object) -> list[Object]:
        if manifest["metadata"].get("name") not in names_after or FOREIGN in gates(manifest):
            return []
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": gate}]

    manifests_before = [pod(name, {"delay": "6"}, schedulingGates=[gate]) for name in names_before]
    manifests_after = [pod(name, {"delay": "6"}) for name in names_after]

    def is_called() -> bool:
        (manifest,) = scenario.ns.create_pods(manifests_after[:1], dry_run=True)
        return gates(manifest) == [GATE, FOREIGN]

    with other_webhook(scenario.testbed.plane, "zz-gates", add):
        scenario.eventually(is_called)
        pods = scenario.ns.create_pods([*manifests_before, *manifests_after])
        scenario.own |= due_times(pods)
    expected = {name: [FOREIGN, GATE] for name in names_before}
    expected |= {name: [GATE, FOREIGN] for name in names_after}
    wrong_pods = [
        manifest for manifest in pods if gates(manifest) != expected[manifest["metadata"]["name"]]
    ]
    scenario.check("pods without both gates in order", len(wrong_pods))
    remove_gate(scenario, names_before, FOREIGN)
    seconds = scenario.eventually(lambda: not pods_with_gate(scenario, GATE))
    scenario.check("seconds until our gates were removed", seconds, BOUND)
    gated_names = set(pods_with_gate(scenario, FOREIGN))
    scenario.check("other gates removed with ours", len(set(names_after) - gated_names))
    scenario.check("other gates that came back", len(set(names_before) & gated_names))
    remove_gate(scenario, names_after, FOREIGN)


@FAULTS.row("gate-stripped", broken="never-forgets", caught_by="releases of pods not held")
def stripped(scenario: Scenario) -> None:
    """Remove our gate from pods by hand."""
    names = [f"{own_prefix(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    delay = scenario.long_or_short(40, 12)
    pods = scenario.ns.create_pods(pod(name, {"delay": f"{delay:.0f}"}) for name in names)
    creation_times = [created(manifest) for manifest in pods]
    remove_gate(scenario, names, GATE)
    due = max(creation_times) + delay
    scenario.check("seconds until all gates were removed", time.time() - min(creation_times), delay)
    audit, namespace = scenario.testbed.audit, scenario.ns.namespace

    def scheduled() -> bool:
        audit.read()
        return all((namespace, name) in audit.bindings for name in names)

    seconds = scenario.eventually(scheduled, BOUND)
    scenario.check("seconds until the pods were scheduled", seconds, BOUND)
    scenario.check("gates that came back", len(pods_with_gate(scenario, GATE)))
    time.sleep(max(0.0, due + 3 - time.time()))
    audit.read()
    attempts = sum(len(audit.releases[namespace, name]) for name in names)
    scenario.check("releases of pods not held", attempts)


@FAULTS.row(
    "pods-recreated", broken="goes-by-names", caught_by="pods released at their former due time"
)
def recreated(scenario: Scenario) -> None:
    """Delete held pods, and create pods with the same names and a longer delay."""
    names = [f"{own_prefix(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    # kubectl deletes forty pods in up to eight seconds, before any is due
    first_delay, second_delay = (8, 14) if scenario.short else (20, 30)
    scenario.ns.create_pods(pod(name, {"delay": str(first_delay)}) for name in names)
    scenario.wait(2)
    scenario.ns.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
    pods = scenario.ns.create_pods(pod(name, {"delay": str(second_delay)}) for name in names)
    scenario.own |= due_times(pods)
    creation_times = {manifest["metadata"]["name"]: created(manifest) for manifest in pods}
    seconds = scenario.eventually(lambda: not pods_with_gate(scenario, GATE), BOUND)
    scenario.check("seconds until the pods were released", seconds, BOUND)
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    early_names = [
        name
        for name, creation_time in creation_times.items()
        for write in releases[scenario.ns.namespace, name]
        if write.succeeded and creation_time <= write.at < creation_time + second_delay
    ]
    scenario.check("pods released at their former due time", len(early_names))


@FAULTS.row(
    "release-refused",
    minutes=3.0,
    broken="gives-up",
    caught_by="seconds until the pods were released",
)
def rejected(scenario: Scenario) -> None:
    """Have a validating webhook reject the releases of some pods."""
    names = [f"{own_prefix(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    selector = f"reason=ReleaseFailed,involvedObject.name={names[0]}"
    get_events = ("get", "events", f"--field-selector={selector}", "-o", "name")

    def decide(manifest: Object) -> list[Object] | str:
        is_own = manifest["metadata"]["name"].startswith(own_prefix(scenario))
        allowed = gates(manifest) or manifest["spec"].get("nodeName") or not is_own
        return [] if allowed else "closed for two minutes"

    with other_webhook(scenario.testbed.plane, "closed", decide, operations=("UPDATE",)):
        pods = scenario.ns.create_pods(pod(name, {"delay": "8"}) for name in names)
        scenario.own |= due_times(pods)
        seconds = scenario.eventually(lambda: scenario.ns.kubectl(*get_events), BOUND)
        scenario.check("seconds until an Event was recorded", seconds, BOUND)
        scenario.wait(120, 10)
        scenario.check(
            "pods released despite the rejection", len(names) - len(pods_with_gate(scenario, GATE))
        )
    seconds = scenario.eventually(lambda: not pods_with_gate(scenario, GATE), BOUND)
    scenario.check("seconds until the pods were released", seconds, BOUND)


@FAULTS.row(
    "release-hangs", minutes=2.5, broken="one-lane", caught_by="seconds late in other namespaces"
)
def hanging(scenario: Scenario) -> None:
    """Have a validating webhook hang and time out when pods of one namespace are released."""
    ns, stop = create_extra_namespace(scenario, "hangs"), threading.Event()

    def decide(_: Object) -> list[Object]:
        stop.wait(HANG_SECONDS)
        return []

    names = [f"{own_prefix(scenario)}{number}" for number in range(HANGING)]
    with other_webhook(
        ns.plane, "hangs", decide, operations=("UPDATE",), namespaces=[ns.namespace]
    ):
        due = due_times(ns.create_pods(pod(name, {"delay": "8"}) for name in names))
        scenario.own |= due
        since = max(due.values())
        scenario.wait(max(0.0, since - time.time()))
        scenario.wait(60, 25)
        until = time.time()
        late_seconds = lateness(scenario, since, until)
        held_count = len(held_pods(ns))
    stop.set()
    scenario.check("no releases hung", int(not held_count))
    scenario.check(
        "seconds late in other namespaces", max(late_seconds, default=2 * MAX_LATE), MAX_LATE
    )
    seconds = scenario.eventually(lambda: not held_pods(ns), BOUND)
    scenario.check("seconds until the pods were released", seconds, BOUND)


def lateness(scenario: Scenario, since: float, until: float) -> list[float]:
    """Return the lateness of the load's pods that were due within a span, in seconds."""
    scenario.testbed.audit.read()
    releases, namespace = scenario.testbed.audit.releases, scenario.load.namespace
    late_seconds = []
    for name, due in list(scenario.load.due.items()):
        if since <= due <= until:
            end_times = [write.ended for write in releases[namespace, name] if write.succeeded]
            late_seconds.append(min([until, *end_times]) - due)
    return late_seconds
