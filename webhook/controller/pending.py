"""The data of a held pod that its release needs. Pure."""

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
"""Number of ranks per priority level, more than the seconds of any creation time."""
_RESTORED = "velero.io/restore-name"
"""The label of pods that Velero has restored."""


class PendingRelease(NamedTuple):
    """The data of a held pod that its release needs, which saves a read.

    With `recheck`, plugins are asked again at the release, or edit the pod. `reason` is what the
    pod waits for, and `open_ended` means that it may be due earlier. `known_ms` is when the due
    time was first seen, and 0 for a pod that existed at startup: a pod that became due while no
    controller ran is late. Of pods with the same due time, the pod with the lowest `rank` is
    released first. `annotated` means that the pod has annotations, to which a release adds its
    time; `labelled` means that the pod has the label of held pods. Both are true only if the
    admission policies allow the change. `copy` is the encoded pod for `read_copy`, if plugins are
    asked again. `approved_by` is the user who approved the pod. `earliest_ms` is the time until
    which the pod is certainly held, if its due time is unknown. `restored` means that a backup tool
    has recreated the pod.
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
        """The priority part of the rank. A lower level is more important."""
        return self.rank // RANKS


def pending_release(
    pod: Pod, decider: ReleaseDecider, now_ms: int | None = None
) -> PendingRelease | None:
    """Return the release data of a pod, or None if it has none of our gates.

    With `now_ms`, the plugins are asked whether the pod may start. They may block, and this may
    raise PluginFailedError.
    """
    if not is_held(pod):
        return None
    due = decider.due(pod) if now_ms is None else decider.permit(pod, now_ms)
    return with_due(pod, due, recheck=due.recheck or decider.concerns_at_release(pod))


def is_held(pod: Pod) -> bool:
    """Return whether a pod carries one of our gates."""
    return any(gate.startswith(OWN_PREFIX) for gate in pod.gates)


def with_due(pod: Pod, due: Due, *, recheck: bool = False) -> PendingRelease:
    """Return the release data of a pod with this due time."""
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
    """Return a pod's rank among pods due at the same time: by priority, then by creation."""
    return -(pod.spec.priority or 0) * RANKS + pod.created_ms // 1_000


def _needed(gates: Sequence[str]) -> tuple[str, ...]:
    """Return our gates, with an empty string in place of each gate of others.

    Only the number of other gates matters, and their names may be long. If admission rejects the
    pod for its number of gates, they are returned unchanged, because its release writes the other
    gates. Such gates may take megabytes, so they are not cached.
    """
    if exceeds(gates):
        return tuple(gates)
    return _shared(tuple(gate if gate.startswith(OWN_PREFIX) else "" for gate in gates))


def exceeds(gates: Sequence[str]) -> bool:
    """Return whether the pod has so many gates that admission rejects it."""
    if len(gates) <= MAX_OWN_GATES:  # true for nearly all pods
        return False
    count = sum(gate.startswith(OWN_PREFIX) for gate in gates)
    return count > MAX_OWN_GATES or len(gates) > MAX_GATES


@lru_cache(maxsize=256)
def _shared(gates: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for equal gates: most of 100,000 held pods have the same gates."""
    return gates
