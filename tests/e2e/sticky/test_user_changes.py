"""Users move VMs and clear records."""

import json

import pytest

from tests.e2e import vms
from tests.e2e.namespace import Namespace
from tests.e2e.sticky.records import RECORD, command, kept, landed_and_recorded, record, run_again
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA

pytestmark = pytest.mark.xdist_group("kubevirt")


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


def test_user_moves_the_vms_of_a_node(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    old_node, new_node, *_ = sorted(vms.NODES, key=lambda node: node != vms.node_of(pod))
    command(vm_ns, "sticky", "move", "--from", old_node, "--to", new_node, "--yes")
    with vms.avoided(vm_ns, new_node):
        vms.delete_run(vm_ns)
        assert vms.node_of(run_again(vm_ns, pod)) == new_node
    assert record(vm_ns) == new_node


def test_removed_finalizer_loses_only_the_node_of_a_stopped_vm(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    """A running VM is still recorded; if the VM has stopped as well, its node is lost."""
    holdfast.controller.kill()
    for name in ("runs", "gone"):
        vm_ns.create(vms.vm(name))
        pod = vms.landed(vm_ns, name)
        patch = json.dumps({"metadata": {"finalizers": None}})
        vm_ns.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", patch)
    running_pod = vms.landed(vm_ns, "runs")
    vms.stop(vm_ns, "gone")
    holdfast.controller.start()

    vm_ns.eventually(lambda: record(vm_ns, "runs") == vms.node_of(running_pod))
    assert record(vm_ns, "gone") == ""
