"""Namespaces with held pods and VMs are deleted, or reach their quota."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.webhook.model.kubevirt import STICKY
from tests.e2e import vms
from tests.e2e.namespace import Namespace, Object, created, gates, pod
from tests.faults.rows.own import due_times, own_prefix
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table()

DELAY = 40.0
"""Seconds for which the pods are held: longer than the deletion of a namespace."""
RUNNING, HELD = "running", "held"
"""A VM that runs, and a VM whose pod is held."""


# alone: with another lane, Kubernetes' own controller takes 58.5 of 60 s
@FAULTS.row(
    "namespace-deleted",
    minutes=3.0,
    alone=True,
    broken="never-forgets",
    caught_by="releases of deleted pods",
)
def deleted(scenario: Scenario) -> None:
    """Delete a namespace with held pods and VMs, and another while both controllers are down."""
    ns, names, until = create_namespace(scenario, "gone")
    began = time.monotonic()
    delete(ns)
    scenario.eventually(lambda: not any(is_own(scenario, manifest) for manifest in ns.all("pods")))
    since = time.time()
    scenario.eventually(lambda: is_gone(ns), BOUND)
    scenario.check("seconds until the namespace was gone", time.monotonic() - began, BOUND)
    scenario.check("seconds by which held pods were deleted too late", since - until + 5)
    time.sleep(max(0.0, until - time.time()))
    scenario.testbed.audit.read()
    releases = scenario.testbed.audit.releases
    late_releases = [
        write for name in names for write in releases[ns.namespace, name] if write.at > since
    ]
    scenario.check("releases of deleted pods", len(late_releases))
    with no_controller(scenario):
        ns, _, _ = create_namespace(scenario, "left")
        with_finalizer = [
            manifest
            for manifest in ns.all("pods")
            if STICKY in manifest["metadata"].get("finalizers", ())
        ]
        scenario.check("VM pods without our finalizer", 2 - len(with_finalizer))
        delete(ns)
        scenario.wait(10, 4)
        scenario.check("namespaces gone while no controller ran", int(is_gone(ns)))
    seconds = scenario.eventually(lambda: is_gone(ns), BOUND)
    scenario.check(
        "seconds until the namespace was gone after controllers restarted", seconds, BOUND
    )


def create_namespace(scenario: Scenario, name: str) -> tuple[Namespace, list[str], float]:
    """Create a namespace with held pods and VMs.

    Return it with the names of the pods, and the time at which all of them are overdue.
    """
    name = f"{scenario.ns.namespace}-{scenario.mark}-{name}"
    ns = type(scenario.ns).create_new(scenario.testbed.plane, name)
    ns.create(vms.vm(RUNNING))
    ns.create(vms.vm(HELD, template_annotations={"delay": f"{DELAY:.0f}"}))
    vms.landed(ns, RUNNING)
    ns.eventually(lambda: any(gates(launcher) for launcher in vms.launchers(ns, HELD)))
    names = [f"{own_prefix(scenario)}{number}" for number in range(50)]
    pods = ns.create_pods(pod(pod_name, {"delay": f"{DELAY:.0f}"}) for pod_name in names)
    scenario.own |= due_times(pods)
    return ns, names, max(map(created, pods)) + DELAY + 3


def is_own(scenario: Scenario, manifest: Object) -> bool:
    """Return whether a pod is one of the row's held pods, and not a pod of a VM."""
    return str(manifest["metadata"]["name"]).startswith(own_prefix(scenario))


def delete(ns: Namespace) -> None:
    """Start the deletion of a namespace."""
    ns.plane.kubectl("delete", "namespace", ns.namespace, "--wait=false")


def is_gone(ns: Namespace) -> bool:
    """Return whether a namespace has been deleted completely."""
    options = ("--ignore-not-found", "-o", "name")
    return not ns.plane.kubectl("get", "namespace", ns.namespace, *options)


@contextmanager
def no_controller(scenario: Scenario) -> Iterator[None]:
    """Stop all controllers while the block runs."""
    since = time.time()
    for controller in scenario.testbed.controllers:
        controller.stop()
    try:
        yield
    finally:
        for controller in scenario.testbed.controllers:
            controller.start()
        scenario.halted.append((since, time.time()))


@FAULTS.row(
    "quota-reached", broken="lets-through", caught_by="delayed pods admitted without a gate"
)
def quota(scenario: Scenario) -> None:
    """Let a namespace reach its quota with held pods."""
    plane, name = scenario.testbed.plane, f"{scenario.ns.namespace}-{scenario.mark}-full"
    ns = type(scenario.ns).create_new(plane, name)
    ns.kubectl("create", "quota", "few", "--hard=pods=5")
    ns.eventually(lambda: ns.get("quota", "few").get("status", {}).get("hard"))
    pods = ns.create_pods(
        pod(f"{own_prefix(scenario)}{number}", {"delay": "12"}) for number in range(5)
    )
    scenario.own |= due_times(pods)
    try:
        ns.create_pods([pod("one-more", {"delay": "5"})])
        admitted_count = 1
    except Exception as exc:  # noqa: BLE001 - only the message matters
        admitted_count = int("exceeded quota" not in str(exc))
    scenario.check("pods admitted over the quota", admitted_count)
    held_pods = [manifest for manifest in ns.all("pods") if gates(manifest)]
    scenario.check("pods not held", 5 - len(held_pods))
    seconds = scenario.eventually(lambda: not any(gates(manifest) for manifest in ns.all("pods")))
    scenario.check("seconds until the pods were released", seconds, BOUND)
    plane.kubectl("delete", "namespace", name, "--wait=false")
