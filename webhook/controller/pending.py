"""Held pods, as far as their release needs to know them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.model import approvals
from holdfast.webhook.model.annotations import HELD_LABEL, OWN_PREFIX, Due
from holdfast.webhook.model.limits import MAX_ENTRIES, MAX_GATES, MAX_OWN_GATES
from holdfast.webhook.model.objects import Pod

_COPY, _FROM_COPY = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Pod)
RANKS = 2**40
"""The ranks of a level: more than the seconds of any creation time."""
_RESTORED = "velero.io/restore-name"
"""The label of a pod that Velero has restored."""


class PendingRelease(NamedTuple):
    """The fields of a held pod that its release needs, so that it is not read again.

    `recheck` says that plugins are asked again at its release, or add to the pod. `reason` is what
    it waits for, and `open_ended` says that it may be due earlier. `known_ms` is when the due time
    was first seen, 0 for a pod that was there at startup: a pod that fell due while no controller
    ran is late. Of pods due at the same time, the one with the lowest `rank` is released first.
    `annotated` says that the pod has annotations, to which a release adds its time; `labelled`,
    that it has the label of held pods: both only if the admission policies allow the change. `copy`
    is the pod as it was read, for `read_copy`, if plugins are asked again. `approved_by` is who
    approved it. `earliest_ms` is the time before which it is certainly held, if its due time is
    not known. `restored` says that a backup tool has created it again.
    """

    due_ms: int
    uid: str
    resource_version: str
    gates: tuple[str, ...]
    problem: str = ""
    reason: str = ""
    recheck: bool = False
    known_ms: int = 0
    rank: int = 0
    annotated: bool = False
    labelled: bool = False
    copy: bytes = b""
    open_ended: bool = False
    approved_by: str = ""
    earliest_ms: int = 0
    restored: bool = False

    @property
    def level(self) -> int:
        """The part of the rank that is the priority; less is more important."""
        return self.rank // RANKS


def pending_release(
    pod: Pod, decider: ReleaseDecider, now_ms: int | None = None
) -> PendingRelease | None:
    """Decide about a pod; None if it carries none of our gates.

    With a time, its plugins are asked whether it may start: they may block, and PluginFailedError
    may be raised.
    """
    if not is_held(pod):
        return None
    due = decider.due(pod) if now_ms is None else decider.permit(pod, now_ms)
    return with_due(pod, due, recheck=due.recheck or decider.concerns_at_release(pod))


def is_held(pod: Pod) -> bool:
    """Return whether a pod carries one of our gates."""
    return any(gate.startswith(OWN_PREFIX) for gate in pod.gates)


def with_due(pod: Pod, due: Due, *, recheck: bool = False) -> PendingRelease:
    """Return what the release of a pod needs that is due then."""
    metadata = pod.metadata
    return PendingRelease(
        due.at_ms,
        metadata.uid,
        metadata.resource_version,
        _needed(pod.gates),
        due.problem,
        due.reason,
        recheck,
        rank=_rank(pod),
        annotated=metadata.annotations is not None and len(pod.annotations) <= MAX_ENTRIES,
        labelled=HELD_LABEL in pod.labels and len(pod.labels) <= MAX_ENTRIES,
        copy=_COPY.encode(pod) if recheck else b"",
        open_ended=due.open_ended,
        approved_by=approvals.approver(pod.annotations) if approvals.GATE in pod.gates else "",
        earliest_ms=due.earliest_ms,
        restored=_RESTORED in pod.labels,
    )


def read_copy(copy: bytes) -> Pod:
    """Return the pod of a `PendingRelease.copy`."""
    return _FROM_COPY.decode(copy)


def _rank(pod: Pod) -> int:
    """Return the order among pods due at the same time: by priority, then by creation."""
    return -(pod.spec.priority or 0) * RANKS + pod.created_ms // 1_000


def _needed(gates: Sequence[str]) -> tuple[str, ...]:
    """Return the gates as a release needs them.

    Of the gates of others, which may be long, only the number counts. So many that admission
    rejects the pod take megabytes: they are not shared, and the release writes those of others.
    """
    if exceeds(gates):
        return tuple(gates)
    return _shared(tuple(gate if gate.startswith(OWN_PREFIX) else "" for gate in gates))


def exceeds(gates: Sequence[str]) -> bool:
    """Return whether admission rejects a pod with so many gates."""
    if len(gates) <= MAX_OWN_GATES:  # as those of nearly all pods
        return False
    own = sum(gate.startswith(OWN_PREFIX) for gate in gates)
    return own > MAX_OWN_GATES or len(gates) > MAX_GATES


@lru_cache(maxsize=256)
def _shared(gates: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for equal gates: most of 100,000 held pods have the same."""
    return gates
