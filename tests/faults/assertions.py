"""The assertions that every row has to meet, whatever its fault is."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import msgspec

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, gates
from tests.faults.audit import Audit, PodKey
from tests.faults.load import GATE, Failure
from tests.faults.scenario import BOUND, Fault, Scenario, Span

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
SOAK = "soak"
"""The row that waits for VMs even in the short form."""
AUDIT_LOG_DELAY = 10.0
"""Seconds until a change appears in the API server's audit log: the line is written after the
response, late on an overloaded machine."""
MAX_TIMED_OUT = 0.02
"""The share of creations that may time out in the short form where none should fail: tests share
their machine, and a call that waits 3 s for a processor times out. No other failure is excused."""


def evaluate(fault: Fault, scenario: Scenario) -> None:
    """Wait for releases that are still due, and make the checks that all rows share."""
    load, audit, vm_load = scenario.load, scenario.testbed.audit, scenario.testbed.vm_load
    with closing(Cluster.connect(scenario.testbed.plane.kubeconfig)) as cluster:
        end = max([scenario.recovered, *load.due.values()]) + BOUND
        while (held_names := _held(cluster, load.namespace)) and time.time() < end:
            time.sleep(0.5)
    unreleased = _wait_for_releases(scenario)
    releases = {name: audit.releases[load.namespace, name] for name in load.due}
    end_times = {
        name: [write.ended for write in writes if write.may_have_succeeded]
        for name, writes in releases.items()
    }
    late_seconds = [
        duration_outside(due, max(end_times[name]), scenario.halted)
        for name, due in load.due.items()
        if end_times[name]
    ]
    scenario.check("no delayed pods", int(not load.due))
    scenario.check("early", len(early(scenario)))
    scenario.check("stuck", len(held_names))
    scenario.check("maximum seconds late", max(late_seconds, default=0.0), BOUND)
    scenario.notes += [
        f"{name}: due at {load.due[name]:.3f}, tried: {releases[name]}" for name in unreleased
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
    if not scenario.short or fault.name == SOAK:
        vm_load.wait_until_running()
        scenario.check("no VM restarts", int(not vm_load.restarts))
    scenario.check("sticky VMs on a wrong node", len(vm_load.misplaced()))
    scenario.check("VM pods without a required node", len(vm_load.without_required_node()))
    scenario.figures.update(pods=load.created, delayed=len(load.due))
    scenario.figures["VM restarts"] = vm_load.restarts


def _wait_for_releases(scenario: Scenario) -> list[str]:
    """Return the pods of the load whose release is not in the audit log in time."""
    audit, load, lost_spans = scenario.testbed.audit, scenario.load, _possibly_lost(scenario)
    scenario.eventually(
        lambda: not find_unreleased(audit, load.namespace, load.due, lost_spans), AUDIT_LOG_DELAY
    )
    return find_unreleased(audit, load.namespace, load.due, lost_spans)


def find_unreleased(
    audit: Audit, namespace: str, due: Mapping[str, float], lost_spans: Iterable[Span] = ()
) -> list[str]:
    """Read the audit log, and return the delayed pods whose release is not in it yet.

    Pods that fall due in the spans `lost_spans` are left out.
    """
    audit.read()
    lost_spans = list(lost_spans)
    return [
        name
        for name, due_time in due.items()
        if not any(write.may_have_succeeded for write in audit.releases[namespace, name])
        and not during(due_time, due_time, lost_spans)
    ]


def early(scenario: Scenario) -> list[PodKey]:
    """Return the pods of the load and of the row that were released or bound before they were due.

    The times come from the API server's audit log.
    """
    audit, namespace = scenario.testbed.audit, scenario.load.namespace
    due_times = {(namespace, name): due for name, due in scenario.load.due.items()} | scenario.own
    return [
        key
        for key, due in due_times.items()
        if audit.bindings.get(key, due) < due
        or any(write.may_have_succeeded and write.at < due for write in audit.releases[key])
    ]


def duration_outside(start: float, end: float, spans: Iterable[Span]) -> float:
    """Return how many seconds between two times are outside of all spans."""
    seconds, covered_until = end - start, start
    for began, ended in sorted(spans):
        seconds -= max(0.0, min(end, ended) - max(covered_until, began))
        covered_until = max(covered_until, ended)
    return seconds


def check_creations(scenario: Scenario) -> None:
    """Check which creations failed, that the last ones succeed, and that few are missing."""
    load = scenario.load
    rejections = [failure for failure in load.failures if failure.by_webhook]
    other_failures = [failure for failure in load.failures if not failure.by_webhook]
    annotated_rejections = [failure for failure in rejections if failure.pod.annotated]
    scenario.check("unannotated pods rejected", len(rejections) - len(annotated_rejections))
    excused_spans = scenario.rejections + scenario.outages
    _check_outside(scenario, "annotated pods rejected", annotated_rejections, excused_spans)
    _check_outside(scenario, "creations failed by the API server", other_failures, scenario.outages)
    end = max(load.start_times, default=0.0) - LAST
    start_count = sum(start > end for start in load.start_times)
    failed_count = sum(failure.at > end for failure in load.failures)
    limit = scenario.long_or_short(0.0, MAX_LAST_FAILED)
    scenario.check(
        "share of the last creations that failed", failed_count / max(start_count, 1), limit
    )
    share = round(missing(load.start_times, load.rate, load.period, scenario.outages), 3)
    scenario.check(
        "missing share of the load", share, scenario.long_or_short(MAX_MISSING, SHORT_MAX_MISSING)
    )


def missing(
    start_times: Iterable[float], rate: float, period: Span, outages: Sequence[Span]
) -> float:
    """Return the share of a steady load that was not started; the rate is in creations a second.

    Outages of the API server are left out, since it accepts nothing then.
    """
    seconds = duration_outside(*period, outages)
    started_count = len(outside(start_times, outages))
    return max(0.0, 1 - started_count / (rate * seconds)) if seconds > 0 else 0.0


def _check_outside(
    scenario: Scenario, name: str, failures: Sequence[Failure], spans: Iterable[Span]
) -> None:
    """Check failures outside of these spans, each of which is extended by GRACE."""
    excused_spans = [(began, ended + GRACE) for began, ended in spans]
    failures = [
        failure for failure in failures if not during(failure.at, failure.ended, excused_spans)
    ]
    timed_out = sum(failure.timed_out for failure in failures)
    limit = MAX_TIMED_OUT * scenario.load.created if scenario.short else 0
    scenario.check(name, len(failures) - timed_out)
    scenario.check(f"{name}: timed out", timed_out, limit)


def _possibly_lost(scenario: Scenario) -> list[Span]:
    """Return the spans of due times that a killed API server or etcd may have no record of."""
    return [
        (start - GRACE, end + scenario.load.delay[1] + GRACE) for start, end in scenario.outages
    ]


def outside(times: Iterable[float], spans: Iterable[Span]) -> list[float]:
    spans = list(spans)
    return [at for at in times if not during(at, at, spans)]


def during(began: float, ended: float, spans: Iterable[Span]) -> bool:
    """Return whether something overlaps a span."""
    return any(began <= end and ended >= start for start, end in spans)


def _held(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the load's pods that still have our gate."""
    pending_pods = _pending(cluster, namespace)
    if pending_pods is None:
        return ["the API server does not respond"]
    return [str(pod["metadata"]["name"]) for pod in pending_pods if GATE in gates(pod)]


def _unbound(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the load's pods without a gate and a node, with the scheduler's message."""
    pending_pods = _pending(cluster, namespace)
    if pending_pods is None:
        return {"all pods": "the API server does not respond"}
    return {
        str(pod["metadata"]["name"]): _unscheduled(pod) for pod in pending_pods if not gates(pod)
    }


def _unscheduled(pod: Object) -> str:
    """Return the scheduler's reason why a pod is pending; empty if it has given none yet."""
    conditions: list[Object] = pod["status"].get("conditions", [])
    messages = (
        str(condition.get("message", ""))
        for condition in conditions
        if condition["type"] == "PodScheduled"
    )
    return next(messages, "")


def _pending(cluster: Cluster, namespace: str) -> list[Object] | None:
    """Return the load's pods without a node; None if the API server does not respond."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    try:
        pods: list[Object] = msgspec.json.decode(cluster.request("GET", path, query=query))["items"]
    except ClusterError:
        return None
    return [pod for pod in pods if str(pod["metadata"]["name"]).startswith("load-")]
