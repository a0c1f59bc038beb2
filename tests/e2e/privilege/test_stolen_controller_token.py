"""The changes that a stolen controller token permits, and how long they last."""

import json
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
import yaml

from controlplane.errors import ControlPlaneError
from holdfast.webhook.registration.configurations import USES
from tests.e2e.accounts import NAMESPACE
from tests.e2e.fake_kubevirt import RECORD
from tests.e2e.installed import KINDS, REPAIR
from tests.e2e.kubectl_user import Operation, refusal
from tests.e2e.namespace import UNCALLED, Namespace, Object, gates, pod
from tests.e2e.secured import (
    THERE,
    Secured,
)
from tests.support.scrapes import metric

pytestmark = pytest.mark.xdist_group("privilege")


def test_controller_token_permits_the_documented_changes(
    secured: Secured, robbed: Namespace
) -> None:
    """The privileges that the security page discloses."""
    thief = secured.controller(robbed)
    hold = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    redirect = [
        {"op": "add", "path": "/webhooks/0/clientConfig", "value": {"url": "https://x.example"}}
    ]
    all_namespaces = [{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": {}}]
    configuration = "mutatingwebhookconfiguration"

    assert "victim" in thief.kubectl("get", "pods", "--all-namespaces")
    assert robbed.namespace in thief.kubectl("get", "namespaces")
    thief.patch("victim", hold)
    thief.kubectl("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite", "--dry-run=server")
    thief.kubectl("annotate", "vm", "vm", f"{RECORD}-", "--dry-run=server")
    for name in ("holdfast-ca", "holdfast-tls"):
        assert "tls.key" in thief.kubectl("get", "secret", name, "-n", NAMESPACE, "-o", "yaml")
    thief.kubectl("create", "-f", "-", "--dry-run=server", stdin=yaml.safe_dump(EVENT))
    assert "spec.containers" in refusal(thief.patch, "victim", [*hold, *image])
    assert "may only register webhooks for the Service" in refusal(
        thief.patch, "holdfast", redirect, kind=configuration
    )
    assert "may only register webhooks that exclude the namespaces kube-system" in refusal(
        thief.patch, "holdfast", all_namespaces, kind=configuration
    )


EVENT: Object = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "forged"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "type": "Normal",
    "reason": "Released",
    "action": "Release",
    "note": "any text",
    "reportingController": "holdfast",
    "reportingInstance": "thief",
    "regarding": {"kind": "Pod", "namespace": "robbed", "name": "victim"},
}
FIRST = "/webhooks/0"
WITHOUT_HOLDFAST: dict[str, list[Operation]] = {
    "no webhooks": [{"op": "add", "path": "/webhooks", "value": []}],
    "a condition": [
        {"op": "test", "path": f"{FIRST}/matchConditions/0/name", "value": USES},
        {"op": "replace", "path": f"{FIRST}/matchConditions/0/expression", "value": "false"},
    ],
}
"""Patches of a configuration after which Holdfast is not called for a pod."""
ETCD_LIMIT, ROOM = 3 << 19, 2_000
"""etcd's default limit of an object's size in bytes, and less space than our webhooks need."""
REJECT_PODS: list[Operation] = [
    {"op": "remove", "path": f"{FIRST}/matchConditions"},
    {"op": "replace", "path": f"{FIRST}/rules/0/operations", "value": ["CREATE", "UPDATE"]},
    {"op": "replace", "path": f"{FIRST}/clientConfig/service/port", "value": 1},
]
"""Patch after which every pod outside the excluded namespaces is rejected."""


def reject_workloads(number: int) -> list[Operation]:
    """Make a patch after which this webhook's workloads are all rejected."""
    webhook = f"/webhooks/{number}"
    return [
        {"op": "remove", "path": f"{webhook}/matchConditions"},
        {"op": "replace", "path": f"{webhook}/failurePolicy", "value": "Fail"},
        {"op": "replace", "path": f"{webhook}/clientConfig/service/port", "value": 1},
    ]


@pytest.mark.parametrize(
    "change", [*WITHOUT_HOLDFAST.values(), REJECT_PODS], ids=[*WITHOUT_HOLDFAST, "rejects all pods"]
)
def test_controller_token_can_disable_webhooks_until_the_next_reconcile(
    secured: Secured, robbed: Namespace, change: list[Operation]
) -> None:
    """The controller must write conditions, and `false` is one, so no policy can reject this."""
    before = secured.installed.webhooks()
    thief = secured.controller(robbed)
    outputs = [thief.patch("holdfast", change, "-o", "json", kind=kind) for kind in KINDS]
    assert [
        webhook for output in outputs for webhook in json.loads(output).get("webhooks", ())
    ] != before

    for kind in KINDS:
        thief.patch("holdfast", change, kind=kind, dry_run=False)
    robbed.eventually(lambda: secured.installed.webhooks() == before, REPAIR)


def filling(size: int) -> Operation:
    """Make an operation that sets `managedFields` of this size, in bytes."""
    fields: Object = {f"f:{number:090}": {} for number in range(size // 98)}
    entry = {
        "manager": "thief",
        "operation": "Apply",
        "apiVersion": "admissionregistration.k8s.io/v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": fields}},
    }
    return {"op": "add", "path": "/metadata/managedFields", "value": [entry]}


def test_controller_token_cannot_block_repair_with_managed_fields(
    secured: Secured, robbed: Namespace
) -> None:
    """An apply to an object near etcd's limit fails, and no policy sees `managedFields`."""
    before = secured.installed.webhooks()
    thief = secured.controller(robbed)
    change = [*WITHOUT_HOLDFAST["no webhooks"], filling(ETCD_LIMIT - ROOM)]
    for kind in KINDS:
        options = ("-o", "json", "--show-managed-fields")
        message = thief.patch("holdfast", change, *options, kind=kind, dry_run=False)
        assert len(message) > ETCD_LIMIT - ROOM
    robbed.eventually(lambda: secured.installed.webhooks() == before, REPAIR)
    (log,) = [controller.log for controller in secured.installed.controllers]
    assert log.read_text().count("removing managedFields, which leave no room") == len(KINDS)


def tamper(secured: Secured, ns: Namespace, kind: str, change: list[Operation]) -> None:
    """Patch a configuration as the thief; ignore the error if an earlier patch is still there."""
    with suppress(ControlPlaneError):
        secured.controller(ns).patch("holdfast", change, kind=kind, dry_run=False)


def test_controller_token_can_have_pods_and_workloads_rejected(
    secured: Secured, robbed: Namespace
) -> None:
    """Including those without Holdfast annotations."""
    validating = KINDS[-1]
    webhooks = secured.installed.webhooks()
    names = [
        webhook["name"]
        for webhook in webhooks
        if webhook["name"].endswith("templates.holdfast.dev")
    ]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("refused")["spec"]}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "refused"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }

    def is_rejected(manifest: Object) -> bool:
        for kind in KINDS:
            tamper(secured, robbed, kind, REJECT_PODS)
        for number in range(1, 1 + len(names)):
            tamper(secured, robbed, validating, reject_workloads(number))
        return UNCALLED in refusal(robbed.apply, manifest, dry_run=True)

    robbed.eventually(lambda: is_rejected(pod("refused")))
    robbed.eventually(lambda: is_rejected(workload))
    robbed.eventually(robbed.holds_pods, REPAIR)
    robbed.eventually(lambda: secured.installed.webhooks() == webhooks, REPAIR)


def test_controller_token_can_take_the_lease(secured: Secured, robbed: Namespace) -> None:
    """As long as it does, no controller releases pods or restores configurations."""
    thief = secured.controller(robbed)
    arguments = ("lease", "holdfast-controller", "-n", NAMESPACE)
    robbed.apply(pod("kept", {"delay": "1"}))

    def steal() -> bool:
        """Take the Lease; False where the leader has renewed it since it was read."""
        lease = json.loads(thief.kubectl("get", *arguments, "-o", "json"))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease["spec"] |= {"holderIdentity": "thief", "renewTime": now, "leaseDurationSeconds": 12}
        try:
            thief.kubectl("replace", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(lease))
        except ControlPlaneError as exc:
            if "(Conflict)" not in str(exc):
                raise
            return False
        return True

    def leads() -> bool:
        return metric(secured.controlling, "holdfast_leader ") == 1

    robbed.eventually(lambda: not gates(robbed.get("pod", "kept")))
    robbed.eventually(leads)
    robbed.eventually(steal)
    robbed.eventually(lambda: not leads())
    robbed.apply(pod("late", {"delay": "1"}))
    for _ in range(3):
        time.sleep(2)
        assert steal()
        assert not leads()
    assert gates(robbed.get("pod", "late"))

    robbed.eventually(leads)  # the thief no longer renews it
    robbed.eventually(lambda: not gates(robbed.get("pod", "late")))
