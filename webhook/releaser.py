"""Taking our gates off one pod: one guarded patch, and the right answer to each way it can fail.

The patch tests the pod's uid, its resourceVersion and each gate before it removes anything. So a
late write of a leader that was paused, or one meant for an earlier pod of that name, fails; the
pod is then read again and decided again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec

from webhook import holds
from webhook.cluster import JSON_PATCH, PATIENT_TIMEOUT, Api, pod_path
from webhook.errors import ApiStatusError, ClusterError
from webhook.objects import Names, Pod
from webhook.patch import patch
from webhook.profiles import Verdict
from webhook.release_queue import Held, steady
from webhook.review import Operation

RELEASE_TIMEOUT = 10.0
"""Seconds for one request: a release that hangs is better asked for again."""
ATTEMPTS = 3
"""Patches tried at once while other writers keep changing the pod; then it backs off."""

_REFUSALS = frozenset({400, 403, 409, 422})
"""What a failed test of ours and the refusals of other webhooks and policies are answered with."""
_POD = msgspec.json.Decoder(Pod)


class Outcome(enum.StrEnum):
    """How an attempt ended; the values are labels of a metric."""

    RELEASED = "released"
    GONE = "gone"
    CHANGED = "changed"
    RETRY = "retried"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of an attempt.

    `held` is what was last known of the pod; `reason` says why to RETRY, `retry_after` in how many
    seconds at the earliest, where the server asked for that; `notes` are for the pod's Event.
    """

    outcome: Outcome
    held: Held | None = None
    reason: str = ""
    retry_after: float | None = None
    notes: Sequence[str] = ()


class Decider(Protocol):
    """Who decides about held pods: the pipeline."""

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a pod that carries a gate of ours is due."""
        ...

    def rechecks(self, pod: Pod) -> bool:
        """Tell whether `at_release` has to be asked about a pod."""
        ...

    def at_release(self, pod: Pod) -> Verdict:
        """Decide what to tighten when a pod is released."""
        ...

    def allow(self, uid: str, plugin: str) -> None:
        """Note that a plugin holds a pod no longer."""
        ...

    def forget(self, uid: str) -> None:
        """Forget what was noted of a pod that is held no longer."""
        ...


class Releaser:
    """Releases pods one at a time. Safe to call from several threads."""

    def __init__(self, api: Api, decider: Decider) -> None:
        self._api = api
        self._decider = decider

    def release(self, key: Names, held: Held, *, patient: bool = False) -> Attempt:
        """Take our gates off a pod that is due. Never raises for what a cluster may do.

        `patient` gives the patch the time that its admission may take at most.
        """
        try:
            return self._release(key, held, PATIENT_TIMEOUT if patient else RELEASE_TIMEOUT)
        except _EndedError as end:
            return end.attempt
        except ApiStatusError as exc:
            return Attempt(Outcome.GONE) if exc.is_not_found else _retry(exc)
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            return _retry(exc)

    def _release(self, key: Names, held: Held, timeout: float) -> Attempt:
        tighten, refused, notes = held.recheck, False, list[str]()
        for _ in range(ATTEMPTS):
            operations: list[Operation] = []
            if tighten:
                pod = self._read(key)
                held = self._checked(pod, held)
                operations, notes = self._tightened(pod)
            refusal = self._patch(key, held, operations, timeout)
            if refusal is None:
                return Attempt(Outcome.RELEASED, held, notes=notes)
            fresh = self._checked(self._read(key), held)
            if fresh.resource_version == held.resource_version:
                # nothing changed, so it was not about our tests: others refuse what we wrote
                if not operations:
                    return Attempt(Outcome.RETRY, fresh, str(refusal), refusal.retry_after)
                refused, notes = True, [f"released without what was to be added: {refusal}"]
            held, tighten = fresh, fresh.recheck and not refused
        return Attempt(Outcome.RETRY, held, f"{ATTEMPTS} patches in a row met a change of the pod")

    def _patch(
        self, key: Names, held: Held, operations: Sequence[Operation], timeout: float
    ) -> ApiStatusError | None:
        """Write the release; the answer is what was refused, by our own tests or by others."""
        try:
            self._api.request(
                "PATCH",
                pod_path(*key),
                body=msgspec.json.encode([*release_patch(held), *operations]),
                content_type=JSON_PATCH,
                timeout=timeout,
            )
        except ApiStatusError as exc:
            # a webhook may hand on what it was told itself: that something else is not there
            if exc.status in _REFUSALS or exc.is_not_found:
                return exc
            raise
        return None

    def _tightened(self, pod: Pod) -> tuple[list[Operation], list[str]]:
        verdict = self._decider.at_release(pod)
        try:
            return patch(pod, verdict.edits), list(verdict.warnings)
        except Exception as exc:  # noqa: BLE001 - a plugin's nonsense keeps no pod
            problem = f"{type(exc).__name__}: {exc}"
            return [], [*verdict.warnings, f"released without what was to be added: {problem}"]

    def _read(self, key: Names) -> Pod:
        return _POD.decode(self._api.request("GET", pod_path(*key), timeout=RELEASE_TIMEOUT))

    def _checked(self, pod: Pod, held: Held) -> Held:
        """Compare a pod as it now is with what was known of it."""
        fresh = held_pod(pod, self._decider)
        if fresh is None:
            raise _EndedError(Attempt(Outcome.GONE))
        fresh = steady(held, fresh)
        if fresh.uid != held.uid or fresh.due_ms > held.due_ms:
            raise _EndedError(Attempt(Outcome.CHANGED, fresh))
        return fresh


class _EndedError(Exception):
    """The attempt is over before a patch."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__()
        self.attempt = attempt


def _retry(exc: Exception) -> Attempt:
    return Attempt(Outcome.RETRY, None, str(exc), getattr(exc, "retry_after", None))


def held_pod(pod: Pod, decider: Decider) -> Held | None:
    """Note what a release needs to know of a pod; None where no gate of ours holds it."""
    gates = pod.gates
    if not any(gate.startswith(holds.OWN_PREFIX) for gate in gates):
        return None
    due, metadata = decider.due(pod), pod.metadata
    return Held(
        due.at_ms,
        metadata.uid,
        metadata.resource_version,
        _shared(tuple(gates)),
        due.problem,
        decider.rechecks(pod),
    )


@lru_cache(maxsize=256)
def _shared(gates: tuple[str, ...]) -> tuple[str, ...]:
    """Give the same tuple for the same gates: most of very many held pods have the same."""
    return gates


def release_patch(held: Held) -> Sequence[Operation]:
    """Make the patch that takes off our gates, and only ours, of exactly this pod."""
    operations: list[Operation] = [
        {"op": "test", "path": "/metadata/uid", "value": held.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": held.resource_version},
    ]
    for index in reversed(range(len(held.gates))):  # from behind, so that indexes stay right
        gate = held.gates[index]
        if gate.startswith(holds.OWN_PREFIX):
            path = f"/spec/schedulingGates/{index}"
            operations.append({"op": "test", "path": path, "value": {"name": gate}})
            operations.append({"op": "remove", "path": path})
    return operations
