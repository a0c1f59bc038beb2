"""The changes of VMs that the controller may make."""

from collections.abc import Mapping, Sequence

import pytest

from tests.e2e.guard.changes import MACHINE_MAY_NOT, annotation, remove, write
from tests.e2e.guard.cluster import CONTROLLER, Guarded
from tests.e2e.guard.objects import RECORD, stored
from tests.e2e.kubectl_user import Operation, refusal
from tests.e2e.namespace import Namespace, Object

pytestmark = pytest.mark.xdist_group("guard")

MACHINE_MAY: Mapping[str, tuple[Object, Sequence[Operation]]] = {
    "missing architecture filled in": ({}, [write("/spec/template/spec/architecture", "amd64")]),
    "missing machine filled in": (
        {},
        [write("/spec/template/spec/domain/machine", {"type": "q35"})],
    ),
    "empty machine filled in": (
        {"domain": {"devices": {}, "machine": {"type": ""}}},
        [write("/spec/template/spec/domain/machine/type", "q35")],
    ),
    "empty timestamps dropped": (
        {},
        [
            remove("/spec/template/metadata/creationTimestamp"),
            remove("/spec/dataVolumeTemplates/0/metadata/creationTimestamp"),
        ],
    ),
    "empty metadata dropped": ({}, [remove("/spec/template/metadata")]),
}
"""The spec of a VM of an older KubeVirt, and what KubeVirt's webhook changes when it is written."""
MACHINE_FILLED_MAY_NOT: Mapping[str, Sequence[Operation]] = {
    "another architecture": [write("/spec/template/spec/architecture", "arm64")],
    "no architecture": [remove("/spec/template/spec/architecture")],
    "another machine": [write("/spec/template/spec/domain/machine/type", "pc")],
    "no machine": [remove("/spec/template/spec/domain/machine")],
    "devices": [write("/spec/template/spec/domain/devices/rng", {})],
    "CPUs": [write("/spec/template/spec/domain/cpu", {"cores": 64})],
    "a node": [write("/spec/template/spec/nodeSelector", {"disk": "fast"})],
    "a grace period": [write("/spec/template/spec/terminationGracePeriodSeconds", 7)],
    "a label": [write("/spec/template/metadata/labels", {"a": "b"})],
    "another volume": [write("/spec/dataVolumeTemplates/0/spec/pvc/volumeName", "b")],
    "a renamed volume": [write("/spec/dataVolumeTemplates/0/metadata/name", "b")],
    "an additional volume": [
        write("/spec/dataVolumeTemplates/-", {"metadata": {"name": "b"}, "spec": {}})
    ],
    "no volumes": [remove("/spec/dataVolumeTemplates")],
    "another run strategy": [write("/spec/runStrategy", "Always")],
    "an instance type": [write("/spec/instancetype", {"name": "huge"})],
}


@pytest.mark.parametrize(("change", "what"), MACHINE_MAY_NOT.values(), ids=MACHINE_MAY_NOT)
def test_controller_cannot_change_other_fields_of_a_vm(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.controller(shared).patch, "vm", change, kind="vm")
    assert (
        f"'holdfast-controller-vms' denied request: {CONTROLLER} may not change {what}" in message
    )


@pytest.mark.parametrize(("spec", "filled"), MACHINE_MAY.values(), ids=MACHINE_MAY)
def test_record_is_written_when_kubevirt_adds_defaults(
    guarded: Guarded, ns: Namespace, spec: Object, filled: Sequence[Operation]
) -> None:
    ns.create(stored("old", **spec))  # apply would drop the nulls
    record = [annotation(RECORD, "node-1"), *filled]
    assert "patched" in guarded.controller(ns).patch("old", record, kind="vm", dry_run=False)


@pytest.mark.parametrize("change", MACHINE_FILLED_MAY_NOT.values(), ids=MACHINE_FILLED_MAY_NOT)
def test_controller_cannot_change_existing_vm_spec_fields(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation]
) -> None:
    message = refusal(guarded.controller(shared).patch, "filled", change, kind="vm")
    assert f"'holdfast-controller-vms' denied request: {CONTROLLER} may not change spec" in message


def test_controller_cannot_replace_a_volume_template_by_another(
    guarded: Guarded, ns: Namespace
) -> None:
    templates = [{"metadata": {"name": name}, "spec": {"pvc": {}}} for name in "ab"]
    vm = stored("two")
    vm["spec"]["dataVolumeTemplates"] = templates
    ns.create(vm)
    replaced = [write("/spec/dataVolumeTemplates/1", templates[0])]
    message = refusal(guarded.controller(ns).patch, "two", replaced, kind="vm")
    assert f"{CONTROLLER} may not change spec" in message


def test_controller_records_and_clears_a_vms_node(guarded: Guarded, shared: Namespace) -> None:
    controller = guarded.controller(shared)
    record = [
        annotation("holdfast.dev/sticky-node", "node-1"),
        annotation("holdfast.dev/sticky-node-uid", "1234"),
    ]
    assert "patched" in controller.patch("vm", record, kind="vm", dry_run=False)
    assert "patched" in controller.patch("vm", [annotation(RECORD, "node-2")], kind="vm")
    assert "patched" in controller.patch("vm", [annotation(RECORD, None)], kind="vm")


def test_controller_cannot_change_vm_status(guarded: Guarded, shared: Namespace) -> None:
    change = [write("/status", {"ready": True})]
    call = guarded.controller(shared).patch
    message = refusal(call, "vm", change, "--subresource=status", kind="vm")
    assert f"{CONTROLLER} may not change a subresource of a VirtualMachine" in message
