"""A delay that counts from the creation of a pod's revision."""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.namespace import Namespace, Object, created
from tests.e2e.test_workloads import LABELS, workload

SELECTOR = "made-by=the-controller"
KINDS = ("Deployment", "StatefulSet", "DaemonSet")
DELAY = 15.0
AT_ONCE = 5.0
"""Seconds from the creation of a replacement to its release, at most."""


def test_rollout_waits_and_a_replacement_does_not(ns: Namespace) -> None:
    """All kinds at the same time: each takes twice the delay."""
    own = [
        Namespace.create_new(ns.plane, f"{ns.namespace}-{kind.lower()}", ns.holdfast)
        for kind in KINDS
    ]
    with ThreadPoolExecutor(len(KINDS)) as pool:
        list(pool.map(roll_out, own, KINDS))


def roll_out(ns: Namespace, kind: str) -> None:
    manifest = workload(kind, delay=f"{DELAY:g}")
    metadata = manifest["spec"]["template"]["metadata"]
    metadata["annotations"]["holdfast.dev/delay-from"] = "owner"
    metadata["labels"] = {**LABELS, "kind": kind}
    waited: dict[str, float] = {}

    def fresh() -> Object | None:
        """Return the first pod that is released and was not before; forget the others."""
        pods = ns.all("pods", SELECTOR)
        releases = ns.releases()  # now: of pods with one name, the last one counts
        found = [
            one
            for one in pods
            if one["metadata"]["uid"] not in waited
            and one["metadata"]["name"] in releases
            and "schedulingGates" not in one["spec"]
        ]
        found.sort(key=lambda one: releases[one["metadata"]["name"]])
        for one in found:
            waited[one["metadata"]["uid"]] = releases[one["metadata"]["name"]] - created(one)
        return next(iter(found), None)

    ns.apply(manifest)
    first = ns.eventually(fresh)
    assert first is not None
    assert waited[first["metadata"]["uid"]] >= DELAY - 1
    for one in ns.all("pods", SELECTOR):  # those of other nodes, which are released a moment later
        waited.setdefault(one["metadata"]["uid"], DELAY)

    if kind == "Deployment":
        node = ns.eventually(lambda: ns.get("pod", first["metadata"]["name"])["spec"]["nodeName"])
        mine = f"--pod-selector={SELECTOR},kind={kind}"  # a drain evicts from all namespaces
        ns.kubectl("drain", node, "--force", "--ignore-daemonsets", mine)
        ns.kubectl("uncordon", node)
    else:
        ns.kubectl("delete", "pod", first["metadata"]["name"], "--wait=false")
    second = ns.eventually(fresh)
    assert second is not None
    assert waited[second["metadata"]["uid"]] <= AT_ONCE

    metadata["labels"]["revision"] = "two"
    ns.apply(manifest)
    third = ns.eventually(fresh)
    assert third is not None
    assert waited[third["metadata"]["uid"]] >= DELAY - 1
