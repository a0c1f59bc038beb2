"""Creation times of the revisions of pods: their ReplicaSet, ControllerRevision or Job.

Each revision is looked up in a thread while its pods wait. A pod refers to a ControllerRevision by
name, without a UID. The name is derived from the template, so a later revision may reuse it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.webhook.errors import (
    ApiStatusError,
    ClusterError,
    HandleError,
    InvalidValueError,
    LookupLimitError,
)
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.model import durations, syntax
from holdfast.webhook.model.annotations import DOMAIN
from holdfast.webhook.model.objects import REVISION_LABEL, ObjectKey, Pod
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.threads import ThreadPool

DELAY_FROM = f"{DOMAIN}/delay-from"
POD, OWNER = "pod", "owner"

_KEPT = 10_000
"""Maximum number of cached revisions."""
_UID_LENGTH = 64
"""Maximum length of an owner's UID; those that the API server assigns have 36 characters."""
_FAILED_MS = 60_000
"""How long a failed lookup is cached."""
_MINUTE_MS = 60_000
_PAUSES = (1.0, 4.0)
"""Seconds before each retry of a failed lookup."""
_THREADS = 4
_FROM_POD = "the delay counts from the pod's creation"


@dataclass(frozen=True, slots=True)
class Revision:
    """The object whose creation time counts; an empty `uid` matches any object of that name.

    Without a UID, a result is valid only for `pods`: those of one controller that were created in
    the same minute.
    """

    path: str
    what: str
    uid: str = ""
    pods: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Origin:
    """The creation time from which a delay counts, or None for the pod's; the remark explains it.

    Valid until `until_ms`; None means forever. If `is_latest` is set, the lookup failed, and the
    delay may count from an earlier time.
    """

    created_ms: int | None
    remark: str
    until_ms: int | None = None
    is_latest: bool = False


class Origins:
    """Looks up and caches when the revisions of pods were created. Thread-safe."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._pool = ThreadPool(_THREADS, "delay-from")
        self._lock = threading.Lock()
        self._known: dict[Revision, Origin] = {}
        self._asking: dict[Revision, set[ObjectKey]] = {}
        self._queued: dict[str, deque[Revision]] = {}
        """Revisions to look up, by namespace; the namespace served last is at the end."""

    def find(self, pod: Pod) -> Origin | None:
        """Return what a pod's delay counts from, or None while it is looked up.

        The pod is rechecked after the lookup.
        """
        revision = revision_of(pod)
        if revision is None:
            return Origin(None, f"{_FROM_POD}: its owner has no revisions")
        try:
            now_ms, _ = self._handle.bounds_ms()
        except HandleError:
            return self._find_at_once(revision)
        with self._lock:
            origin = self._known.get(revision)
            if origin is not None and (origin.until_ms is None or now_ms < origin.until_ms):
                return origin
            is_first = revision not in self._asking
            self._asking.setdefault(revision, set()).add(pod.key)
            if is_first:
                self._queued.setdefault(pod.key[0], deque()).append(revision)
        if is_first:
            self._pool.submit(self._look_up_next)
        return None

    def _find_at_once(self, revision: Revision) -> Origin:
        """Look up a revision synchronously, in a command, where held pods do not wait for it."""
        if revision not in self._known:
            try:
                origin = _origin(revision, self._handle.lookup.get(revision.path) or {})
            except (ClusterError, HandleError) as exc:
                remark = f"at the latest: the delay counts from {revision.what}"
                origin = Origin(None, remark, is_latest=True)
                if isinstance(exc, LookupLimitError):
                    return origin
            self._known[revision] = origin
        return self._known[revision]

    def _look_up_next(self) -> None:
        revision = self._take()
        origin = self._read(revision)
        with self._lock:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[revision] = origin
            pods = self._asking.pop(revision)
        for key in pods:
            self._handle.waiting.recheck(key)

    def _take(self) -> Revision:
        """Remove and return the next revision, round-robin across namespaces."""
        with self._lock:
            namespace = next(iter(self._queued))
            revisions = self._queued.pop(namespace)
            revision = revisions.popleft()
            if revisions:
                self._queued[namespace] = revisions
        return revision

    def _read(self, revision: Revision) -> Origin:
        problem: ClusterError | None = None
        for pause in (0.0, *_PAUSES):
            threading.Event().wait(pause)
            try:
                return _origin(revision, self._handle.lookup.get(revision.path) or {})
            except ClusterError as exc:
                problem = exc
                if isinstance(exc, ApiStatusError) and exc.status == 403:
                    break
        until_ms = self._handle.bounds_ms()[0] + _FAILED_MS
        return Origin(None, f"{_FROM_POD}: {revision.what} cannot be read: {problem}", until_ms)


def revision_of(pod: Pod) -> Revision | None:
    """Return the revision of a pod's controller; None for other owners."""
    metadata = pod.metadata
    owners = [reference for reference in metadata.owner_references or () if reference.controller]
    if not owners:
        return None
    (owner, *_) = owners
    # The API server accepts any text here: a query string, an invalid name, or a UID of 1 MB, which
    # would stay in the cache.
    if not syntax.is_object_name(owner.name) or len(owner.uid) > _UID_LENGTH:
        return None
    group = owner.api_version.rpartition("/")[0]
    if (group, owner.kind) in {("apps", "ReplicaSet"), ("batch", "Job")}:
        resource = f"{owner.kind.lower()}s"
        path = api_path(f"{group}/v1", resource, metadata.namespace, owner.name)
        return Revision(path, f"{owner.kind} {owner.name}", owner.uid)
    label = pod.labels.get(REVISION_LABEL, "")
    if group != "apps" or owner.kind not in {"StatefulSet", "DaemonSet"} or not label:
        return None
    # A StatefulSet's label holds the full name, a DaemonSet's only the hash.
    name = label if owner.kind == "StatefulSet" else f"{owner.name}-{label}"
    path = api_path("apps/v1", "controllerrevisions", metadata.namespace, name)
    pods = owner.uid, pod.created_ms // _MINUTE_MS
    return Revision(path, f"ControllerRevision {name}", pods=pods)


def _origin(revision: Revision, response: Mapping[str, object]) -> Origin:
    metadata = response.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if not metadata or (revision.uid and metadata.get("uid") != revision.uid):
        return Origin(None, f"{_FROM_POD}: {revision.what} was deleted")
    try:
        created_ms = durations.parse_instant(str(metadata.get("creationTimestamp")))
    except InvalidValueError as exc:
        return Origin(None, f"{_FROM_POD}: {revision.what}: {exc}")
    instant = durations.canonical_instant(created_ms)
    return Origin(created_ms, f"the delay counts from {revision.what}, created {instant}")
