"""Records follow migrations."""

import pytest

from tests.e2e import vms
from tests.e2e.namespace import Namespace
from tests.e2e.sticky.records import command, kept, landed_and_recorded, notes, record, run_again
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA, cordoned

pytestmark = pytest.mark.xdist_group("kubevirt")


def test_record_follows_a_migration(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    landed_and_recorded(vm_ns)
    source, target = vms.migrate(vm_ns)
    vms.delete_run(vm_ns)
    with vms.avoided(vm_ns, vms.node_of(target)):
        pod = run_again(vm_ns, target)

    assert vms.node_of(source) != vms.node_of(target)
    assert vms.node_of(pod) == record(vm_ns) == vms.node_of(target)
    vm_ns.eventually(lambda: kept(vm_ns) == [])


@pytest.mark.parametrize("first", ["recorded", "not recorded"])
def test_migration_without_a_controller_is_recorded(
    vm_ns: Namespace, holdfast: TwoProcesses, first: str
) -> None:
    if first == "not recorded":
        holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    if first == "recorded":
        landed_and_recorded(vm_ns)
        vm_ns.eventually(lambda: kept(vm_ns) == [])
        holdfast.controller.kill()
    _, target = vms.migrate(vm_ns)
    vms.delete_run(vm_ns)
    assert target["metadata"]["name"] in kept(vm_ns)
    assert record(vm_ns) == (vms.node_of(pod) if first == "recorded" else "")

    with vms.avoided(vm_ns, vms.node_of(target)):
        holdfast.controller.start()
        assert vms.node_of(run_again(vm_ns, target)) == vms.node_of(target)
    assert record(vm_ns) == vms.node_of(target)


def remove_finalizers(ns: Namespace) -> None:
    for name in kept(ns):
        ns.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def set_sticky(ns: Namespace, value: str) -> None:
    ns.kubectl("annotate", "vm", FEDORA, "--overwrite", f"holdfast.dev/sticky={value}")


def test_migration_without_finalizers_is_recorded(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    landed_and_recorded(vm_ns)
    holdfast.controller.kill()
    _, target = vms.migrate(vm_ns)
    remove_finalizers(vm_ns)
    holdfast.controller.start()
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target))

    vms.delete_run(vm_ns)
    with vms.avoided(vm_ns, vms.node_of(target)):
        assert vms.node_of(run_again(vm_ns, target)) == vms.node_of(target)
    assert notes(vm_ns, "VirtualMachine", "StickyNodeDiffers") == []


def test_user_can_set_the_record_back_after_a_migration(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    source = landed_and_recorded(vm_ns)
    _, target = vms.migrate(vm_ns)
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target) and not kept(vm_ns))
    command(vm_ns, "sticky", "set", FEDORA, vms.node_of(source))
    holdfast.controller.kill()
    holdfast.controller.start()
    set_sticky(vm_ns, "true")
    vms.delete_run(vm_ns)
    pod = run_again(vm_ns, target)
    assert vms.node_of(pod) == record(vm_ns) == vms.node_of(source)
    assert notes(vm_ns, "VirtualMachine", "StickyNodeDiffers") == []


def test_vm_running_on_an_unrecorded_node_is_reported(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first_node = vms.node_of(pod)
    set_sticky(vm_ns, "false")
    with vms.avoided(vm_ns, first_node):
        vms.delete_run(vm_ns)
        pod = run_again(vm_ns, pod)
    second_node = vms.node_of(pod)
    assert second_node != first_node
    set_sticky(vm_ns, "true")
    vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeDiffers"))
    (note,) = notes(vm_ns, "VirtualMachine", "StickyNodeDiffers")
    assert note.startswith(
        f"the VM runs on {second_node}, but starts on {first_node} the next time"
    )
    assert record(vm_ns) == first_node
    assert f"{second_node} (differs)" in command(vm_ns, "sticky", "list")

    _, target = vms.migrate(vm_ns)
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target))
    assert "(differs)" not in command(vm_ns, "sticky", "list")


def test_cancelled_migration_does_not_change_the_record(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    with cordoned(vm_ns, *(node for node in vms.NODES if node != vms.node_of(pod))):
        migration = vm_ns.create(vms.migration("nowhere", FEDORA))
        vm_ns.eventually(lambda: len(vms.launchers(vm_ns, FEDORA)) == 2)
        vm_ns.kubectl("delete", "vmim", "nowhere", "--wait=false")
        vm_ns.eventually(lambda: vm_ns.find("vmim", "nowhere") is None)
    vm_ns.eventually(lambda: kept(vm_ns) == [])

    assert migration["metadata"]["name"] == "nowhere"
    assert record(vm_ns) == vms.node_of(pod)
    assert vms.uid(vms.landed(vm_ns)) == vms.uid(pod)
