"""Behaviour of KubeVirt's virt-controller and virt-api that sticky VMs depend on.

No Holdfast runs here.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.kubevirt import VIRT_CONTROLLER
from tests.e2e import vms
from tests.e2e.namespace import Namespace, Object
from tests.e2e.vms import FEDORA

pytestmark = pytest.mark.xdist_group("kubevirt")

FINALIZER = "tests.holdfast.dev/hold"


@contextmanager
def held(ns: Namespace, pod: Object) -> Iterator[None]:
    """Keep a deleted pod Terminating until the block ends."""
    name = str(pod["metadata"]["name"])
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    ns.kubectl("patch", "pod", name, "--type=merge", "-p", patch)
    yield
    ns.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_virt_api_sets_defaults_and_validates(kubevirt_ns: Namespace) -> None:
    kubevirt_ns.create(vms.vm(run_strategy="Halted"))
    spec = kubevirt_ns.get("vm", FEDORA)["spec"]["template"]["spec"]
    assert spec["domain"]["machine"] == {"type": "q35"}
    domain = {"devices": {"disks": [{"name": "none", "disk": {}}]}}
    assert "disks[0].Name 'none' not found" in kubevirt_ns.refusal(vms.vm("broken", domain=domain))


def test_terminating_launcher_pod_delays_the_next_one(kubevirt_ns: Namespace) -> None:
    kubevirt_ns.create(vms.vm())
    first_pod = vms.landed(kubevirt_ns)
    vmi_uid = vms.uid(kubevirt_ns.get("vmi", FEDORA))
    with held(kubevirt_ns, first_pod):
        vms.delete_run(kubevirt_ns)
        kubevirt_ns.eventually(
            lambda: kubevirt_ns.get("vmi", FEDORA)["status"]["phase"] == "Succeeded"
        )
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert [vms.uid(pod) for pod in vms.launchers(kubevirt_ns, FEDORA)] == [
                vms.uid(first_pod)
            ]
            assert vms.uid(kubevirt_ns.get("vmi", FEDORA)) == vmi_uid
    second_pod = vms.landed(kubevirt_ns, other_than=vms.uid(first_pod))
    assert vms.uid(second_pod) != vms.uid(first_pod)


def test_vm_restart_survives_a_virt_controller_crash(kubevirt_ns: Namespace) -> None:
    kubevirt_ns.create(vms.vm())
    first_pod = vms.landed(kubevirt_ns)
    process = kubevirt_ns.plane.process(VIRT_CONTROLLER)
    process.kill()
    try:
        vms.delete_run(kubevirt_ns)
    finally:
        process.restart()
    second_pod = vms.landed(kubevirt_ns, other_than=vms.uid(first_pod))
    assert vms.node_of(second_pod) in vms.NODES
