"""The edits of the plugin to the pods of VMs."""

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.edits import Edit, PreferNodes
from tests.support.builders import Document
from tests.support.vm_builders import VM_UID, make_launcher, make_vm, make_vmi, owner_of
from tests.unit.plugins.sticky_vms import (
    FINALIZER,
    LEGACY,
    MIGRATION,
    ON_NODE_1,
    PIN,
    RECORD,
    VM_PATH,
    VMI_PATH,
    cluster,
    edits,
    mutate,
    sticky,
)

OPTED_IN = {**RECORD, kubevirt.STICKY: "true"}


@pytest.mark.parametrize(
    ("annotations", "args", "expected"),
    [
        pytest.param(None, {}, [FINALIZER], id="no node yet"),
        pytest.param(RECORD, {}, [FINALIZER, PIN], id="a node"),
        pytest.param({kubevirt.STICKY_NODE: "node-1"}, {}, [FINALIZER, PIN], id="an admin's"),
        pytest.param(
            {**RECORD, kubevirt.STICKY_NODE_UID: "another"}, {}, [FINALIZER], id="a clone's record"
        ),
        pytest.param(
            RECORD,
            {"affinity": "preferred"},
            [FINALIZER, PreferNodes(100, (ON_NODE_1,))],
            id="preferred",
        ),
        pytest.param(
            {LEGACY: "node-1"}, {"node_annotation": LEGACY}, [FINALIZER, PIN], id="legacy"
        ),
        pytest.param(RECORD, {"node_annotation": LEGACY}, [FINALIZER], id="another key's record"),
        pytest.param({**RECORD, kubevirt.STICKY: "false"}, {}, [], id="opted out"),
        pytest.param(OPTED_IN, {"select": "annotated"}, [FINALIZER, PIN], id="annotated"),
        pytest.param(RECORD, {"select": "annotated"}, [], id="annotated only, not annotated"),
        pytest.param(RECORD, {"namespaces": ("default",)}, [FINALIZER, PIN], id="its namespace"),
    ],
)
def test_mutate(
    annotations: Mapping[str, str] | None, args: dict[str, Any], expected: list[Edit]
) -> None:
    assert edits(make_vm(annotations), **args) == expected


def test_vm_and_vmi_are_read_for_each_review() -> None:
    lookup = cluster(make_vm())
    plugin = sticky(lookup)
    assert list(mutate(plugin).edits) == [FINALIZER]

    lookup.objects[VM_PATH] = make_vm(RECORD)
    assert list(mutate(plugin).edits) == [FINALIZER, PIN]
    assert lookup.asked == [VMI_PATH, VM_PATH] * 2


def test_pod_in_another_namespace_is_skipped_without_a_lookup() -> None:
    lookup = cluster(make_vm(RECORD))
    assert mutate(sticky(lookup, namespaces=("other",))) == Result(Code.SKIP)
    assert lookup.asked == []


TARGET = make_launcher(labels=MIGRATION)
PROVISIONING = make_launcher({kubevirt.EPHEMERAL_PROVISIONING: "true"})


@pytest.mark.parametrize(
    ("pod", "phase", "expected"),
    [
        pytest.param(TARGET, "Running", [FINALIZER], id="migration"),
        pytest.param(TARGET, "WaitingForSync", [FINALIZER], id="migration from another cluster"),
        pytest.param(TARGET, "", [FINALIZER, PIN], id="label from the template, unset phase"),
        pytest.param(TARGET, "Scheduling", [FINALIZER, PIN], id="label from the template"),
        pytest.param(PROVISIONING, "Pending", [PIN], id="ephemeral provisioning"),
    ],
)
def test_mutate_migration_targets_and_provisioning_pods(
    pod: Document, phase: str, expected: list[Edit]
) -> None:
    assert edits(make_vm(RECORD), make_vmi(phase=phase, node="node-1"), pod) == expected


VM_OWNER = owner_of(kubevirt.VM, "vm", VM_UID)


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="standalone"),
        pytest.param([VM_OWNER | {"kind": "VirtualMachineInstanceReplicaSet"}], id="replica set"),
        pytest.param([VM_OWNER | {"controller": False}], id="not the controller"),
        pytest.param([VM_OWNER | {"name": "other"}], id="VM of another name"),
        pytest.param([VM_OWNER | {"apiVersion": "example.com/v1"}], id="another API's VM"),
    ],
)
def test_vmi_without_a_vm_is_skipped(owners: list[Document]) -> None:
    lookup = cluster(make_vm(RECORD), make_vmi(owners=owners))
    assert mutate(sticky(lookup)) == Result(Code.SKIP)
    assert lookup.asked == [VMI_PATH]
