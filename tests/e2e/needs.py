"""Why each right in the manifests is needed: what fails without it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from docs.rights import Right
from tests.e2e import certificate_secrets
from tests.e2e.missing_rights import (
    Done,
    approved,
    blanked,
    by_hand,
    changed,
    corrupted,
    deleted,
    due,
    expiring,
    lost,
    overtaken,
    owned,
    started,
    unfollowed,
    unfrozen,
    unlisted,
    untold,
    unwatched,
    waited_for,
)
from tests.e2e.missing_vm_rights import (
    cordoned,
    ended,
    identified,
    landed,
    looked_up,
    moved_in,
    opted_in,
    over,
)
from tests.e2e.revoked_rights import RightsFixture


@dataclass(frozen=True)
class Need:
    """How to show that a right is needed."""

    show: Callable[[RightsFixture, Right], Done]
    """Performs an action that needs the right; returns a function that checks for success."""
    without: str
    """The symptom when it is missing."""


_WATCH = "changes are seen only at the next full list"
_TRUST = "a cleared caBundle is not restored, and pods that ask are rejected"
_LEASE = " leases holdfast-controller"
_VMS, _VMIS, _VMIMS = (f"virtualmachine{kind}s" for kind in ("", "instance", "instancemigration"))


def _secret(name: str, content: str) -> dict[str, Need]:
    symptom = f"a deleted {content} is not created again"
    return {
        f"controller: get secrets {name}": Need(deleted, symptom),
        f"controller: patch secrets {name}": Need(deleted, symptom),
        f"controller: create secrets {name}": Need(deleted, symptom),
        f"controller: update secrets {name}": Need(
            corrupted, f"a corrupted {content} is not repaired"
        ),
    }


NEEDS: Mapping[str, Need] = MappingProxyType(
    {
        "controller: list pods": Need(unlisted, "pods created afterwards stay held"),
        "controller: watch pods": Need(unwatched, _WATCH),
        "controller: get pods": Need(changed, "a pod that changes when it is due is released late"),
        "controller: patch pods": Need(due, "pods stay held"),
        "controller: release holds": Need(due, "pods stay held: the guard rejects every release"),
        "controller: list namespaces": Need(unfrozen, "after a restart, freezes are ignored"),
        "controller: watch namespaces": Need(unwatched, _WATCH),
        "controller: create events": Need(untold, "no Event is emitted"),
        "releaser: release holds": Need(by_hand, "namespace admins cannot release pods early"),
        "approver: approve holds": Need(approved, "nobody but cluster admins can approve pods"),
        f"controller: get{_LEASE}": Need(
            overtaken, "a Lease written by someone else is not renewed"
        ),
        f"controller: create{_LEASE}": Need(lost, "a deleted Lease is not created again"),
        f"controller: update{_LEASE}": Need(expiring, "the Lease is not renewed"),
        **{
            f"controller: {verb} {kind}webhookconfigurations holdfast": Need(blanked, _TRUST)
            for kind in ("mutating", "validating")
            for verb in ("get", "patch")
        },
        "controller: list endpointslices": Need(
            partial(blanked, kind="validatingwebhookconfiguration"), _TRUST
        ),
        "controller: get deployments holdfast-webhook": Need(
            started, "a restarted controller does not restore a cleared caBundle"
        ),
        **_secret(certificate_secrets.LEAF, "certificate"),
        **_secret(certificate_secrets.CA, "CA"),  # last: a new CA issues nothing for a minute
        f"controller: list {_VMS}": Need(opted_in, "a running VM that opts in is not recorded"),
        f"controller: watch {_VMS}": Need(unwatched, _WATCH),
        f"controller: get {_VMS}": Need(landed, "no VM node is recorded"),
        f"controller: patch {_VMS}": Need(landed, "no VM node is recorded"),
        f"controller: list {_VMIS}": Need(
            moved_in, "a VM whose pod has no finalizer is not recorded"
        ),
        f"controller: watch {_VMIS}": Need(unwatched, _WATCH),
        f"controller: get {_VMIS}": Need(landed, "no VM node is recorded"),
        f"controller: list {_VMIMS}": Need(
            ended, "the pod of a failed migration keeps its finalizer"
        ),
        f"controller: watch {_VMIMS}": Need(unwatched, _WATCH),
        f"controller: get {_VMIMS}": Need(over, "the pod of a migration keeps its finalizer"),
        **{
            f"controller: {verb} {kind} everywhere": Need(
                partial(waited_for, kind=kind) if verb == "list" else unfollowed,
                "pods that wait for such objects stay held" if verb == "list" else _WATCH,
            )
            for kind in ("jobs", "deployments", "statefulsets", "daemonsets", "endpointslices")
            for verb in ("list", "watch")
        },
        **{
            f"controller: get {kind}": Need(owned, "with delay-from: owner, replaced pods wait too")
            for kind in ("replicasets", "controllerrevisions", "jobs")
        },
        "controller: get nodes": Need(cordoned, "no Event explains why a VM waits for its node"),
        f"webhook: get {_VMS}": Need(looked_up, "KubeVirt cannot create pods of VMs"),
        f"webhook: get {_VMIS}": Need(looked_up, "KubeVirt cannot create pods of VMs"),
        "webhook: list kubevirts": Need(identified, "KubeVirt cannot create pods of VMs"),
    }
)
"""By the text of `docs.rights.Right`, in the order in which tests revoke them."""
