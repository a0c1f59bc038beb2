"""Taking our gates off one pod: one guarded patch, and the right answer to each way it can fail.

The patch tests the pod's uid, its resourceVersion and each gate before it removes anything. So a
late write of a leader that was paused, or one meant for an earlier pod of that name, fails; the
pod is then read again and decided again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from webhook import holds
from webhook.cluster import JSON_PATCH, Api, pod_path
from webhook.errors import ApiStatusError, ClusterError
from webhook.objects import Names, Pod
from webhook.release_queue import Held

RELEASE_TIMEOUT = 10.0
"""Seconds for one request: a release that hangs is better asked for again."""
ATTEMPTS = 3
"""Patches tried at once while other writers keep changing the pod; then it backs off."""

_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422
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

    `held` is what is known of a pod that CHANGED; `reason` says why to RETRY, `retry_after` in how
    many seconds at the earliest, where the server asked for that.
    """

    outcome: Outcome
    held: Held | None = None
    reason: str = ""
    retry_after: float | None = None


class Releaser:
    """Releases pods one at a time. Safe to call from several threads."""

    def __init__(self, api: Api, decide: Callable[[Pod], holds.Due]) -> None:
        self._api = api
        self._decide = decide

    def release(self, key: Names, held: Held) -> Attempt:
        """Take our gates off a pod that is due. Never raises for what a cluster may do."""
        for _ in range(ATTEMPTS):
            try:
                self._patch(key, held)
            except ApiStatusError as exc:
                if exc.status == _NOT_FOUND:
                    return Attempt(Outcome.GONE)
                if exc.status not in {_CONFLICT, _INVALID}:
                    return _retry(exc)
                fresh = self._read_again(key, held, exc)
                if isinstance(fresh, Attempt):
                    return fresh
                held = fresh
            except ClusterError as exc:
                return _retry(exc)
            else:
                return Attempt(Outcome.RELEASED)
        return Attempt(Outcome.RETRY, held, f"{ATTEMPTS} patches in a row met a change of the pod")

    def _patch(self, key: Names, held: Held) -> None:
        self._api.request(
            "PATCH",
            pod_path(*key),
            body=msgspec.json.encode(release_patch(held)),
            content_type=JSON_PATCH,
            timeout=RELEASE_TIMEOUT,
        )

    def _read_again(self, key: Names, held: Held, refusal: ApiStatusError) -> Held | Attempt:
        """Read a pod whose patch was refused: what to try next, or how the attempt ends."""
        try:
            body = self._api.request("GET", pod_path(*key), timeout=RELEASE_TIMEOUT)
            pod = _POD.decode(body)
        except ApiStatusError as exc:
            return Attempt(Outcome.GONE) if exc.status == _NOT_FOUND else _retry(exc)
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            return _retry(exc)
        fresh = held_pod(pod, self._decide)
        if fresh is None:
            return Attempt(Outcome.GONE)
        if fresh.uid != held.uid or fresh.due_ms > held.due_ms:
            return Attempt(Outcome.CHANGED, fresh)
        if fresh.resource_version == held.resource_version:
            # nothing changed, so the refusal was not about our tests: somebody else's webhook
            return Attempt(Outcome.RETRY, fresh, str(refusal), refusal.retry_after)
        return fresh


def _retry(exc: Exception) -> Attempt:
    return Attempt(Outcome.RETRY, None, str(exc), getattr(exc, "retry_after", None))


def held_pod(pod: Pod, decide: Callable[[Pod], holds.Due]) -> Held | None:
    """Note what a release needs to know of a pod; None where no gate of ours holds it."""
    gates = pod.gates
    if not any(gate.startswith(holds.OWN_PREFIX) for gate in gates):
        return None
    due, metadata = decide(pod), pod.metadata
    version = metadata.resource_version
    return Held(due.at_ms, metadata.uid, version, tuple(gates), due.problem)


def release_patch(held: Held) -> Sequence[dict[str, Any]]:
    """Make the patch that takes off our gates, and only ours, of exactly this pod."""
    operations: list[dict[str, Any]] = [
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
