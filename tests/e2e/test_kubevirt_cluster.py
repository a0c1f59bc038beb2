"""KubeVirt's own virt-controller and virt-api in the test cluster: what sticky VMs are built upon.

No Holdfast runs here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane import ControlPlane
from controlplane.kubevirt import VIRT_CONTROLLER, install
from tests.e2e import vms
from tests.e2e.vms import FEDORA
from tests.e2e.world import Object, World

pytestmark = pytest.mark.xdist_group("kubevirt")

ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
FINALIZER = "tests.holdfast.dev/hold"


@contextmanager
def held(world: World, pod: Object) -> Iterator[None]:
    """Keep a pod, once it is deleted, Terminating for as long as this lasts."""
    name = str(pod["metadata"]["name"])
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    world.kubectl("patch", "pod", name, "--type=merge", "-p", patch)
    yield
    world.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_a_vm_runs(vm_world: World) -> None:
    vm_world.create(vms.vm())
    pod = vms.landed(vm_world)
    assert pod["metadata"]["name"].startswith(f"virt-launcher-{FEDORA}-")
    assert vms.node_of(pod) in vms.NODES
    vm_world.eventually(lambda: vm_world.get("vm", FEDORA)["status"].get("ready") is True)
    assert vm_world.get("vm", FEDORA)["status"]["printableStatus"] == "Running"
    assert vm_world.get("vmi", FEDORA)["status"]["nodeName"] == vms.node_of(pod)


def test_a_pod_leads_to_its_vm_by_controllers_and_uids(vm_world: World) -> None:
    vm_world.create(vms.vm())
    pod = vms.landed(vm_world)
    vmi, vm = vm_world.get("vmi", FEDORA), vm_world.get("vm", FEDORA)
    assert (vms.owner(pod)["kind"], vms.owner(pod)["uid"]) == (vmi["kind"], vms.uid(vmi))
    assert (vms.owner(vmi)["kind"], vms.owner(vmi)["uid"]) == (vm["kind"], vms.uid(vm))


def test_virt_controller_creates_pods_by_its_own_account(vm_world: World) -> None:
    vm_world.create(vms.vm())
    vms.landed(vm_world)
    creators = {
        event["user"]["username"]
        for event in vm_world.audit()
        if event["verb"] == "create" and event["objectRef"]["resource"] == "pods"
        if "subresource" not in event["objectRef"]
    }
    assert creators == {ACCOUNT}


def test_virt_api_fills_in_and_refuses(vm_world: World) -> None:
    vm_world.create(vms.vm(run_strategy="Halted"))
    spec = vm_world.get("vm", FEDORA)["spec"]["template"]["spec"]
    assert spec["domain"]["machine"] == {"type": "q35"}
    disk = {"devices": {"disks": [{"name": "none", "disk": {}}]}}
    assert "disks[0].Name 'none' not found" in vm_world.refusal(vms.vm("broken", domain=disk))


def test_a_vm_starts_stops_and_starts(vm_world: World) -> None:
    vm_world.create(vms.vm(run_strategy="Halted"))
    first = vms.start(vm_world)
    vms.stop(vm_world)
    second = vms.start(vm_world)
    assert vms.uid(first) != vms.uid(second)


def test_a_deleted_run_is_replaced(vm_world: World) -> None:
    vm_world.create(vms.vm())
    first = vms.landed(vm_world)
    former = vm_world.get("vmi", FEDORA)
    vms.delete_run(vm_world)
    vms.landed(vm_world, other_than=vms.uid(first))
    assert vms.uid(vm_world.get("vmi", FEDORA)) != vms.uid(former)


def test_without_holdfast_a_vm_moves_when_the_scheduler_prefers_another_node(
    vm_world: World,
) -> None:
    vm_world.create(vms.vm())
    first = vms.landed(vm_world)
    with vms.avoided(vm_world, vms.node_of(first)):
        vms.delete_run(vm_world)
        second = vms.landed(vm_world, other_than=vms.uid(first))
    assert vms.node_of(second) != vms.node_of(first)


def test_a_pod_that_stays_terminating_holds_the_next_one_back(vm_world: World) -> None:
    vm_world.create(vms.vm())
    first = vms.landed(vm_world)
    former = vms.uid(vm_world.get("vmi", FEDORA))
    with held(vm_world, first):
        vms.delete_run(vm_world)
        vm_world.eventually(lambda: vm_world.get("vmi", FEDORA)["status"]["phase"] == "Succeeded")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert [vms.uid(pod) for pod in vms.launchers(vm_world, FEDORA)] == [vms.uid(first)]
            assert vms.uid(vm_world.get("vmi", FEDORA)) == former
    second = vms.landed(vm_world, other_than=vms.uid(first))
    assert vms.uid(second) != vms.uid(first)


def test_a_restart_after_a_kill_of_virt_controller_carries_on(vm_world: World) -> None:
    vm_world.create(vms.vm())
    first = vms.landed(vm_world)
    process = vm_world.plane.process(VIRT_CONTROLLER)
    process.kill()
    try:
        vms.delete_run(vm_world)
    finally:
        process.restart()
    second = vms.landed(vm_world, other_than=vms.uid(first))
    assert vms.node_of(second) in vms.NODES


def test_a_live_migration_moves_a_vm(vm_world: World) -> None:
    vm_world.create(vms.vm())
    source, target = vms.migrate(vm_world)
    assert vms.node_of(target) != vms.node_of(source)
    assert vms.owner(target) == vms.owner(source)
    assert vm_world.get("vmi", FEDORA)["status"]["nodeName"] == vms.node_of(target)
    assert vms.uid(vms.landed(vm_world)) == vms.uid(target)


@pytest.mark.parametrize(
    ("manifest", "name", "owners"),
    [
        pytest.param(vms.vmi("alone"), "alone", [], id="standalone VMI"),
        pytest.param(
            vms.replica_set("set", 1), "", ["VirtualMachineInstanceReplicaSet"], id="replica set"
        ),
        pytest.param(
            vms.pool("pool", 1), "pool-0", ["VirtualMachine", "VirtualMachinePool"], id="pool"
        ),
    ],
)
def test_whose_a_vmi_is(vm_world: World, manifest: Object, name: str, owners: list[str]) -> None:
    vm_world.create(manifest)
    listed = vm_world.eventually(lambda: vm_world.all("vmi"))
    found = str(listed[0]["metadata"]["name"])
    assert found == name or found.startswith("set")
    vms.landed(vm_world, found)
    chain: list[str] = []
    seen = listed[0]
    while above := vms.owner(seen):
        chain.append(str(above["kind"]))
        seen = vm_world.get(str(above["kind"]), str(above["name"]))
    assert chain == owners


def test_a_cluster_that_is_kept_gets_its_kubevirt_again(tmp_path: Path) -> None:
    with ControlPlane(directory=tmp_path) as plane:
        install(plane)
        world = World.in_new_namespace(plane, "kept")
        world.create(vms.vm())
        vms.landed(world)
    with ControlPlane(directory=tmp_path) as plane:
        install(plane)
        world = World(plane, "kept")
        vms.stop(world)
        vms.start(world)
