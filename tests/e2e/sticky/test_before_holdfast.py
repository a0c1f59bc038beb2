"""VMs from before Holdfast. First, because the shared Holdfast runs from the next module on."""

from pathlib import Path

import pytest

from controlplane.launcher import ControlPlane
from tests.e2e import vms
from tests.e2e.namespace import Namespace
from tests.e2e.sticky.records import record, run_again
from tests.e2e.two_processes import TwoProcesses

pytestmark = pytest.mark.xdist_group("kubevirt")


def test_vm_moves_without_holdfast(vm_ns: Namespace) -> None:
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    first_node = vms.node_of(pod)
    with vms.avoided(vm_ns, first_node):
        vms.delete_run(vm_ns)
        assert vms.node_of(run_again(vm_ns, pod)) != first_node


def test_vm_running_before_holdfast_is_recorded_at_startup(
    vm_ns: Namespace, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    vm_ns.create(vms.vm())
    vm_ns.create(vms.vm("free", {"holdfast.dev/sticky": "false"}))
    pod = vms.landed(vm_ns)
    free_pod = vms.landed(vm_ns, "free")
    with TwoProcesses(kubevirt, tmp_path):
        vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(pod))
        assert record(vm_ns, "free") == ""

        vm_ns.kubectl("annotate", "vm", "free", "--overwrite", "holdfast.dev/sticky=true")
        vm_ns.eventually(lambda: record(vm_ns, "free") == vms.node_of(free_pod))


def test_record_uses_the_configured_annotation(
    vm_ns: Namespace, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    key = "example.com/sticky-node"
    config = (
        "profiles:\n- schedulerName: '*'\n  pluginConfig:\n"
        f"  - {{name: sticky, args: {{nodeAnnotation: {key}}}}}\n"
    )
    with TwoProcesses(kubevirt, tmp_path, config=config):
        vm_ns.create(vms.vm())
        pod = vms.landed(vm_ns)
        vm_ns.eventually(lambda: record(vm_ns, key=key) == vms.node_of(pod))
        assert record(vm_ns) == ""
        with vms.avoided(vm_ns, vms.node_of(pod)):
            vms.delete_run(vm_ns)
            assert vms.node_of(run_again(vm_ns, pod)) == vms.node_of(pod)
