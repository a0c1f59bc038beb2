"""Records of the VMs of a pool."""

import json

import pytest

from tests.e2e import vms
from tests.e2e.namespace import Namespace, listens
from tests.e2e.sticky.records import (
    ORPHANED_SECONDS,
    annotated,
    kept,
    landed_and_recorded,
    notes,
    record,
)
from tests.e2e.two_processes import TwoProcesses

pytestmark = pytest.mark.xdist_group("kubevirt")

POOL = [f"pool-{number}" for number in range(3)]


def change_pool(ns: Namespace, **template: object) -> None:
    patch = json.dumps({"spec": {"virtualMachineTemplate": template}})
    ns.kubectl("patch", "virtualmachinepool", "pool", "--type=merge", "-p", patch)


def start_pool(ns: Namespace) -> dict[str, str]:
    """Start a pool of VMs, wait until all are recorded, and return their nodes."""
    ns.create(vms.pool("pool", len(POOL)))
    nodes = {name: vms.node_of(landed_and_recorded(ns, name)) for name in POOL}
    ns.eventually(lambda: kept(ns) == [])
    return nodes


def has_team(ns: Namespace) -> bool:
    return all("team" in annotated(ns, name) for name in POOL)


def test_pool_template_change_does_not_move_vms(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    """Without a controller, only the webhook can restore the records."""
    nodes = start_pool(vm_ns)
    holdfast.controller.kill()
    change_pool(vm_ns, metadata={"annotations": {"team": "a"}})
    vm_ns.eventually(lambda: has_team(vm_ns))
    assert {name: record(vm_ns, name) for name in POOL} == nodes

    for strategy in ("Halted", "Always"):
        change_pool(vm_ns, spec={"runStrategy": strategy})
        if strategy == "Halted":
            vm_ns.eventually(lambda: all(vms.is_gone(vm_ns, name) for name in POOL))
    assert {name: vms.node_of(vms.landed(vm_ns, name)) for name in POOL} == nodes
    holdfast.controller.start()
    source, target = vms.migrate(vm_ns, POOL[0])
    assert vms.node_of(source) == nodes[POOL[0]]
    vm_ns.eventually(lambda: record(vm_ns, POOL[0]) == vms.node_of(target))


def test_pool_template_change_waits_for_the_webhook(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    nodes = start_pool(vm_ns)
    holdfast.server.kill()
    vm_ns.eventually(lambda: not listens(holdfast.address))  # its worker outlives it for a moment
    change_pool(vm_ns, metadata={"annotations": {"team": "a"}})
    vm_ns.eventually(
        lambda: [
            note for note in notes(vm_ns, "VirtualMachinePool", "FailedUpdate") if "vms.h" in note
        ]
    )
    assert not has_team(vm_ns)
    assert {name: record(vm_ns, name) for name in POOL} == nodes
    holdfast.start("server")
    vm_ns.eventually(lambda: has_team(vm_ns), ORPHANED_SECONDS)
    assert {name: record(vm_ns, name) for name in POOL} == nodes
