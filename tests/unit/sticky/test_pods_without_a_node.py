"""Pods that record nothing."""

from collections.abc import Callable

import pytest

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import STICKY_NODE, STICKY_NODE_UID
from tests.support.fakes import KUBEVIRT, Document
from tests.support.vm_world import Driver, VmWorld, is_kept, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import remove_vmi, world_with_running_vm


def provision(pod: Document) -> None:
    pod["metadata"]["annotations"] = {kubevirt.EPHEMERAL_PROVISIONING: "true"}


def own_by_pod(pod: Document) -> None:
    pod["metadata"]["labels"]["kubevirt.io"] = "virt-launcher"
    owner = pod["metadata"]["ownerReferences"][0]
    owner.update(apiVersion="v1", kind="Pod")


def disown(pod: Document) -> None:
    del pod["metadata"]["ownerReferences"]


def foreign_group(pod: Document) -> None:
    pod["metadata"]["ownerReferences"][0]["apiVersion"] = "example.com/v1"


def wrong_uid(pod: Document) -> None:
    pod["metadata"]["ownerReferences"][0]["uid"] = "other"


@pytest.mark.parametrize(
    "change",
    [provision, own_by_pod, disown, foreign_group, wrong_uid],
    ids=lambda change: change.__name__,
)
def test_unrelated_pod_loses_finalizer_and_records_nothing(
    change: Callable[[Document], None],
) -> None:
    world = VmWorld()
    pod = world.start()
    world.bind(pod, "n1")
    world.api.change(pod_at(pod), change)
    Driver(world).work()

    assert world.annotations() == {}
    assert not is_kept(world.api.objects[pod_at(pod)])


def test_pod_without_finalizer_records_nothing() -> None:
    world = VmWorld()
    pod = world.start(finalizer=False)
    world.bind(pod, "n1")
    driver = Driver(world)
    driver.work()

    assert world.annotations() == {}
    assert driver.watch.count() == 0


def remove_vm(world: VmWorld) -> None:
    world.api.vanish(vm_at("vm"))


def recreate_vm(world: VmWorld) -> None:
    remove_vm(world)
    world.create("vm")


def orphan_vmi(world: VmWorld) -> None:
    world.api.change(vmi_at("vm"), lambda vmi: vmi["metadata"].pop("ownerReferences"))


def delete_vm(world: VmWorld) -> None:
    world.api.change(vm_at("vm"), lambda vm: vm["metadata"].update(finalizers=["kubevirt.io/x"]))
    world.api.delete(vm_at("vm"))


def uninstall(world: VmWorld) -> None:
    world.api.kinds = {path for path in world.api.kinds if not path.startswith(KUBEVIRT)}
    remove_vmi(world)
    remove_vm(world)


def uninstall_except_operator(world: VmWorld) -> None:
    uninstall(world)
    world.api.kinds.add(f"{KUBEVIRT}/kubevirts")


@pytest.mark.parametrize(
    "change",
    [
        remove_vmi,
        remove_vm,
        recreate_vm,
        orphan_vmi,
        delete_vm,
        uninstall,
        uninstall_except_operator,
    ],
    ids=lambda change: change.__name__,
)
def test_pod_of_missing_vm_loses_finalizer(change: Callable[[VmWorld], None]) -> None:
    world, pod = world_with_running_vm()
    change(world)
    Driver(world).work()

    assert not is_kept(world.api.objects[pod_at(pod)])
    assert all(
        not vm["metadata"].get("annotations") for vm in world.api.all(f"{KUBEVIRT}/virtualmachines")
    )


def test_recreated_vm_that_adopts_running_vmi_is_recorded() -> None:
    world, _ = world_with_running_vm()
    recreate_vm(world)
    driver = Driver(world)
    driver.work()
    assert world.annotations() == {}

    uid = world.vm()["metadata"]["uid"]
    world.api.change(
        vmi_at("vm"), lambda vmi: vmi["metadata"]["ownerReferences"][0].update(uid=uid)
    )
    driver.work()
    assert dict(world.annotations()) == {STICKY_NODE: "n1", STICKY_NODE_UID: uid}
