"""A VM returns to its node, no record is lost, and users can change records."""

from collections.abc import Callable

import pytest

from tests.e2e import fake_kubevirt, vms
from tests.e2e.namespace import Namespace
from tests.e2e.sticky.records import (
    RECORD,
    RECORD_UID,
    annotated,
    kept,
    landed_and_recorded,
    notes,
    record,
    run_again,
)
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA

pytestmark = pytest.mark.xdist_group("kubevirt")

TIMES = 20


def test_vm_returns_to_its_node_20_times_of_20(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first_node, nodes = vms.node_of(pod), []
    with vms.avoided(vm_ns, first_node):
        for _ in range(TIMES):
            vms.delete_run(vm_ns)
            pod = run_again(vm_ns, pod)
            nodes.append(vms.node_of(pod))

    assert nodes == [first_node] * TIMES
    assert annotated(vm_ns)[RECORD_UID] == vms.uid(vm_ns.get("vm", FEDORA))
    prefix = "recorded node"
    assert notes(vm_ns, "VirtualMachine", "StickyNodeRecorded") == [
        f"{prefix} {first_node}: the VM starts there again"
    ]
    assert notes(vm_ns, "Pod", "StickyNodeRecorded") != []


def restart(ns: Namespace) -> None:
    vms.set_running(ns, FEDORA, running=False)


def delete_vmi(ns: Namespace) -> None:
    ns.kubectl("delete", "vmi", FEDORA, "--wait=false")


def test_user_moves_a_vm_and_clears_its_record(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first_node = vms.node_of(pod)
    second_node = next(node for node in vms.NODES if node != first_node)
    vm_ns.kubectl("annotate", "vm", FEDORA, "--overwrite", f"{RECORD}={second_node}")
    vms.delete_run(vm_ns)
    pod = run_again(vm_ns, pod)
    assert (vms.node_of(pod), record(vm_ns)) == (second_node, second_node)
    vm_ns.eventually(lambda: kept(vm_ns) == [])

    vm_ns.kubectl("annotate", "vm", FEDORA, f"{RECORD}-")
    holdfast.controller.kill()
    holdfast.controller.start()
    assert record(vm_ns) == ""
    with vms.avoided(vm_ns, second_node):
        vms.delete_run(vm_ns)
        pod = run_again(vm_ns, pod)
    assert vms.node_of(pod) != second_node
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(pod))


def test_clone_gets_its_own_record(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    with vms.avoided(vm_ns, "node-1"):
        vm_ns.create(vms.vm(annotations={RECORD: "node-1", RECORD_UID: "of-another-vm"}))
        pod = vms.landed(vm_ns)
        assert vms.node_of(pod) != "node-1"
        vm_uid = vms.uid(vm_ns.get("vm", FEDORA))
        vm_ns.eventually(lambda: annotated(vm_ns).get(RECORD_UID) == vm_uid)
        assert record(vm_ns) == vms.node_of(pod)


@pytest.mark.parametrize(
    "end", [restart, delete_vmi, vms.delete_run], ids=lambda action: action.__name__
)
def test_node_of_vm_stopped_without_a_controller_is_recorded(
    vm_ns: Namespace, holdfast: TwoProcesses, end: Callable[[Namespace], None]
) -> None:
    holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    end(vm_ns)
    name = pod["metadata"]["name"]
    vm_ns.eventually(lambda: "deletionTimestamp" in vm_ns.get("pod", name)["metadata"])
    assert kept(vm_ns) == [name]  # so KubeVirt creates no new one
    assert record(vm_ns) == ""

    with vms.avoided(vm_ns, vms.node_of(pod)):
        holdfast.controller.start()
        if end is restart:
            vm_ns.eventually(lambda: vms.is_gone(vm_ns, FEDORA))
            vms.set_running(vm_ns, FEDORA, running=True)
        assert vms.node_of(run_again(vm_ns, pod)) == vms.node_of(pod)
    assert record(vm_ns) == vms.node_of(pod)


def test_vmi_with_another_name_is_not_recorded(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    """KubeVirt runs a VMI that names any VM of its namespace as its owner."""
    victim, forged = vm_ns.create(vms.vm(run_strategy="Halted")), vms.vmi("forged")
    forged["metadata"]["ownerReferences"] = [fake_kubevirt.owned_by(victim)]
    vm_ns.create(forged)
    other_node = vms.node_of(vms.landed(vm_ns, "forged"))
    assert (kept(vm_ns), record(vm_ns)) == ([], "")
    with vms.avoided(vm_ns, other_node):
        vms.start(vm_ns)
        own_node = vms.node_of(landed_and_recorded(vm_ns))
    assert own_node != other_node
