"""Pods that record nothing."""

from collections.abc import Callable

import pytest

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import STICKY_NODE, STICKY_NODE_UID
from tests.support.fakes import KUBEVIRT, Document
from tests.support.vm_world import Driver, VmWorld, is_kept, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import remove_vmi, start_vm, world_with_running_vm


def owner(pod: Document) -> Document:
    reference: Document = pod["metadata"]["ownerReferences"][0]
    return reference


PROVISIONING = {kubevirt.EPHEMERAL_PROVISIONING: "true"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pod: pod["metadata"].update(annotations=PROVISIONING), id="provisions"),
        pytest.param(lambda pod: owner(pod).update(apiVersion="v1", kind="Pod"), id="owned by pod"),
        pytest.param(lambda pod: pod["metadata"].pop("ownerReferences"), id="no owner"),
        pytest.param(lambda pod: owner(pod).update(apiVersion="example.com/v1"), id="other group"),
        pytest.param(lambda pod: owner(pod).update(uid="other"), id="other UID"),
    ],
)
def test_unrelated_pod_loses_finalizer_and_records_nothing(
    change: Callable[[Document], None],
) -> None:
    world = VmWorld()
    pod = start_vm(world, ready=False)
    world.api.change(pod_at(pod), change)
    Driver(world).work()

    assert world.annotations() == {}
    assert not is_kept(world.api.objects[pod_at(pod)])


def recreate_vm(world: VmWorld) -> None:
    world.api.vanish(vm_at("vm"))
    world.create("vm")


def delete_vm(world: VmWorld) -> None:
    world.api.change(vm_at("vm"), lambda vm: vm["metadata"].update(finalizers=["kubevirt.io/x"]))
    world.api.delete(vm_at("vm"))


def uninstall(world: VmWorld, *remaining: str) -> None:
    kinds = {path for path in world.api.kinds if not path.startswith(KUBEVIRT)}
    world.api.kinds = kinds.union(remaining)
    remove_vmi(world)
    world.api.vanish(vm_at("vm"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(remove_vmi, id="no VMI"),
        pytest.param(lambda world: world.api.vanish(vm_at("vm")), id="no VM"),
        pytest.param(recreate_vm, id="recreated VM"),
        pytest.param(
            lambda world: world.vmi()["metadata"].pop("ownerReferences"), id="VMI without a VM"
        ),
        pytest.param(delete_vm, id="deleted VM"),
        pytest.param(uninstall, id="no KubeVirt"),
        pytest.param(lambda world: uninstall(world, f"{KUBEVIRT}/kubevirts"), id="only operator"),
    ],
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
