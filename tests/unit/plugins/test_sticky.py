"""The edits of the plugin to the pods of VMs."""

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.edits import Edit, PreferNodes
from holdfast.webhook.model.objects import Pod
from tests.support.builders import Document
from tests.support.fakes import apply_patch
from tests.support.matching import admits, make_node
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


@pytest.mark.parametrize(
    ("annotations", "args", "expected"),
    [
        pytest.param(None, {}, [FINALIZER], id="no node yet"),
        pytest.param({kubevirt.STICKY_NODE: ""}, {}, [FINALIZER], id="an empty record"),
        pytest.param(RECORD, {}, [FINALIZER, PIN], id="a node"),
        pytest.param(
            {kubevirt.STICKY_NODE: "node-1"}, {}, [FINALIZER, PIN], id="an admin's record"
        ),
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
        pytest.param({**RECORD, kubevirt.STICKY: "true"}, {}, [FINALIZER, PIN], id="opted in"),
        pytest.param(RECORD, {"select": "annotated"}, [], id="annotated only, not annotated"),
        pytest.param(RECORD, {"namespaces": ("default",)}, [FINALIZER, PIN], id="its namespace"),
        pytest.param(RECORD, {"namespaces": ("other",)}, [], id="another namespace"),
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


@pytest.mark.parametrize(
    ("pod", "phase", "expected"),
    [
        pytest.param(make_launcher(labels=MIGRATION), "Running", [FINALIZER], id="migration"),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "WaitingForSync",
            [FINALIZER],
            id="migration from another cluster",
        ),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "",
            [FINALIZER, PIN],
            id="label from the template, unset phase",
        ),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "Scheduling",
            [FINALIZER, PIN],
            id="label from the template, scheduling",
        ),
        pytest.param(
            make_launcher({kubevirt.EPHEMERAL_PROVISIONING: "true"}),
            "Pending",
            [PIN],
            id="ephemeral provisioning",
        ),
    ],
)
def test_mutate_migration_targets_and_provisioning_pods(
    pod: Document, phase: str, expected: list[Edit]
) -> None:
    assert edits(make_vm(RECORD), make_vmi(phase=phase, node="node-1"), pod) == expected


def test_node_is_required_in_every_node_selector_term() -> None:
    pod = make_launcher()
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "disk", "operator": "Exists"}]})

    patched = apply_patch(pod, patch(Pod.of(pod), edits(make_vm(RECORD), None, pod)))
    assert patched["metadata"]["finalizers"] == ["holdfast.dev/sticky"]
    assert admits(patched, make_node("node-1", {}))
    assert not admits(patched, make_node("node-2", {"disk": "fast"}))
    labels = {"node-labeller.kubevirt.io/obsolete-host-model": "x"}
    assert not admits(patched, make_node("node-1", labels))
    assert admits(patched, make_node("node-1", {**labels, "disk": "fast"}))


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="standalone"),
        pytest.param(
            [owner_of("VirtualMachineInstanceReplicaSet", "vm", VM_UID)], id="replica set"
        ),
        pytest.param(
            [owner_of(kubevirt.VM, "vm", VM_UID, controller=False)], id="not the controller"
        ),
        pytest.param([owner_of(kubevirt.VM, "other", VM_UID)], id="VM of another name"),
        pytest.param(
            [owner_of(kubevirt.VM, "vm", VM_UID, api_version="example.com/v1")],
            id="another API's VM",
        ),
    ],
)
def test_vmi_without_a_vm_is_skipped(owners: list[Document]) -> None:
    lookup = cluster(make_vm(RECORD), make_vmi(owners=owners))
    assert mutate(sticky(lookup)) == Result(Code.SKIP)
    assert lookup.asked == [VMI_PATH]
