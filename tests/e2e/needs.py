"""What each right that the manifests give is needed for: what goes wrong where it is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from docs.rights import Right
from tests.e2e import pairs
from tests.e2e.deprived import Stage
from tests.e2e.lacking import (
    Done,
    blanked,
    by_hand,
    changed,
    deleted,
    due,
    expiring,
    lost,
    overtaken,
    spoilt,
    started,
    unlisted,
    untold,
    unwatched,
)
from tests.e2e.lacking_vms import cordoned, ended, landed, looked_up, moved_in, opted_in, over


@dataclass(frozen=True)
class Need:
    """How a right is missed."""

    show: Callable[[Stage, Right], Done]
    """Does what needs it, and gives what tells whether that got done after all."""
    without: str
    """What is seen where it is missing."""


_WATCH = "nothing is watched: a change is seen when all are listed again"
_TRUST = "an emptied caBundle is not put back, and pods that ask are refused"
_LEASE = " leases holdfast-controller"
_VMS, _VMIS, _VMIMS = (f"virtualmachine{kind}s" for kind in ("", "instance", "instancemigration"))


def _secret(name: str, what: str) -> dict[str, Need]:
    gone = f"{what} that was deleted is not made again"
    return {
        f"controller: get secrets {name}": Need(deleted, gone),
        f"controller: patch secrets {name}": Need(deleted, gone),
        f"controller: create secrets {name}": Need(deleted, gone),
        f"controller: update secrets {name}": Need(spoilt, f"{what} that was spoilt stays so"),
    }


NEEDS: Mapping[str, Need] = MappingProxyType(
    {
        "controller: list pods": Need(unlisted, "pods that are made from then on stay held"),
        "controller: watch pods": Need(unwatched, _WATCH),
        "controller: get pods": Need(
            changed, "a pod that changes just when it is due stays held until that is seen"
        ),
        "controller: patch pods": Need(due, "pods stay held"),
        "controller: release holds": Need(due, "pods stay held: the guard refuses every release"),
        "controller: create events": Need(untold, "no Event tells that a pod is held"),
        "releaser: release holds": Need(by_hand, "a namespace's admin can release no pod early"),
        f"controller: get{_LEASE}": Need(
            overtaken, "a Lease that was written by others is not renewed"
        ),
        f"controller: create{_LEASE}": Need(lost, "a Lease that was deleted is not made again"),
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
            started, "a controller that was started anew does not put back an emptied caBundle"
        ),
        **_secret(pairs.LEAF, "a certificate"),
        **_secret(pairs.CA, "a CA"),  # the last: a new CA issues nothing for a minute
        f"controller: list {_VMS}": Need(opted_in, "a running VM that opts in gets no record"),
        f"controller: watch {_VMS}": Need(unwatched, _WATCH),
        f"controller: get {_VMS}": Need(landed, "no landing is recorded"),
        f"controller: patch {_VMS}": Need(landed, "no landing is recorded"),
        f"controller: list {_VMIS}": Need(moved_in, "a VM whose pod was not kept gets no record"),
        f"controller: watch {_VMIS}": Need(unwatched, _WATCH),
        f"controller: get {_VMIS}": Need(landed, "no landing is recorded"),
        f"controller: list {_VMIMS}": Need(ended, "a pod is kept when its migration has failed"),
        f"controller: watch {_VMIMS}": Need(unwatched, _WATCH),
        f"controller: get {_VMIMS}": Need(over, "a pod that a migration made is kept"),
        "controller: get nodes": Need(cordoned, "no Event says that a VM waits for its node"),
        f"webhook: get {_VMS}": Need(looked_up, "KubeVirt can create no pod of a VM"),
        f"webhook: get {_VMIS}": Need(looked_up, "KubeVirt can create no pod of a VM"),
    }
)
"""By what `docs.rights.Right` says of itself, in the order in which they are taken away."""
