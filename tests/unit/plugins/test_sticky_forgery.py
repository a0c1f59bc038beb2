"""Forged pods."""

from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Code, Result, reject
from holdfast.webhook.model import kubevirt
from tests.support.builders import Document, read_review
from tests.support.fakes import FakeLookup
from tests.support.vm_builders import make_launcher, make_vm
from tests.unit.plugins.sticky_vms import (
    FORGERIES,
    KUBEVIRT,
    RECORD,
    cluster,
    mutate,
    sticky,
    sticky_pipeline,
    validate,
)


@pytest.mark.parametrize(("pod", "request_"), FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("vm_exists", [True, False], ids=["VM exists", "no VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_forged_pod_is_skipped_without_a_lookup(
    point: Any, vm_exists: bool, pod: Document, request_: Document
) -> None:
    lookup = cluster(make_vm(RECORD)) if vm_exists else FakeLookup()
    assert point(sticky(lookup), pod, **request_) == Result(Code.SKIP)
    assert lookup.asked == []


OTHER_ACCOUNT = "system:serviceaccount:openshift-cnv:kubevirt-controller"


@pytest.mark.parametrize("vm_exists", [True, False], ids=["VM exists", "no VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_kubevirt_account_other_than_the_configured_one_is_rejected_in_its_namespaces(
    point: Any, *, vm_exists: bool
) -> None:
    lookup = cluster(make_vm(RECORD)) if vm_exists else FakeLookup()
    plugin = sticky(lookup)
    rejection = point(plugin, make_launcher(), userInfo={"username": OTHER_ACCOUNT})

    assert rejection == reject(
        f"this pod of a VirtualMachineInstance is created by {OTHER_ACCOUNT}, but plugin sticky is "
        "configured with account 'system:serviceaccount:kubevirt:kubevirt-controller': set the "
        "argument account to auto"
    )
    assert lookup.asked == []
    for pod, fields in (
        (make_launcher(owners=[]), {}),
        (make_launcher(), {"operation": "UPDATE", "old": make_launcher()}),
    ):
        result = point(plugin, pod, userInfo={"username": OTHER_ACCOUNT}, **fields)
        assert result == Result(Code.SKIP)
    plugin = sticky(lookup, namespaces=("elsewhere",))
    assert point(plugin, make_launcher(), userInfo={"username": OTHER_ACCOUNT}) == Result(Code.SKIP)


@pytest.mark.parametrize(("pod", "request_"), FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_forged_pod_with_the_finalizer_is_rejected(
    point: str, pod: Document, request_: Document
) -> None:
    lookup = cluster(make_vm(RECORD))
    forged_pod = {**pod, "metadata": {**pod["metadata"], "finalizers": [kubevirt.STICKY]}}
    review = read_review(forged_pod, **{"userInfo": KUBEVIRT, **request_})

    verdict = getattr(sticky_pipeline(lookup), point)(review, now_ms=0)
    assert verdict.message == (
        'finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove it '
        "(a restore should leave out the pods of VMs)"
    )
    assert lookup.asked == []


def test_finalizer_of_an_ephemeral_pod_or_added_by_an_update_is_rejected() -> None:
    pod = make_launcher({kubevirt.EPHEMERAL_PROVISIONING: "true"}, finalizers=[kubevirt.STICKY])
    review = read_review(pod, userInfo=KUBEVIRT)
    assert sticky_pipeline(cluster(make_vm())).mutate(review, now_ms=0).code is Code.REJECT

    pod = make_launcher(finalizers=[kubevirt.STICKY])
    review = read_review(pod, operation="UPDATE", old=make_launcher(), userInfo=KUBEVIRT)
    assert sticky_pipeline(cluster(make_vm())).validate(review, now_ms=0).code is Code.REJECT


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
def test_update_and_delete_are_skipped_without_a_lookup(operation: str) -> None:
    lookup = cluster(make_vm(RECORD))
    assert mutate(sticky(lookup), operation=operation) == Result(Code.SKIP)
    assert validate(sticky(lookup), make_launcher(), operation=operation) == Result(Code.SKIP)
    assert lookup.asked == []
