"""A delay that counts from the creation of a pod's revision."""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.namespace import Namespace, Object, created
from tests.e2e.workloads import LABELS, workload

SELECTOR = "made-by=the-controller"
KINDS = ("Deployment", "StatefulSet", "DaemonSet")
DELAY = 15.0
REPLACEMENT_SECONDS = 5.0
"""Maximum time from the creation of a replacement to its release."""


def test_rollout_is_delayed_but_a_replacement_is_not(ns: Namespace) -> None:
    """Run all kinds in parallel: each takes twice the delay."""
    namespaces = [
        Namespace.create_new(ns.plane, f"{ns.namespace}-{kind.lower()}", ns.holdfast)
        for kind in KINDS
    ]
    with ThreadPoolExecutor(len(KINDS)) as pool:
        list(pool.map(roll_out, namespaces, KINDS))


def roll_out(ns: Namespace, kind: str) -> None:
    manifest = workload(kind, delay=f"{DELAY:g}")
    metadata = manifest["spec"]["template"]["metadata"]
    metadata["annotations"]["holdfast.dev/delay-from"] = "owner"
    metadata["labels"] = {**LABELS, "kind": kind}
    waited: dict[str, float] = {}

    def newly_released() -> Object | None:
        """Record all newly released pods, and return the first of them."""
        pods = ns.all("pods", SELECTOR)
        releases = ns.releases()  # read now: of a reused pod name, only the latest release is kept
        released = [
            pod
            for pod in pods
            if pod["metadata"]["uid"] not in waited
            and pod["metadata"]["name"] in releases
            and "schedulingGates" not in pod["spec"]
        ]
        released.sort(key=lambda pod: releases[pod["metadata"]["name"]])
        for pod in released:
            waited[pod["metadata"]["uid"]] = releases[pod["metadata"]["name"]] - created(pod)
        return next(iter(released), None)

    ns.apply(manifest)
    first_pod = ns.eventually(newly_released)
    assert first_pod is not None
    assert waited[first_pod["metadata"]["uid"]] >= DELAY - 1
    for pod in ns.all("pods", SELECTOR):  # pods on other nodes are released a moment later
        waited.setdefault(pod["metadata"]["uid"], DELAY)

    if kind == "Deployment":
        node = ns.eventually(
            lambda: ns.get("pod", first_pod["metadata"]["name"])["spec"]["nodeName"]
        )
        selector = f"--pod-selector={SELECTOR},kind={kind}"  # a drain evicts from all namespaces
        ns.kubectl("drain", node, "--force", "--ignore-daemonsets", selector)
        ns.kubectl("uncordon", node)
    else:
        ns.kubectl("delete", "pod", first_pod["metadata"]["name"], "--wait=false")
    second_pod = ns.eventually(newly_released)
    assert second_pod is not None
    assert waited[second_pod["metadata"]["uid"]] <= REPLACEMENT_SECONDS

    metadata["labels"]["revision"] = "two"
    ns.apply(manifest)
    third_pod = ns.eventually(newly_released)
    assert third_pod is not None
    assert waited[third_pod["metadata"]["uid"]] >= DELAY - 1
