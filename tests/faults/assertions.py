"""The verdict on a row: whatever was done to the cluster, every row is held to the same."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import msgspec

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, gates
from tests.faults.audit import Audit
from tests.faults.load import GATE, Failure
from tests.faults.scenario import BOUND, Fault, Names, Scenario, Span

AFTER, LAST = 6.0, 3.0
"""Seconds of load after the harm, and those at its end in which creations succeed again."""
SETTLING = AFTER - LAST
"""Seconds after something is over in which a creation may still fail of it."""
LAST_FAILED = 0.2
"""The share of the last creations that may fail in the short form: six in ten ask, all of which
fail when nothing answers; a call or two that a crowded machine gives up is no more than this. In
the long form none may."""
MISSING, SHORT_MISSING = 0.2, 0.5
"""The share of twenty creations a second that a crowded machine may leave out, in the long form and
in the short one."""
SOAK = 10
"""The number in the list after which VMs are waited for even in the short form."""
WRITTEN = 10.0
"""Seconds until the API server's audit log has a line for a change that can be read: the line is
written after the response, late on an overloaded machine."""
CROWDED = 0.02
"""The share of creations that may time out in the short form where none should: the tests share
their machine, and a call that waits for a processor for 3 s is given up. No other failure is
excused."""


def evaluate(fault: Fault, scenario: Scenario) -> None:
    """Wait for what is still due, and hold every row to the same."""
    load, audit = scenario.load, scenario.testbed.audit
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        end = max([scenario.recovered, *load.due.values()]) + BOUND
        while (held := _held(cluster, load.namespace)) and time.time() < end:
            time.sleep(0.5)
    scenario.figures["seconds until all were released"] = round(time.time() - scenario.recovered, 1)
    missed = _never_told(scenario)
    at = {name: audit.releases[load.namespace, name] for name in load.due}
    tries = {
        name: [one.ended for one in writes if one.may_have_worked] for name, writes in at.items()
    }
    late = [
        waited(due, max(tries[name]), scenario.halted)
        for name, due in load.due.items()
        if tries[name]
    ]
    scenario.check("loads without a delayed pod", int(not load.due))
    scenario.check("early", len(early(scenario)))
    scenario.check("stuck", len(held))
    scenario.check("seconds late, at most", max(late, default=0.0), BOUND)
    scenario.notes += [f"{name}: due at {load.due[name]:.3f}, tried: {at[name]}" for name in missed]
    scenario.check("due pods without a release", len(missed))
    scenario.check("delayed pods let through", len(load.ungated))
    scenario.check("pods with other than one gate and one term", len(load.misshapen))
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        scenario.eventually(lambda: not _unbound(cluster, load.namespace))
        unbound = _unbound(cluster, load.namespace)
        scenario.notes += [f"{name} has no node: {why}" for name, why in unbound.items()]
        scenario.check("released but never bound", len(unbound))
    check_creations(scenario)
    if not scenario.short or fault.group == SOAK:
        scenario.figures["seconds until VMs ran"] = round(scenario.testbed.vm_load.settle(), 1)
        scenario.check(
            "loads without a restart of a VM", int(not scenario.testbed.vm_load.restarts)
        )
    scenario.check("sticky VMs astray", len(scenario.testbed.vm_load.astray()))
    scenario.check("VMs' pods without their node", len(scenario.testbed.vm_load.unbidden()))
    scenario.figures |= {
        "pods": load.made,
        "delayed": len(load.due),
        "restarts of VMs": scenario.testbed.vm_load.restarts,
    }


def _never_told(scenario: Scenario) -> list[str]:
    """Return the pods of the load whose release is not in the audit log in time."""
    audit, load, forgotten = scenario.testbed.audit, scenario.load, _forgotten(scenario)
    began = time.monotonic()
    scenario.eventually(lambda: not untold(audit, load.namespace, load.due, forgotten), WRITTEN)
    scenario.figures["seconds until the audit log had all releases"] = round(
        time.monotonic() - began, 3
    )
    return untold(audit, load.namespace, load.due, forgotten)


def untold(
    audit: Audit, namespace: str, due: Mapping[str, float], forgotten: Iterable[Span] = ()
) -> list[str]:
    """Read the audit log, and return the delayed pods whose release is not in it (yet)."""
    audit.read()
    forgotten = list(forgotten)
    return [
        name
        for name, at in due.items()
        if not any(one.may_have_worked for one in audit.releases[namespace, name])
        and not during(at, at, forgotten)
    ]


def early(scenario: Scenario) -> list[Names]:
    """Return the pods, of the load and of the row, that were released or bound before their time.

    The API server's audit log says when.
    """
    audit, space = scenario.testbed.audit, scenario.load.namespace
    times = {(space, name): due for name, due in scenario.load.due.items()} | scenario.own
    return [
        key
        for key, due in times.items()
        if audit.bindings.get(key, due) < due
        or any(one.may_have_worked and one.at < due for one in audit.releases[key])
    ]


def waited(due: float, until: float, halted: Iterable[Span]) -> float:
    """Return for how many seconds a pod was due and could have been released."""
    late, reached = until - due, due
    for began, ended in sorted(halted):
        late -= max(0.0, min(until, ended) - max(reached, began))
        reached = max(reached, ended)
    return late


def check_creations(scenario: Scenario) -> None:
    """Check which creations failed, that they succeed in the end, and that they were many."""
    load = scenario.load
    refused = [one for one in load.failures if one.by_webhook]
    others = [one for one in load.failures if not one.by_webhook]
    asking = [one for one in refused if one.wish.asks]
    scenario.check("rejected creations that ask for nothing", len(refused) - len(asking))
    excused = scenario.refusals + scenario.outages
    _excuse(scenario, "creations refused that ask", asking, excused)
    _excuse(scenario, "creations failed by the API server", others, scenario.outages)
    end = max(load.begun, default=0.0) - LAST
    last = sum(at > end for at in load.begun)
    failed = sum(one.at > end for one in load.failures)
    most = scenario.lasts(0.0, LAST_FAILED)
    scenario.check("share of the last creations that failed", failed / max(last, 1), most)
    share = round(missing(load.begun, load.rate, load.lasted, scenario.outages), 3)
    scenario.check(
        "share of the load that is missing", share, scenario.lasts(MISSING, SHORT_MISSING)
    )
    scenario.figures |= {"refused": len(refused), "failed": len(others)}


def missing(begun: Iterable[float], rate: float, lasted: Span, outages: Sequence[Span]) -> float:
    """Return which share of a steady load, of so many creations a second, was not begun.

    Outages of the API server count neither way: it takes in nothing then.
    """
    seconds = waited(*lasted, outages)
    return max(0.0, 1 - len(outside(begun, outages)) / (rate * seconds)) if seconds > 0 else 0.0


def _excuse(
    scenario: Scenario, name: str, failures: Sequence[Failure], spans: Iterable[Span]
) -> None:
    """Check failures outside of these spans, and of what followed at once."""
    settled = [(began, ended + SETTLING) for began, ended in spans]
    failures = [one for one in failures if not during(one.at, one.ended, settled)]
    timed_out = sum(one.timed_out for one in failures)
    crowded = CROWDED * scenario.load.made if scenario.short else 0
    scenario.check(name, len(failures) - timed_out)
    scenario.check(f"{name}: timed out", timed_out, crowded)


def _forgotten(scenario: Scenario) -> list[Span]:
    """Return the spans of due times that a killed API server or etcd may have no record of."""
    return [(a - SETTLING, b + scenario.load.delay[1] + SETTLING) for a, b in scenario.outages]


def outside(moments: Iterable[float], spans: Iterable[Span]) -> list[float]:
    spans = list(spans)
    return [at for at in moments if not during(at, at, spans)]


def during(began: float, ended: float, spans: Iterable[Span]) -> bool:
    """Return whether something went on within a span, if only for a part of its time."""
    return any(began <= last and ended >= first for first, last in spans)


def _held(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the load's pods that still have our gate."""
    waiting = _waiting(cluster, namespace)
    if waiting is None:
        return ["the API server does not answer"]
    return [str(one["metadata"]["name"]) for one in waiting if GATE in gates(one)]


def _unbound(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Name the pods of the load that have no gate and no node, and what the scheduler says."""
    waiting = _waiting(cluster, namespace)
    if waiting is None:
        return {"whatever there is": "the API server does not answer"}
    return {str(one["metadata"]["name"]): _unscheduled(one) for one in waiting if not gates(one)}


def _unscheduled(waiting: Object) -> str:
    """Return the scheduler's reason why a pod waits; empty if it has given none yet."""
    conditions: list[Object] = waiting["status"].get("conditions", [])
    said = (str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled")
    return next(said, "")


def _waiting(cluster: Cluster, namespace: str) -> list[Object] | None:
    """Return the load's pods without a node; None if the API server does not answer."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    try:
        items: list[Object] = msgspec.json.decode(cluster.request("GET", path, query=query))[
            "items"
        ]
    except ClusterError:
        return None
    return [one for one in items if str(one["metadata"]["name"]).startswith("load-")]
