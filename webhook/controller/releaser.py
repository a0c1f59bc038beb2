"""Removes our gates from one pod with a guarded patch, and handles each way it can fail.

The patch tests the pod's uid, its resourceVersion and each gate. If it fails because the pod has
changed, the releaser reads the pod and decides again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from holdfast.webhook.controller.pending import (
    PendingRelease,
    is_held,
    pending_release,
    read_copy,
)
from holdfast.webhook.errors import ApiStatusError, ClusterError, PluginFailedError
from holdfast.webhook.framework.json_patch import patch, pointer
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing, patching
from holdfast.webhook.kube.api import Api, Begin, pod_path
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    HELD_LABEL,
    NEVER_MS,
    OWN_PREFIX,
    RELEASED_ANNOTATION,
    allowed_plugins,
)
from holdfast.webhook.model.edits import Edit, Operation, SetAnnotation
from holdfast.webhook.model.limits import MAX_GATES, are_storable
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.pace import args as pace_args

RELEASE_TIMEOUT = 10.0
"""Timeout of one request, in seconds. A request that hangs is better sent again."""
ATTEMPTS = 3
"""Patches sent in a row while other writers keep changing the pod, before it backs off."""

_NO_ANSWER = frozenset({500, 502, 504})
"""Statuses after which the pod may have been released: the API server or its etcd was slow, etcd
elected a new leader, or a proxy lost its connection to the API server."""
_NEEDS_THREAD = patching.REFUSED | {401, 404}
"""Statuses after which the pod must be read, or credentials must be renewed."""
_BY_WEBHOOK = "failed calling webhook"
"""Part of the API server's message, with a 500, about a failing webhook. Nothing was written."""


class Outcome(enum.StrEnum):
    """The outcome of an attempt. The values are label values of a metric."""

    RELEASED = "released"
    GONE = "gone"
    CHANGED = "changed"
    RETRY = "retried"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of an attempt.

    `held` is the pod as last read. `reason` is why to RETRY, and `retry_after` the minimum wait in
    seconds, if the server asked for one. `notes` are for the pod's Event.
    """

    outcome: Outcome
    held: PendingRelease | None = None
    reason: str = ""
    retry_after: float | None = None
    notes: Sequence[str] = ()


@dataclass(slots=True)
class _Release:
    """The state of an attempt: the pod as last read, its reservation, and what to leave out."""

    key: ObjectKey
    held: PendingRelease
    timeout: float
    pod: Pod | None = None
    reserved: Pod | None = None
    leaves_out_edits: bool = False
    notes: Sequence[str] = field(default_factory=list)


class Releaser:
    """Releases pods one at a time; `now_ms` returns the API server's time. Thread-safe.

    With `force` the plugins are not asked whether a pod may start. `leading` returns whether this
    process leads, `is_frozen` whether a namespace is frozen. `begin` sends a patch without waiting
    for the response.
    """

    def __init__(
        self,
        api: Api,
        decider: ReleaseDecider,
        now_ms: Callable[[], int],
        *,
        force: bool = False,
        leading: Callable[[], bool] = lambda: True,
        is_frozen: Callable[[str], bool] = lambda _: False,
        begin: Begin | None = None,
    ) -> None:
        self._force = force
        self._leading = leading
        self._is_frozen = is_frozen
        self._api = api
        self._decider = decider
        self._now_ms = now_ms
        self._begin = begin

    def begin(
        self, key: ObjectKey, pending: PendingRelease, on_end: Callable[[Attempt | None], None]
    ) -> bool:
        """Start to release a pod, and call `on_end` with the result.

        Returns False if that might block, because plugins are asked or a connection is opened.
        `on_end` gets None if the pod must be read. In both cases, the caller must call `release`
        instead.
        """
        if self._begin is None or pending.recheck or self._is_frozen(key[0]):
            return False

        def end(error: ClusterError | None) -> None:
            if error is None:
                on_end(Attempt(Outcome.RELEASED, pending))
            elif isinstance(error, ApiStatusError) and error.status in _NEEDS_THREAD:
                on_end(None)
            else:
                on_end(_retry(error))

        body = msgspec.json.encode(release_patch(pending, self._now_ms()))
        return self._begin(pod_path(*key), body, timeout=RELEASE_TIMEOUT, on_end=end)

    def release(
        self, key: ObjectKey, pending: PendingRelease, *, timeout: float = RELEASE_TIMEOUT
    ) -> Attempt:
        """Remove our gates from a due pod, and return the result. `timeout` is for the patch.

        Failures of the cluster and of plugins are returned, never raised.
        """
        try:
            return self._release(key, pending, timeout)
        except _EndedError as end:
            return end.attempt
        except ApiStatusError as exc:
            return Attempt(Outcome.GONE) if exc.is_not_found else _retry(exc)
        except (ClusterError, PluginFailedError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            return _retry(exc)

    def _release(self, key: ObjectKey, pending: PendingRelease, timeout: float) -> Attempt:
        release = _Release(key, pending, timeout)
        if pending.recheck:
            # The patch fails if the pod has changed since, so an old copy is as good as a new read.
            release.pod = read_copy(pending.copy) if pending.copy else self._read(key)
            release.held = self._checked(release.pod, pending)
        for _ in range(ATTEMPTS):
            edits = self._prepare(release)
            refusal = self._write(release, edits)
            if refusal is None:
                return Attempt(Outcome.RELEASED, release.held, notes=release.notes)
            pod = self._read_again(release)
            if pod.metadata.resource_version == release.held.resource_version:
                self._leave_out(release, pod, edits, refusal)
            else:
                release.held, release.reserved = self._checked(pod, release.held), None
            release.pod = pod
        self._unreserve(release.reserved)
        reason = f"the pod changed during {ATTEMPTS} patches in a row"
        return Attempt(Outcome.RETRY, release.held, reason)

    def _prepare(self, release: _Release) -> list[Operation]:
        """Reserve what the pod needs to start, and return the operations that edit it."""
        self._check_may_go(release)
        if release.pod is None or not release.held.recheck:
            return []
        if release.reserved is None and not self._force:
            self._reserve(release.pod, release.held)
            release.reserved = release.pod
        edits = list[Operation]()
        if not release.leaves_out_edits:
            edits, release.notes = self._tightened(release.pod)
        self._check_may_go(release)
        return edits

    def _check_may_go(self, release: _Release) -> None:
        """End the attempt if this process no longer leads, or the pod's namespace is frozen.

        Plugins and requests take seconds, and the process may be paused.
        """
        if not self._leading() or self._is_frozen(release.key[0]):
            self._unreserve(release.reserved)
            raise _EndedError(Attempt(Outcome.CHANGED, release.held))

    def _read_again(self, release: _Release) -> Pod:
        """Read a pod whose patch was rejected, and drop its reservation if it has changed.

        A pod without our gates keeps its reservation: an earlier patch without a response may have
        released it.
        """
        pending, reserved = release.held, release.reserved
        try:
            pod = self._read(release.key)
        except ApiStatusError as exc:
            if exc.is_not_found:
                self._unreserve(reserved)
            raise
        has_changed = pod.metadata.resource_version != pending.resource_version
        if (has_changed and is_held(pod)) or pod.metadata.uid != pending.uid:
            self._unreserve(reserved)
        return pod

    def _leave_out(
        self, release: _Release, pod: Pod, edits: Sequence[Operation], refusal: ApiStatusError
    ) -> None:
        """Leave out a part of the patch that may have caused its rejection, or end the attempt.

        The pod has not changed, so our tests did not fail. The pod keeps its reservation until the
        attempt ends, and waits for it again only after its back-off. Otherwise rejected pods would
        pass a slot to each other without backing off.
        """
        pending = release.held
        attempt = Attempt(Outcome.RETRY, pending, str(refusal), refusal.retry_after)
        if pending.annotated and pace_args.KEY not in pod.gates and not has_room(pod):
            pending = pending._replace(annotated=False)  # pace needs the release time
        elif edits:
            release.leaves_out_edits, release.notes = True, [f"{_UNTIGHTENED}: {refusal}"]
        else:
            self._unreserve(release.reserved)
            raise _EndedError(attempt)
        try:
            release.held = self._checked(pod, pending)._replace(annotated=pending.annotated)
        except _EndedError:
            self._unreserve(release.reserved)
            raise _EndedError(attempt) from None

    def _write(self, release: _Release, edits: Sequence[Operation]) -> ApiStatusError | None:
        """Send the patch, and return None if it was written, or the response that rejected it.

        Without a definite response the pod may have been released, so it keeps its reservation.
        """
        path, timeout = pod_path(*release.key), release.timeout
        operations = [*release_patch(release.held, self._now_ms()), *edits]
        try:
            return patching.write(self._api, path, operations, timeout=timeout)
        except ApiStatusError as exc:
            if _is_definite(exc):
                self._unreserve(release.reserved)
            raise

    def _unreserve(self, pod: Pod | None) -> None:
        if pod is not None and not self._force:
            self._decider.unreserve(pod)

    def allow(self, key: ObjectKey, plugin: str) -> None:
        """Record on a pod that a plugin no longer holds it. Raises ClusterError."""
        refusal: ApiStatusError | None = None
        for _ in range(ATTEMPTS):
            pod = self._read(key)
            allowed = allowed_plugins(pod.annotations)
            if plugin in allowed:
                return
            edit = SetAnnotation(ALLOWED_ANNOTATION, ",".join([plugin, *allowed]))
            metadata = pod.metadata
            operations = patching.guarded(
                metadata.uid, metadata.resource_version, patch(pod, [edit])
            )
            refusal = patching.write(self._api, pod_path(*key), operations, timeout=RELEASE_TIMEOUT)
            if refusal is None:
                return
        assert refusal is not None  # noqa: S101 - the last patch was rejected
        raise refusal

    def _tightened(self, pod: Pod) -> tuple[list[Operation], list[str]]:
        """Return the edits that plugins make at the release, and their warnings."""
        verdict = self._decider.at_release(pod)
        try:
            edits, warnings = _without_excess(pod, verdict.edits)
            return patch(pod, edits), [*verdict.warnings, *warnings]
        except Exception as exc:  # noqa: BLE001 - an invalid edit of a plugin must not hold the pod
            problem = f"{_UNTIGHTENED}: {type(exc).__name__}: {exc}"
            return [], [*verdict.warnings, problem]

    def _read(self, key: ObjectKey) -> Pod:
        # Reads do not go through admission, so they never need the longer timeout.
        return listing.read(self._api, pod_path(*key), Pod, timeout=RELEASE_TIMEOUT)

    def _checked(self, pod: Pod, pending: PendingRelease) -> PendingRelease:
        """Return a new decision about the pod; end the attempt if the pod is not due after all."""
        now_ms = None if self._force else self._now_ms()
        fresh = pending_release(pod, self._decider, now_ms)
        if fresh is None:
            raise _EndedError(Attempt(Outcome.GONE))
        if fresh.uid != pending.uid or fresh.due_ms > max(pending.due_ms, self._now_ms()):
            raise _EndedError(Attempt(Outcome.CHANGED, fresh))
        return fresh

    def _reserve(self, pod: Pod, pending: PendingRelease) -> None:
        """Reserve what the pod needs to start; end the attempt if the pod must wait for that."""
        wait = self._decider.reserve(pod, self._now_ms())
        if wait is not None:
            delayed = pending._replace(
                due_ms=wait.at_ms,
                problem=wait.problem,
                reason=wait.reason,
                open_ended=wait.open_ended,
            )
            raise _EndedError(Attempt(Outcome.CHANGED, delayed))


_UNTIGHTENED = "released without what was to be added"


class _EndedError(Exception):
    """Raised to end an attempt with its result."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__()
        self.attempt = attempt


def _retry(exc: Exception) -> Attempt:
    return Attempt(Outcome.RETRY, None, str(exc), getattr(exc, "retry_after", None))


def _is_definite(exc: ApiStatusError) -> bool:
    """Return whether nothing was written. A 503 without a Kubernetes reason is a proxy's."""
    if exc.status == 503:
        return bool(exc.reason)
    return exc.status not in _NO_ANSWER or _BY_WEBHOOK in str(exc)


def has_room(pod: Pod, annotations: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether a pod has room for the release time annotation and for `annotations`."""
    stamp = {RELEASED_ANNOTATION: durations.canonical_instant(NEVER_MS)}
    return are_storable({**pod.annotations, **stamp, **annotations})


def _without_excess(pod: Pod, edits: Sequence[Edit]) -> tuple[Sequence[Edit], Sequence[str]]:
    """Return the edits, without annotations if the pod has no room for them, and warnings.

    Other edits must not be lost.
    """
    annotations = {edit.key: edit.value for edit in edits if isinstance(edit, SetAnnotation)}
    if not annotations or has_room(pod, annotations):
        return edits, ()
    other_edits = [edit for edit in edits if not isinstance(edit, SetAnnotation)]
    return other_edits, [
        f"released without {', '.join(annotations)}: the pod's annotations leave no room"
    ]


def _ungated(gates: Sequence[str]) -> list[Operation]:
    """Return the operations that remove our gates. `guarded` adds the test of the version."""
    if len(gates) > MAX_GATES:  # the API server accepts up to 10,000 operations
        other_gates = [{"name": gate} for gate in gates if not gate.startswith(OWN_PREFIX)]
        return [{"op": "replace", "path": "/spec/schedulingGates", "value": other_gates}]
    operations: list[Operation] = []
    for index in reversed(range(len(gates))):  # from the end, to keep indexes valid
        if gates[index].startswith(OWN_PREFIX):
            path = f"/spec/schedulingGates/{index}"
            operations.append({"op": "test", "path": path, "value": {"name": gates[index]}})
            operations.append({"op": "remove", "path": path})
    return operations


def release_patch(pending: PendingRelease, now_ms: int) -> Sequence[Operation]:
    """Return the patch that removes only our gates, from exactly this version of the pod.

    The patch records the time, which shows that Holdfast removed the gates, and removes the label
    of held pods.
    """
    operations = _ungated(pending.gates)
    if pending.annotated:
        path = f"/metadata/annotations/{pointer(RELEASED_ANNOTATION)}"
        released_at = durations.canonical_instant(now_ms)
        operations.append({"op": "add", "path": path, "value": released_at})
    if pending.labelled:
        operations.append({"op": "remove", "path": f"/metadata/labels/{pointer(HELD_LABEL)}"})
    return patching.guarded(pending.uid, pending.resource_version, operations)
