"""Missing owners, invalid records and failed lookups."""

from typing import Any

import pytest

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model import kubevirt
from tests.support.builders import Document
from tests.support.fakes import FakeLookup, status_error, unreachable
from tests.support.vm_builders import VM_UID, VMI_UID, make_launcher, make_vm, make_vmi, owner_of
from tests.unit.plugins.sticky_vms import RECORD, VMI_PATH, cluster, mutate, sticky, validate

GONE = (
    '%s default/"vm" with UID "%s" no longer exists, so the pod\'s node is unknown: KubeVirt '
    "creates another pod if one is needed"
)


@pytest.mark.parametrize(
    ("vm", "vmi", "expected"),
    [
        pytest.param(make_vm(), {}, GONE % (kubevirt.VMI, VMI_UID), id="VMI gone"),
        pytest.param(make_vm(), make_vmi(uid="new"), GONE % (kubevirt.VMI, VMI_UID), id="new VMI"),
        pytest.param(None, make_vmi(), GONE % (kubevirt.VM, VM_UID), id="VM gone"),
        pytest.param(make_vm(uid="new"), make_vmi(), GONE % (kubevirt.VM, VM_UID), id="new VM"),
    ],
)
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_missing_or_recreated_owner_is_rejected(
    point: Any, vm: Document | None, vmi: Document, expected: str
) -> None:
    lookup = cluster(vm, vmi)
    if not vmi:
        del lookup.objects[VMI_PATH]
    assert point(sticky(lookup), make_launcher()) == Result(Code.REJECT, (), expected)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "A", "x" * 254])
def test_invalid_owner_name_is_rejected_without_a_lookup(name: str) -> None:
    lookup = cluster(make_vm(RECORD))
    result = mutate(sticky(lookup), make_launcher(owners=[owner_of(kubevirt.VMI, name, VMI_UID)]))

    assert result.code is Code.REJECT
    assert lookup.asked == []


@pytest.mark.parametrize(
    "node",
    ["node 1", "Node-1", "a/b", "-", "node-1\n", "x" * 254, "node-1,node-2", "\u2019; DROP", "."],
)
def test_invalid_node_name_in_a_record_is_rejected(node: str) -> None:
    result = mutate(sticky(cluster(make_vm({kubevirt.STICKY_NODE: node}))))

    assert result.code is Code.REJECT
    assert result.reason.startswith(
        'VirtualMachine default/vm: annotation holdfast.dev/sticky-node: invalid value "'
    )
    assert result.reason.endswith(
        ": use a node name, or remove the annotation to let the VM start anywhere"
    )
    assert result.reason.isprintable()


@pytest.mark.parametrize(
    "error", [unreachable(), status_error(403), status_error(404), status_error(503)], ids=str
)
@pytest.mark.parametrize("before", [0, 1], ids=["the VMI", "the VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_failed_lookup_raises(point: Any, before: int, error: ClusterError) -> None:
    class FailsAt(FakeLookup):
        def get(self, path: str, *, max_age: float = 0.0) -> Document | None:  # noqa: ARG002
            if len(self.asked) == before:
                raise error
            return super().get(path)

    lookup = FailsAt(cluster(make_vm(RECORD)).objects)
    with pytest.raises(type(error)) as caught:
        point(sticky(lookup), make_launcher())
    assert caught.value is error


def test_malformed_object_raises() -> None:
    lookup = cluster({"metadata": {"uid": 7}})
    with pytest.raises(ValueError, match=r"Expected `str`, got `int` - at `\$.metadata.uid`"):
        mutate(sticky(lookup))
