"""Validation of VMs, and records that an update erases."""

from collections.abc import Mapping

import pytest

from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.plugins.virt_controller import AUTO
from tests.support.builders import make_pipeline, read_review
from tests.support.fakes import FakeLookup, apply_patch
from tests.support.vm_builders import VM_UID, make_vm
from tests.unit.plugins.sticky_vms import LEGACY, RECORD, sticky, sticky_pipeline

KIND = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
INVALID_VALUE = 'annotation holdfast.dev/sticky: invalid value "%s": use "true" or "false"'


def invalid_node(value: str, key: str = kubevirt.STICKY_NODE) -> str:
    return (
        f'annotation {key}: invalid value "{value}": use a node name, or remove the annotation to '
        "let the VM start anywhere"
    )


def update(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> PodReview:
    return read_review(make_vm(after), kind=KIND, operation="UPDATE", old=make_vm(before))


@pytest.mark.parametrize(
    ("annotations", "args", "expected"),
    [
        pytest.param(None, "{}", [], id="none"),
        pytest.param({kubevirt.STICKY: "true", **RECORD}, "{}", [], id="valid"),
        pytest.param({kubevirt.STICKY: "True"}, "{}", [INVALID_VALUE % "True"], id="True"),
        pytest.param({kubevirt.STICKY_NODE: "Node 1"}, "{}", [invalid_node("Node 1")], id="node"),
        pytest.param(
            {kubevirt.STICKY: "no", kubevirt.STICKY_NODE: "_"},
            "{}",
            [INVALID_VALUE % "no", invalid_node("_")],
            id="both",
        ),
        pytest.param(
            {LEGACY: "_"},
            f"{{nodeAnnotation: {LEGACY}}}",
            [invalid_node("_", LEGACY)],
            id="legacy",
        ),
        pytest.param({LEGACY: "_"}, "{}", [], id="another key"),
    ],
)
def test_vm_annotations_are_validated(
    annotations: Mapping[str, str] | None, args: str, expected: list[str]
) -> None:
    review = read_review(make_vm(annotations), kind=KIND)
    verdict = sticky_pipeline(FakeLookup(), args).validate(review, now_ms=0)
    assert list(verdict.reasons) == (["metadata: " + "; ".join(expected)] if expected else [])
    assert (verdict.code is Code.REJECT) == bool(expected)


def test_update_validates_only_changed_annotations() -> None:
    """Otherwise the controller could not record a node on a VM with an invalid annotation."""
    old = {kubevirt.STICKY: "maybe"}
    review, worse_review = update(old, {**old, **RECORD}), update(old, {kubevirt.STICKY: "no"})
    assert sticky_pipeline(FakeLookup()).validate(review, now_ms=0).code is Code.SUCCESS
    reasons = sticky_pipeline(FakeLookup()).validate(worse_review, now_ms=0).reasons
    assert reasons == [f"metadata: {INVALID_VALUE % 'no'}"]


COPIED = {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: "another"}
IGNORED = (
    'metadata: annotation holdfast.dev/sticky-node: "%s" would be ignored: '
    "holdfast.dev/sticky-node-uid is another VM's, copied by a clone: remove it in the same change"
)


@pytest.mark.parametrize(
    ("before", "after", "effective"),
    [
        pytest.param(COPIED, {**COPIED, kubevirt.STICKY_NODE: "node-2"}, False, id="a clone's"),
        pytest.param({kubevirt.STICKY_NODE_UID: "another"}, COPIED, False, id="a cleared clone's"),
        pytest.param(COPIED, {kubevirt.STICKY_NODE: "node-2"}, True, id="without the UID"),
        pytest.param(COPIED, RECORD, True, id="recorded"),
        pytest.param(RECORD, COPIED, True, id="restored from a copy"),
        pytest.param(COPIED, {kubevirt.STICKY_NODE_UID: "another"}, True, id="removed"),
        pytest.param(COPIED, {**COPIED, kubevirt.STICKY: "true"}, True, id="unchanged"),
        pytest.param(RECORD, {**RECORD, kubevirt.STICKY_NODE: "node-2"}, True, id="a VM's own"),
    ],
)
def test_node_that_would_be_ignored_on_a_clone_is_rejected(
    before: dict[str, str], after: dict[str, str], effective: bool
) -> None:
    verdict = sticky_pipeline(FakeLookup()).validate(update(before, after), now_ms=0)
    expected = [] if effective else [IGNORED % after[kubevirt.STICKY_NODE]]
    assert list(verdict.reasons) == expected
    creation = read_review(make_vm(after), kind=KIND)
    assert sticky_pipeline(FakeLookup()).validate(creation, now_ms=0).code is Code.SUCCESS


def test_errors_in_template_and_vm_are_reported_together() -> None:
    vm = make_vm({kubevirt.STICKY: "maybe"})
    vm["spec"]["template"]["metadata"] = {"annotations": {"delay": "soon"}}
    verdict = make_pipeline().validate(read_review(vm, kind=KIND), now_ms=0)
    template_reason, vm_reason = verdict.reasons
    assert template_reason.startswith(
        'spec.template.metadata: annotation delay: invalid value "soon"'
    )
    assert vm_reason == f"metadata: {INVALID_VALUE % 'maybe'}"


def test_match_conditions_cover_annotations_of_vms() -> None:
    profiles = sticky_pipeline(FakeLookup()).profiles
    assert conditions.create_condition(profiles, "object.spec.template") == (
        "(request.kind.kind == 'VirtualMachine' && has(object.metadata.annotations) && "
        "('holdfast.dev/sticky' in object.metadata.annotations || "
        "'holdfast.dev/sticky-node' in object.metadata.annotations))"
    )
    assert conditions.update_condition(profiles, "object.spec.template") == (
        "request.kind.kind == 'VirtualMachine' && ("
        "object.?metadata.?annotations[?'holdfast.dev/sticky'] != "
        "oldObject.?metadata.?annotations[?'holdfast.dev/sticky'] || "
        "object.?metadata.?annotations[?'holdfast.dev/sticky-node'] != "
        "oldObject.?metadata.?annotations[?'holdfast.dev/sticky-node'])"
    )
    assert conditions.create_condition(profiles, "object.spec.jobTemplate.spec.template") == "false"


OWN_UID = {kubevirt.STICKY_NODE_UID: VM_UID}


@pytest.mark.parametrize(
    ("old", "new", "restored"),
    [
        pytest.param(RECORD, None, RECORD, id="all annotations"),
        pytest.param(RECORD, {"team": "a"}, {"team": "a", **RECORD}, id="the record"),
        pytest.param(OWN_UID, {}, OWN_UID, id="a cleared record"),
        pytest.param(
            RECORD,
            {kubevirt.STICKY_NODE: "node-2"},
            {**RECORD, kubevirt.STICKY_NODE: "node-2"},
            id="the UID, with another node in the template",
        ),
        pytest.param({"team": "a"}, None, None, id="no record"),
        pytest.param(None, None, None, id="no annotations"),
    ],
)
def test_record_erased_by_an_update_is_restored_without_a_lookup(
    old: dict[str, str] | None, new: dict[str, str] | None, restored: dict[str, str] | None
) -> None:
    lookup, review = FakeLookup(), update(old, new)
    verdict = sticky_pipeline(lookup).mutate(review, now_ms=0)
    patched = apply_patch(make_vm(new), patch(review.target, verdict.edits))

    assert patched == make_vm(restored)
    assert verdict.code is Code.SUCCESS
    assert lookup.asked == []


def test_match_condition_for_updates_that_may_erase_a_record() -> None:
    owners = "oldObject.metadata.ownerReferences"
    assert sticky(FakeLookup(), account=AUTO).restore_match() == (
        "(request.userInfo.username.startsWith('system:serviceaccount:') "
        "&& request.userInfo.username.endsWith(':kubevirt-controller')) && "
        f"(has({owners}) && ({owners}.size() > 100 || {owners}.exists(one, "
        "has(one.controller) && one.controller && one.kind == 'VirtualMachinePool' "
        "&& one.apiVersion.startsWith('pool.kubevirt.io/')))) "
        "&& (['holdfast.dev/sticky-node', 'holdfast.dev/sticky-node-uid'].exists(key, "
        "key in oldObject.?metadata.?annotations.orValue({}) && "
        "!(key in object.?metadata.?annotations.orValue({}))))"
    )
    condition = sticky(FakeLookup(), namespaces=("a",), node_annotation=LEGACY).restore_match()
    assert condition.startswith(f"(request.userInfo.username == '{kubevirt.CONTROLLER_ACCOUNT}')")
    assert condition.endswith(" && (request.namespace in ['a'])")
    assert f"['{LEGACY}', 'holdfast.dev/sticky-node-uid']" in condition
