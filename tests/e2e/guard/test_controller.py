"""The changes of pods, Secrets and Leases that the controller may make."""

from collections.abc import Mapping, Sequence

import pytest

from holdfast.webhook.policies.builder import InstallationNames
from tests.e2e.guard.changes import (
    CONTROLLER_MAY_NOT,
    OTHER_OWNER,
    OWNER,
    STRIP,
    annotation,
    remove,
    write,
)
from tests.e2e.guard.cluster import CONTROLLER, Guarded
from tests.e2e.guard.objects import FOREIGN_GATE, GATE, TOKEN, secret
from tests.e2e.kubectl_user import Operation, refusal
from tests.e2e.namespace import Namespace, Object, gates, pod

pytestmark = pytest.mark.xdist_group("guard")

NODE_1 = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
AFFINITY = {"nodeSelectorTerms": [{"matchFields": [NODE_1]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
CONTROLLER_MAY: Mapping[str, Sequence[Operation]] = {
    "release": [STRIP],
    "Holdfast finalizer removed": [remove("/metadata/finalizers/0")],
    "Holdfast annotations": [
        annotation("holdfast.dev/held", None),
        annotation("holdfast.dev/new", "a"),
    ],
    "node selector": [write("/spec/nodeSelector", {"disk": "fast"})],
    "default toleration": [write("/spec/tolerations/-", NOT_READY)],
    "affinity with the release": [
        write("/spec/affinity", {"nodeAffinity": {REQUIRED: AFFINITY}}),
        STRIP,
    ],
}


def test_controller_releases_with_its_own_account(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(pod("soon", {"delay": "1"}, schedulingGates=[{"name": GATE}, {"name": FOREIGN_GATE}]))
    ns.eventually(lambda: "soon" in ns.releases())
    assert gates(ns.get("pod", "soon")) == [FOREIGN_GATE]
    assert {event["user"]["username"] for event in ns.patches()} == {CONTROLLER}


@pytest.mark.parametrize(("change", "what"), CONTROLLER_MAY_NOT.values(), ids=CONTROLLER_MAY_NOT)
def test_controller_cannot_change_other_fields_of_a_pod(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.controller(shared).patch, "full", change)
    assert (
        f"'holdfast-controller-pods' denied request: {CONTROLLER} may not change {what}" in message
    )


def test_uninstall_job_is_limited_like_the_controller(guarded: Guarded, shared: Namespace) -> None:
    name = InstallationNames().uninstaller
    for role in ("far-too-much", "holdfast-releaser"):
        binding = ("create", "clusterrolebinding", f"uninstall-{role}", f"--clusterrole={role}")
        guarded.plane.kubectl(*binding, f"--user={name}")
    job = guarded.user(shared, name)
    shared.eventually(lambda: not refusal(job.patch, "full", [STRIP]))
    for change, field in CONTROLLER_MAY_NOT.values():
        assert f"may not change {field}" in refusal(job.patch, "full", change)


@pytest.mark.parametrize("change", CONTROLLER_MAY.values(), ids=CONTROLLER_MAY)
def test_controller_can_make_the_changes_it_needs(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation]
) -> None:
    assert "patched" in guarded.controller(shared).patch("full", change)


def test_controller_cannot_change_pod_status(guarded: Guarded, shared: Namespace) -> None:
    change = [write("/status/message", "all is well")]
    message = refusal(guarded.controller(shared).patch, "full", change, "--subresource=status")
    assert f"{CONTROLLER} may not change a subresource of a pod" in message


def test_controller_can_write_only_plain_secrets_and_leases(
    guarded: Guarded, ns: Namespace
) -> None:
    thief = guarded.controller(ns)
    assert "may only write Secrets of type Opaque or" in refusal(thief.create, secret(type=TOKEN))
    owned_secret = secret()
    owned_secret["metadata"]["ownerReferences"] = [OTHER_OWNER]
    assert "may not change ownerReferences" in refusal(thief.create, owned_secret)
    assert "may not make Secrets immutable" in refusal(thief.create, secret(immutable=True))
    full_secret = secret()
    full_secret["metadata"]["labels"] = {f"label-{number}": "" for number in range(65)}
    assert "with more than 64 labels" in refusal(thief.create, full_secret)
    thief.create(secret(), dry_run=False)
    operation = write("/metadata/labels", full_secret["metadata"]["labels"])
    assert "with more than 64 labels" in refusal(
        thief.patch, "holdfast-ca", [operation], kind="secret"
    )
    for change in (OWNER, write("/metadata/finalizers", ["example.com/new"])):
        message = refusal(thief.patch, "holdfast-ca", [change], kind="secret")
        assert "may not change ownerReferences or finalizers of Secrets" in message
    thief.patch("holdfast-ca", [write("/data", {"tls.key": ""})], kind="secret")
    lease: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    lease["metadata"] = {"name": "holdfast-controller", "namespace": ns.namespace}
    thief.create(lease, dry_run=False)
    thief.patch("holdfast-controller", [write("/spec", {"holderIdentity": "thief"})], kind="lease")
    for change in (OWNER, write("/metadata/finalizers", ["example.com/new"])):
        message = refusal(thief.patch, "holdfast-controller", [change], kind="lease")
        assert "may not change ownerReferences or finalizers of Secrets and Leases" in message
