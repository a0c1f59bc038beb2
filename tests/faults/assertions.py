"""The assertions that every row has to meet, whatever its fault is."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import msgspec

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, gates
from tests.faults.audit import Audit
from tests.faults.load import GATE, Failure
from tests.faults.scenario import BOUND, Fault, PodKey, Scenario, Span

LOAD_AFTER, LAST = 6.0, 3.0
"""Seconds of load after the fault, and the last of these seconds, in which creations succeed."""
GRACE = LOAD_AFTER - LAST
"""Seconds after the end of a fault in which creations may still fail because of it."""
MAX_LAST_FAILED = 0.2
"""The share of the last creations that may fail in the short form. Six in ten pods are annotated,
and all of those fail if no webhook responds. An overloaded machine loses only a call or two. In the
long form none may fail."""
MAX_MISSING, SHORT_MAX_MISSING = 0.2, 0.5
"""The share of twenty creations a second that an overloaded machine may skip, in the long form and
in the short form."""
SOAK_GROUP = 10
"""The group whose rows wait for VMs even in the short form."""
AUDIT_LOG_DELAY = 10.0
"""Seconds until a change appears in the API server's audit log: the line is written after the
response, late on an overloaded machine."""
MAX_TIMED_OUT = 0.02
"""The share of creations that may time out in the short form where none should fail: tests share
their machine, and a call that waits 3 s for a processor times out. No other failure is excused."""


def evaluate(fault: Fault, scenario: Scenario) -> None:
    """Wait for releases that are still due, and make the checks that all rows share."""
    load, audit = scenario.load, scenario.testbed.audit
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        end = max([scenario.recovered, *load.due.values()]) + BOUND
        while (held := _held(cluster, load.namespace)) and time.time() < end:
            time.sleep(0.5)
    scenario.figures["seconds until all pods were released"] = round(
        time.time() - scenario.recovered, 1
    )
    unreleased = _wait_for_releases(scenario)
    at = {name: audit.releases[load.namespace, name] for name in load.due}
    tries = {
        name: [one.ended for one in writes if one.may_have_succeeded] for name, writes in at.items()
    }
    late = [
        duration_outside(due, max(tries[name]), scenario.halted)
        for name, due in load.due.items()
        if tries[name]
    ]
    scenario.check("no delayed pods", int(not load.due))
    scenario.check("early", len(early(scenario)))
    scenario.check("stuck", len(held))
    scenario.check("maximum seconds late", max(late, default=0.0), BOUND)
    scenario.notes += [
        f"{name}: due at {load.due[name]:.3f}, tried: {at[name]}" for name in unreleased
    ]
    scenario.check("due pods without a release", len(unreleased))
    scenario.check("delayed pods admitted without a gate", len(load.ungated))
    scenario.check("pods with unexpected gates or affinity terms", len(load.malformed))
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        scenario.eventually(lambda: not _unbound(cluster, load.namespace))
        unbound = _unbound(cluster, load.namespace)
        scenario.notes += [f"{name} has no node: {why}" for name, why in unbound.items()]
        scenario.check("released pods never bound", len(unbound))
    check_creations(scenario)
    if not scenario.short or fault.group == SOAK_GROUP:
        scenario.figures["seconds until all VMs ran"] = round(
            scenario.testbed.vm_load.wait_until_running(), 1
        )
        scenario.check("no VM restarts", int(not scenario.testbed.vm_load.restarts))
    scenario.check("sticky VMs on a wrong node", len(scenario.testbed.vm_load.misplaced()))
    scenario.check(
        "VM pods without a required node", len(scenario.testbed.vm_load.without_required_node())
    )
    scenario.figures |= {
        "pods": load.created,
        "delayed": len(load.due),
        "VM restarts": scenario.testbed.vm_load.restarts,
    }


def _wait_for_releases(scenario: Scenario) -> list[str]:
    """Return the pods of the load whose release is not in the audit log in time."""
    audit, load, lost = scenario.testbed.audit, scenario.load, _possibly_lost(scenario)
    began = time.monotonic()
    scenario.eventually(
        lambda: not find_unreleased(audit, load.namespace, load.due, lost), AUDIT_LOG_DELAY
    )
    scenario.figures["seconds until the audit log had all releases"] = round(
        time.monotonic() - began, 3
    )
    return find_unreleased(audit, load.namespace, load.due, lost)


def find_unreleased(
    audit: Audit, namespace: str, due: Mapping[str, float], lost: Iterable[Span] = ()
) -> list[str]:
    """Read the audit log, and return the delayed pods whose release is not in it yet.

    Pods that fall due in the spans `lost` are left out.
    """
    audit.read()
    lost = list(lost)
    return [
        name
        for name, at in due.items()
        if not any(one.may_have_succeeded for one in audit.releases[namespace, name])
        and not during(at, at, lost)
    ]


def early(scenario: Scenario) -> list[PodKey]:
    """Return the pods of the load and of the row that were released or bound before they were due.

    The times come from the API server's audit log.
    """
    audit, space = scenario.testbed.audit, scenario.load.namespace
    times = {(space, name): due for name, due in scenario.load.due.items()} | scenario.own
    return [
        key
        for key, due in times.items()
        if audit.bindings.get(key, due) < due
        or any(one.may_have_succeeded and one.at < due for one in audit.releases[key])
    ]


def duration_outside(first: float, last: float, spans: Iterable[Span]) -> float:
    """Return how many seconds between two times are outside of all spans."""
    seconds, reached = last - first, first
    for began, ended in sorted(spans):
        seconds -= max(0.0, min(last, ended) - max(reached, began))
        reached = max(reached, ended)
    return seconds


def check_creations(scenario: Scenario) -> None:
    """Check which creations failed, that the last ones succeed, and that few are missing."""
    load = scenario.load
    rejected = [one for one in load.failures if one.by_webhook]
    others = [one for one in load.failures if not one.by_webhook]
    annotated = [one for one in rejected if one.pod.annotated]
    scenario.check("unannotated pods rejected", len(rejected) - len(annotated))
    excused = scenario.rejections + scenario.outages
    _check_outside(scenario, "annotated pods rejected", annotated, excused)
    _check_outside(scenario, "creations failed by the API server", others, scenario.outages)
    end = max(load.start_times, default=0.0) - LAST
    last = sum(at > end for at in load.start_times)
    failed = sum(one.at > end for one in load.failures)
    limit = scenario.long_or_short(0.0, MAX_LAST_FAILED)
    scenario.check("share of the last creations that failed", failed / max(last, 1), limit)
    share = round(missing(load.start_times, load.rate, load.period, scenario.outages), 3)
    scenario.check(
        "missing share of the load", share, scenario.long_or_short(MAX_MISSING, SHORT_MAX_MISSING)
    )
    scenario.figures |= {"rejected": len(rejected), "failed": len(others)}


def missing(
    start_times: Iterable[float], rate: float, period: Span, outages: Sequence[Span]
) -> float:
    """Return the share of a steady load that was not started; the rate is in creations a second.

    Outages of the API server are left out, since it accepts nothing then.
    """
    seconds = duration_outside(*period, outages)
    started = len(outside(start_times, outages))
    return max(0.0, 1 - started / (rate * seconds)) if seconds > 0 else 0.0


def _check_outside(
    scenario: Scenario, name: str, failures: Sequence[Failure], spans: Iterable[Span]
) -> None:
    """Check failures outside of these spans, each of which is extended by GRACE."""
    excused = [(began, ended + GRACE) for began, ended in spans]
    failures = [one for one in failures if not during(one.at, one.ended, excused)]
    timed_out = sum(one.timed_out for one in failures)
    limit = MAX_TIMED_OUT * scenario.load.created if scenario.short else 0
    scenario.check(name, len(failures) - timed_out)
    scenario.check(f"{name}: timed out", timed_out, limit)


def _possibly_lost(scenario: Scenario) -> list[Span]:
    """Return the spans of due times that a killed API server or etcd may have no record of."""
    return [(a - GRACE, b + scenario.load.delay[1] + GRACE) for a, b in scenario.outages]


def outside(times: Iterable[float], spans: Iterable[Span]) -> list[float]:
    spans = list(spans)
    return [at for at in times if not during(at, at, spans)]


def during(began: float, ended: float, spans: Iterable[Span]) -> bool:
    """Return whether something overlaps a span."""
    return any(began <= last and ended >= first for first, last in spans)


def _held(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the load's pods that still have our gate."""
    pending = _pending(cluster, namespace)
    if pending is None:
        return ["the API server does not respond"]
    return [str(one["metadata"]["name"]) for one in pending if GATE in gates(one)]


def _unbound(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the load's pods without a gate and a node, with the scheduler's message."""
    pending = _pending(cluster, namespace)
    if pending is None:
        return {"all pods": "the API server does not respond"}
    return {str(one["metadata"]["name"]): _unscheduled(one) for one in pending if not gates(one)}


def _unscheduled(pending: Object) -> str:
    """Return the scheduler's reason why a pod is pending; empty if it has given none yet."""
    conditions: list[Object] = pending["status"].get("conditions", [])
    messages = (str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled")
    return next(messages, "")


def _pending(cluster: Cluster, namespace: str) -> list[Object] | None:
    """Return the load's pods without a node; None if the API server does not respond."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    try:
        items: list[Object] = msgspec.json.decode(cluster.request("GET", path, query=query))[
            "items"
        ]
    except ClusterError:
        return None
    return [one for one in items if str(one["metadata"]["name"]).startswith("load-")]
