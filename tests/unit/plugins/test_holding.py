"""Pods that are exempt from holds because KubeVirt waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.webhook.errors import ApiStatusError, NoCredentialsError, UnreachableError
from holdfast.webhook.framework.plugin import Args, Context, skip
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.approvals import GATE, KEY
from holdfast.webhook.model.edits import AddGate
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.plugins.approval import Approval
from tests.support.builders import CREATED_MS, handle_with, make_delay, make_pod, read_review
from tests.support.fakes import FakeLookup
from tests.support.scripted import pipeline_of
from tests.support.vm_builders import make_vmi, owner_of

CNV = kubevirt.controller_account("openshift-cnv")
TENANT = kubevirt.controller_account("tenant")
DEFAULT = kubevirt.CONTROLLER_ACCOUNT
INSTALLATION = {"namespace": "openshift-cnv", "creationTimestamp": "2026-01-01T00:00:00Z"}
INSTALLED = {kubevirt.INSTALLATIONS: {"items": [{"metadata": INSTALLATION}]}}
OWNERS = [owner_of(kubevirt.VMI, "vm", "u")]
TARGET: dict[str, Any] = {"labels": {kubevirt.MIGRATION_JOB: "job"}, "owners": OWNERS}
VMI_PATH = kubevirt.vmi_path("default", "vm")
RUNNING = {VMI_PATH: make_vmi(uid="u", phase="Running")}


def created_by(user: str, **pod: Any) -> PodReview:
    return read_review(make_pod({KEY: "x"}, **pod), userInfo={"username": user})


def connected(lookup: FakeLookup) -> Approval:
    return Approval(Args(), handle_with(lookup=lookup))


def is_held(plugin: Approval, review: PodReview) -> bool:
    result = plugin.mutate(review.pod, Context(review, "*", 0))
    assert result == skip() or AddGate(GATE) in result.edits
    return result != skip()


@pytest.mark.parametrize(
    ("user", "failure", "held"),
    [
        pytest.param(CNV, None, False, id="KubeVirt's account"),
        pytest.param(TENANT, None, True, id="a tenant's account with the same name"),
        pytest.param(DEFAULT, None, True, id="default account, not in use"),
        pytest.param(DEFAULT, ApiStatusError("no", status=403), False, id="default, forbidden"),
        pytest.param(CNV, ApiStatusError("no", status=403), True, id="unknown account, forbidden"),
        pytest.param(DEFAULT, NoCredentialsError("no token"), False, id="no credentials"),
        pytest.param(TENANT, NoCredentialsError("no token"), True, id="a tenant, no credentials"),
    ],
)
def test_only_pods_of_kubevirts_own_account_are_exempt(
    user: str, failure: Exception | None, held: bool
) -> None:
    lookup = FakeLookup(INSTALLED | RUNNING)
    if failure is not None:
        lookup.failures.extend([failure] * 2)

    assert is_held(connected(lookup), created_by(user, **TARGET)) is held


@pytest.mark.parametrize(
    ("vmi", "held"),
    [
        pytest.param(RUNNING[VMI_PATH], False, id="running"),
        pytest.param(make_vmi(uid="u", phase="Scheduling"), True, id="new"),
        pytest.param(make_vmi(uid="u", phase="WaitingForSync"), True, id="migrated from elsewhere"),
        pytest.param({"metadata": {"uid": "u"}}, True, id="without a status"),
        pytest.param(make_vmi(uid="w", phase="Running"), True, id="another one"),
        pytest.param(None, True, id="gone"),
    ],
)
def test_only_pods_of_a_started_vm_are_targets(vmi: Any, held: bool) -> None:
    """KubeVirt copies the label from the template of a VirtualMachineInstanceReplicaSet."""
    lookup = FakeLookup(INSTALLED | ({} if vmi is None else {VMI_PATH: vmi}))
    assert is_held(connected(lookup), created_by(CNV, **TARGET)) is held


def test_plugins_share_the_lookup() -> None:
    lookup = FakeLookup(INSTALLED | RUNNING)
    plugins = connected(lookup), make_delay()
    plugins[1].handle.connect(lookup=lookup)
    review = read_review(make_pod({KEY: "x", "delay": "1"}, **TARGET), userInfo={"username": CNV})
    assert pipeline_of(*plugins).mutate(review, now_ms=CREATED_MS).edits == []
    assert lookup.asked.count(VMI_PATH) == 1


@pytest.mark.parametrize("labels", [{}, TARGET["labels"]], ids=["provisioning", "both marks"])
@pytest.mark.parametrize("installed", [INSTALLED, {}], ids=["found", "default account"])
@pytest.mark.parametrize(
    ("command", "held"),
    [
        (["/bin/bash", "-c", "echo", "bound PVCs"], False),
        (["/usr/bin/virt-launcher-monitor", "--qemu-timeout", "5m"], True),
        (["/injected", "/usr/bin/virt-launcher-monitor"], True),
        (None, True),
    ],
    ids=["provisions", "starts the VM", "prefixed", "unknown"],
)
def test_only_pods_that_do_not_start_the_vm_are_exempt(
    command: list[str] | None, held: bool, installed: Any, labels: dict[str, str]
) -> None:
    """KubeVirt copies the annotations of a VMI to its pods, including that of provisioning pods."""
    pod = make_pod(
        {KEY: "x", kubevirt.EPHEMERAL_PROVISIONING: "true"}, owners=OWNERS, labels=labels
    )
    pod["spec"]["containers"] = [{"name": "compute", "command": command}, {"name": "sidecar"}]
    review = read_review(pod, userInfo={"username": CNV if installed else DEFAULT})
    assert is_held(connected(FakeLookup(installed)), review) is held


def test_failed_lookup_raises() -> None:
    lookup = FakeLookup(INSTALLED)
    lookup.failures.append(UnreachableError("gone"))

    with pytest.raises(UnreachableError):
        is_held(connected(lookup), created_by(CNV, **TARGET))


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        pytest.param(created_by(TENANT, **TARGET), True, id="possible migration target"),
        pytest.param(created_by("jane", **TARGET), False, id="not KubeVirt"),
        pytest.param(created_by(CNV), False, id="no KubeVirt metadata"),
        pytest.param(created_by(CNV, **TARGET, gates=[GATE]), False, id="has the gate"),
    ],
)
def test_review_blocks_only_if_the_account_is_looked_up(review: PodReview, expected: bool) -> None:
    lookup = FakeLookup(INSTALLED)
    plugin = connected(lookup)

    assert pipeline_of(plugin).may_block(review) is expected
    is_held(plugin, review)
    assert bool(lookup.asked) is expected
