"""The verdict on a row: whatever was done to the cluster, every row is held to the same."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import msgspec

from tests.e2e.world import Object, gates
from tests.faults.audit import Audit
from tests.faults.load import GATE, Failure
from tests.faults.scene import BOUND, Fault, Names, Scene, Span
from webhook.cluster import Cluster
from webhook.errors import ClusterError

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
"""Seconds in which the API server's audit log tells what can be read already: it writes a line when
it has answered, which a crowded machine puts off."""
CROWDED = 0.02
"""The share of creations that may time out in the short form where none should: the tests share
their machine, and a call that waits for a processor for 3 s is given up. No other failure is
excused."""


def judge(fault: Fault, scene: Scene) -> None:
    """Wait for what is still due, and hold every row to the same."""
    load, audit = scene.load, scene.arena.audit
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        end = max([scene.recovered, *load.due.values()]) + BOUND
        while (held := _held(cluster, load.namespace)) and time.time() < end:
            time.sleep(0.5)
    scene.figures["seconds until all were released"] = round(time.time() - scene.recovered, 1)
    missed = _never_told(scene)
    at = {name: audit.releases[load.namespace, name] for name in load.due}
    tries = {
        name: [one.ended for one in writes if one.may_have_worked] for name, writes in at.items()
    }
    late = [
        waited(due, max(tries[name]), scene.halted) for name, due in load.due.items() if tries[name]
    ]
    scene.check("loads without a delayed pod", int(not load.due))
    scene.check("early", len(early(scene)))
    scene.check("stuck", len(held))
    scene.check("seconds late, at most", max(late, default=0.0), BOUND)
    scene.notes += [f"{name}: due at {load.due[name]:.3f}, tried: {at[name]}" for name in missed]
    scene.check("due pods without a release", len(missed))
    scene.check("delayed pods let through", len(load.ungated))
    scene.check("pods with other than one gate and one term", len(load.misshapen))
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        scene.eventually(lambda: not _unbound(cluster, load.namespace))
        unbound = _unbound(cluster, load.namespace)
        scene.notes += [f"{name} has no node: {why}" for name, why in unbound.items()]
        scene.check("released but never bound", len(unbound))
    judge_creations(scene)
    if not scene.short or fault.group == SOAK:
        scene.figures["seconds until VMs ran"] = round(scene.arena.machines.settle(), 1)
        scene.check("loads without a restart of a VM", int(not scene.arena.machines.restarts))
    scene.check("sticky VMs astray", len(scene.arena.machines.astray()))
    scene.check("VMs' pods without their node", len(scene.arena.machines.unbidden()))
    scene.figures |= {
        "pods": load.made,
        "delayed": len(load.due),
        "restarts of VMs": scene.arena.machines.restarts,
    }


def _never_told(scene: Scene) -> list[str]:
    """Name the pods of the load of whose release the audit log has not told in time."""
    audit, load, forgotten = scene.arena.audit, scene.load, _forgotten(scene)
    began = time.monotonic()
    scene.eventually(lambda: not untold(audit, load.namespace, load.due, forgotten), WRITTEN)
    scene.figures["seconds until the audit log told of all"] = round(time.monotonic() - began, 3)
    return untold(audit, load.namespace, load.due, forgotten)


def untold(
    audit: Audit, namespace: str, due: Mapping[str, float], forgotten: Iterable[Span] = ()
) -> list[str]:
    """Read the audit log, and name the delayed pods of whose release it does not tell (yet)."""
    audit.read()
    forgotten = list(forgotten)
    return [
        name
        for name, at in due.items()
        if not any(one.may_have_worked for one in audit.releases[namespace, name])
        and not during(at, at, forgotten)
    ]


def early(scene: Scene) -> list[Names]:
    """Name the pods, the load's and those that the row has made, that went before their time.

    As far as Holdfast released them, or the scheduler bound them, by the API server's account.
    """
    audit, space = scene.arena.audit, scene.load.namespace
    times = {(space, name): due for name, due in scene.load.due.items()} | scene.own
    return [
        key
        for key, due in times.items()
        if audit.bindings.get(key, due) < due
        or any(one.may_have_worked and one.at < due for one in audit.releases[key])
    ]


def waited(due: float, until: float, halted: Iterable[Span]) -> float:
    """Tell for how many seconds a pod was due, and could have been released, before it was."""
    late, reached = until - due, due
    for began, ended in sorted(halted):
        late -= max(0.0, min(until, ended) - max(reached, began))
        reached = max(reached, ended)
    return late


def judge_creations(scene: Scene) -> None:
    """Check which creations failed, that they succeed in the end, and that they were many."""
    load = scene.load
    refused = [one for one in load.failures if one.by_webhook]
    others = [one for one in load.failures if not one.by_webhook]
    asking = [one for one in refused if one.wish.asks]
    scene.check("creations refused that ask nothing", len(refused) - len(asking))
    excused = scene.refusals + scene.outages
    _excuse(scene, "creations refused that ask", asking, excused)
    _excuse(scene, "creations failed by the API server", others, scene.outages)
    end = max(load.begun, default=0.0) - LAST
    last = sum(at > end for at in load.begun)
    failed = sum(one.at > end for one in load.failures)
    most = scene.lasts(0.0, LAST_FAILED)
    scene.check("share of the last creations that failed", failed / max(last, 1), most)
    share = round(missing(load.begun, load.rate, load.lasted, scene.outages), 3)
    scene.check("share of the load that is missing", share, scene.lasts(MISSING, SHORT_MISSING))
    scene.figures |= {"refused": len(refused), "failed": len(others)}


def missing(begun: Iterable[float], rate: float, lasted: Span, outages: Sequence[Span]) -> float:
    """Tell which share of a steady load, of so many creations a second, was not begun.

    Outages of the API server count neither way: it takes in nothing then.
    """
    seconds = waited(*lasted, outages)
    return max(0.0, 1 - len(outside(begun, outages)) / (rate * seconds)) if seconds > 0 else 0.0


def _excuse(scene: Scene, name: str, failures: Sequence[Failure], spans: Iterable[Span]) -> None:
    """Check failures outside of these spans, and of what followed at once."""
    settled = [(began, ended + SETTLING) for began, ended in spans]
    failures = [one for one in failures if not during(one.at, one.ended, settled)]
    timed_out = sum(one.timed_out for one in failures)
    crowded = CROWDED * scene.load.made if scene.short else 0
    scene.check(name, len(failures) - timed_out)
    scene.check(f"{name}: timed out", timed_out, crowded)


def _forgotten(scene: Scene) -> list[Span]:
    """Give the spans of due times of which an API server or etcd that was killed knows nothing."""
    return [(a - SETTLING, b + scene.load.delay[1] + SETTLING) for a, b in scene.outages]


def outside(moments: Iterable[float], spans: Iterable[Span]) -> list[float]:
    """Leave out what was within a span."""
    spans = list(spans)
    return [at for at in moments if not during(at, at, spans)]


def during(began: float, ended: float, spans: Iterable[Span]) -> bool:
    """Tell whether something went on within a span, if only for a part of its time."""
    return any(began <= last and ended >= first for first, last in spans)


def _held(cluster: Cluster, namespace: str) -> list[str]:
    """Name the pods of the load that carry our gate still."""
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
    """Give the scheduler's reason for which a pod waits; empty where it has not said any yet."""
    conditions: list[Object] = waiting["status"].get("conditions", [])
    said = (str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled")
    return next(said, "")


def _waiting(cluster: Cluster, namespace: str) -> list[Object] | None:
    """Give the pods of the load that have no node; None where the API server does not answer."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    try:
        items: list[Object] = msgspec.json.decode(cluster.request("GET", path, query=query))[
            "items"
        ]
    except ClusterError:
        return None
    return [one for one in items if str(one["metadata"]["name"]).startswith("load-")]
