"""Nodes that cannot take their VM."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import yaml

from controlplane.kubevirt import KWOK_VMI
from controlplane.kubevirt.nodes import enable_all
from controlplane.nodes import FAKE, is_ready
from tests.e2e import vms
from tests.e2e.namespace import HOSTNAME, Namespace, Object, volume
from tests.e2e.sticky.records import (
    ORPHANED_SECONDS,
    command,
    kept,
    landed_and_recorded,
    notes,
    record,
    run_again,
)
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA, cordoned

pytestmark = pytest.mark.xdist_group("kubevirt")


@contextmanager
def not_ready(ns: Namespace, node: str) -> Iterator[None]:
    key, value = FAKE
    ns.kubectl("annotate", "node", node, f"{key}-")  # kwok no longer manages it
    condition = {"type": "Ready", "status": "False", "reason": "KubeletSays"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    ns.kubectl("patch", "node", node, "--subresource=status", "-p", patch)
    try:
        ns.eventually(lambda: ns.get("node", node)["spec"].get("taints"))
        yield
    finally:
        ns.kubectl("annotate", "node", node, f"{key}={value}")
        ns.eventually(lambda: is_ready(ns.get("node", node)))


@contextmanager
def removed(ns: Namespace, node: str) -> Iterator[None]:
    """Delete a node and its pods; recreate it with the same name afterwards."""
    keys = ("name", "labels", "annotations")
    stored = ns.get("node", node)
    metadata = {key: stored["metadata"][key] for key in keys}
    status = {key: stored["status"][key] for key in ("capacity", "allocatable", "nodeInfo")}
    ns.kubectl("delete", "node", node)
    try:
        yield
    finally:
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        ns.kubectl("create", "-f", "-", stdin=yaml.safe_dump(manifest))
        enable_all(ns.plane.api)


@pytest.mark.parametrize(
    ("without", "why"),
    [
        pytest.param(cordoned, "which is cordoned", id="cordoned"),
        pytest.param(not_ready, "which is not ready (KubeletSays)", id="not ready"),
    ],
)
def test_vm_waits_for_its_node_and_reports_why(
    vm_ns: Namespace,
    holdfast: TwoProcesses,
    without: Callable[[Namespace, str], AbstractContextManager[None]],
    why: str,
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    node = vms.node_of(pod)
    with without(vm_ns, node):
        vms.delete_run(vm_ns)
        vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        vm_ns.eventually(lambda: notes(vm_ns, "Pod", "StickyNodeUnavailable"))
        (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, {why}")
        message = f"VM {vm_ns.namespace}/{FEDORA} is starting: its pod keeps the node"
        vm_ns.eventually(lambda: message in command(vm_ns, "sticky", "set", FEDORA, node))
        assert record(vm_ns) == node
    assert vms.node_of(run_again(vm_ns, pod)) == node


UNMET = f'"{HOSTNAME} In [elsewhere]"'
ELSEWHERE = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["elsewhere"]}]}
    ]
}
BY_POD = (
    f"does not meet {UNMET} of the pod's node selector or affinity",
    f"the node selector or affinity of the pod requires {UNMET}",
)
BY_VOLUME = (
    "a volume of the VM cannot be reached from",
    f"the volume of claim data requires {UNMET}",
)


@pytest.mark.parametrize(
    ("spec", "noted", "shown"),
    [
        pytest.param({"nodeSelector": {HOSTNAME: "elsewhere"}}, *BY_POD, id="selector"),
        pytest.param(
            {
                "domain": {"devices": {"disks": [{"name": "data", "disk": {}}]}},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            *BY_VOLUME,
            id="volume",
        ),
    ],
)
def test_record_contradicting_the_vm_template_is_reported(
    vm_ns: Namespace, holdfast: TwoProcesses, spec: Object, noted: str, shown: str
) -> None:
    vm_ns.apply(*volume(f"disk-{vm_ns.namespace}", "data", ELSEWHERE))
    vm_ns.create(vms.vm())
    node = vms.node_of(landed_and_recorded(vm_ns))
    template = json.dumps({"spec": {"template": {"spec": spec}}})
    vm_ns.kubectl("patch", "vm", FEDORA, "--type=merge", "-p", template)
    vms.delete_run(vm_ns)
    vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
    (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
    assert note.startswith(f"the VM waits for its node {node}, which {noted}")
    required = f"{node}: {shown}"
    (pod,) = vms.launchers(vm_ns, FEDORA)
    for arguments in (["sticky", "show", FEDORA], ["explain", pod["metadata"]["name"]]):
        assert required in command(vm_ns, *arguments)


def test_node_with_a_different_hostname_label(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.kubectl("label", "node", "node-2", "--overwrite", f"{HOSTNAME}=host-2")
    try:
        vm_ns.create(vms.vm(nodeSelector={HOSTNAME: "host-2"}))
        pod = landed_and_recorded(vm_ns)
        assert record(vm_ns) == "node-2"
        with cordoned(vm_ns, "node-2"):
            vms.delete_run(vm_ns)
            vm_ns.eventually(lambda: notes(vm_ns, "Pod", "StickyNodeUnavailable"))
            name = vms.launchers(vm_ns, FEDORA)[-1]["metadata"]["name"]
            assert "must run on node-2: it is cordoned" in command(vm_ns, "explain", name)
        assert vms.node_of(run_again(vm_ns, pod)) == "node-2"
    finally:
        vm_ns.kubectl("label", "node", "node-2", "--overwrite", f"{HOSTNAME}=node-2")


def test_vm_that_never_ran_is_not_pinned(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    handler = vm_ns.plane.process(KWOK_VMI)
    handler.kill()  # so VMIs are not reported as running
    try:
        vm_ns.create(vms.vm())
        vm_ns.eventually(
            lambda: (vm_ns.find("vmi", FEDORA) or {}).get("status", {}).get("nodeName")
        )
        (pod,) = vms.launchers(vm_ns, FEDORA)
        name, first_node = pod["metadata"]["name"], vms.node_of(pod)
        expected = f"{first_node} is recorded once the VM runs; if it ends before, no node is"
        assert expected in command(vm_ns, "explain", name)
        assert (kept(vm_ns), record(vm_ns)) == ([name], "")
        vm_ns.kubectl("cordon", first_node)
        vms.delete_run(vm_ns)
        vm_ns.eventually(lambda: kept(vm_ns) != [name])
    finally:
        handler.restart()
    try:
        second_node = vms.node_of(run_again(vm_ns, pod))
    finally:
        vm_ns.kubectl("uncordon", first_node)
    assert second_node != first_node
    vm_ns.eventually(lambda: record(vm_ns) == second_node)
    (note,) = notes(vm_ns, "Pod", "StickyNodeNotRecorded")
    assert note.endswith(f"because the VM ended before it ran; it was on {first_node}")


@pytest.mark.slow
def test_record_survives_node_deletion(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    node = vms.node_of(pod)
    with removed(vm_ns, node):
        vm_ns.eventually(
            lambda: "deletionTimestamp" in vm_ns.get("pod", pod["metadata"]["name"])["metadata"],
            ORPHANED_SECONDS,
        )
        holdfast.controller.start()
        vm_ns.eventually(lambda: record(vm_ns) == node)
        vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, which does not exist")
    assert vms.node_of(run_again(vm_ns, pod)) == node
