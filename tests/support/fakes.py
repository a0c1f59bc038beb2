"""A fake API server and a fake lookup for unit tests."""

import copy
import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import jsonpatch
import jsonpointer

from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.kube.api import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    READ_TIMEOUT,
    Query,
    pod_path,
)
from holdfast.webhook.model.objects import ObjectKey

Document = dict[str, Any]
PATCH_ERRORS = (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException)
"""What `apply_patch` raises when a patch does not apply."""
WATCH_POLL = 0.002
PODS = "/api/v1/pods"
NAMESPACES = "/api/v1/namespaces"
KUBEVIRT = "/apis/kubevirt.io/v1"
COLLECTIONS = (
    PODS,
    NAMESPACES,
    "/api/v1/nodes",
    "/apis/apps/v1/replicasets",
    f"{KUBEVIRT}/virtualmachineinstances",
    f"{KUBEVIRT}/virtualmachines",
    f"{KUBEVIRT}/virtualmachineinstancemigrations",
)
GROUPS = "/apis"
ANNOTATION_BYTES = 256 << 10
"""The API server's limit (TotalAnnotationSizeLimitB)."""


def apply_patch(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    return jsonpatch.apply_patch(document, copy.deepcopy(list(operations)))


class FakeApi:
    """An API server backed by a dictionary from API path to object.

    It implements `holdfast.webhook.kube.api.Api`: lists in pages, watches, JSON patches,
    server-side apply, finalizers and resource versions.

    A test injects failures with `before` and `after`. They queue actions, one for each request of
    a method, which may change the cluster, or raise the error that the request then raises. An
    error raised after the request was carried out is a lost response. `on_request` and
    `on_response` are called for every request. `answers` are raw responses to a GET. A watch
    streams an item of `streams`, or the changes of the objects if there is none. `kinds` has the
    collections that are served.
    """

    def __init__(self, *pods: Document) -> None:
        self.objects: dict[str, Document] = {}
        self.managers: dict[str, str] = {}
        self.kinds = set(COLLECTIONS)
        self.page_size = 500
        self.created: Callable[[], float] | None = None
        """Gives the creationTimestamp of objects created by dry run, if that is allowed."""
        self.answers: dict[str, bytes] = {}
        self.streams: deque[Iterable[bytes | Exception]] = deque()
        self.on_request: Callable[[str, str], None] = lambda _method, _path: None
        self.on_response: Callable[[str, str], None] = lambda _method, _path: None
        self.requests: list[tuple[str, str]] = []
        self.queries: list[Query] = []
        self.bodies: list[bytes] = []
        self.patched: list[tuple[str, list[Document]]] = []
        self._timeouts: list[tuple[str, float]] = []
        self._before: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._after: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._versions = itertools.count(100)
        self._events: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._closed = False
        for pod in pods:
            self.put_pod(pod)

    # --- what a test does ----------------------------------------------------------------------

    def before(self, method: str, *actions: Callable[[], None]) -> None:
        self._before[method].extend(actions)

    def after(self, method: str, *actions: Callable[[], None]) -> None:
        self._after[method].extend(actions)

    def forget_actions(self) -> None:
        self._before.clear()
        self._after.clear()

    def put(self, path: str, document: Document) -> Document:
        """Store a copy of an object under a new resourceVersion, and notify the watches."""
        with self._changed:
            document = copy.deepcopy(document)
            metadata = document.setdefault("metadata", {})
            metadata.setdefault("name", path.rpartition("/")[2])
            version = next(self._versions)
            metadata.setdefault("uid", f"uid-{version}")
            metadata["resourceVersion"] = str(version)
            kind = "MODIFIED" if path in self.objects else "ADDED"
            self.objects[path] = document
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
                kind = "DELETED"
                del self.objects[path]
            self._notify(kind, path, document)
            return document

    def put_pod(self, pod: Document) -> Document:
        return self.put(pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"]), pod)

    def change(self, path: str, act: Callable[[Document], None]) -> None:
        with self._changed:
            document = copy.deepcopy(self.objects[path])
            act(document)
            self.put(path, document)

    def annotate(self, key: ObjectKey, **annotations: str | None) -> None:
        """Change a pod's annotations; None removes one."""
        sent = {"metadata": {"annotations": annotations}}
        self.change(pod_path(*key), lambda pod: _annotate(pod, sent))

    def delete(self, target: str | ObjectKey) -> None:
        """Delete an object or a pod. One with finalizers only gets a deletionTimestamp."""
        path = target if isinstance(target, str) else pod_path(*target)
        self.change(
            path,
            lambda one: one["metadata"].setdefault("deletionTimestamp", "2026-03-01T12:00:00Z"),
        )

    def vanish(self, path: str) -> None:
        """Remove an object even if it has finalizers."""
        with self._changed:
            self._notify("DELETED", path, self.objects.pop(path))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- what a test looks at ------------------------------------------------------------------

    @property
    def pods(self) -> dict[ObjectKey, Document]:
        return {_names(path): pod for path, pod in self._of(PODS)}

    def gates(self, key: ObjectKey) -> list[str]:
        pod = self.objects[pod_path(*key)]
        return [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]

    def all(self, collection: str) -> list[Document]:
        return [one for _, one in self._of(collection)]

    def patience(self, method: str) -> list[float]:
        return [timeout for each, timeout in self._timeouts if each == method]

    def count(self, method: str) -> int:
        return sum(method == each for each, _ in self.requests)

    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] != "GET"]

    # --- holdfast.webhook.kube.api.Api ------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> bytes:
        self.requests.append((method, path))
        self._timeouts.append((method, timeout))
        self.queries.append(dict(query or {}))
        self.on_request(method, path)
        if self._before[method]:
            self._before[method].popleft()()
        if method == "GET" and path in self.answers:
            return self.answers[path]
        if body is not None:
            self.bodies.append(body)
        sent: Any = json.loads(body) if body else {}
        with self._changed:
            if method == "GET":
                answer = self._get(path, query or {})
            elif method == "PUT":
                answer = self._replace(path, sent)
            elif method == "POST":
                answer = self._create_by_dry_run(sent, query or {})
            elif method == "DELETE":
                answer = self._existing(path)
                self.vanish(path)
            elif content_type in {JSON_PATCH, MERGE_PATCH}:
                answer = self._patch(path, sent, str((query or {}).get("fieldManager", "")))
            else:
                assert (method, content_type) == ("PATCH", APPLY_PATCH)
                answer = self._apply(path, sent, dict(query or {}))
        if self._after[method]:
            self._after[method].popleft()()
        self.on_response(method, path)
        return json.dumps(answer).encode()

    def lines(
        self,
        path: str,
        *,
        query: Query,
        timeout: float,  # noqa: ARG002 - the protocol's
    ) -> Iterator[bytes]:
        self.requests.append(("WATCH", path))
        self.queries.append(dict(query))
        self.on_request("WATCH", path)
        if self._before["WATCH"]:
            self._before["WATCH"].popleft()()
        if self.streams:
            for line in self.streams.popleft():
                if isinstance(line, Exception):
                    raise line
                yield line
            return
        self._check_served(path)
        seen = int(query["resourceVersion"])
        while not self._closed:
            with self._changed:
                if path not in self.kinds:
                    return
                fresh = [each for each in self._events[path] if each[0] > seen]
                if not fresh:
                    self._changed.wait(WATCH_POLL)
            for version, line in fresh:
                seen = version
                yield _as_selected(line, query)

    # --- requests ------------------------------------------------------------------------------

    def _get(self, path: str, query: Query) -> Document:
        if path in self.objects:
            return self.objects[path]
        if path == "/version":
            return {"major": "1", "minor": "36"}
        if path in {GROUPS, KUBEVIRT}:
            return self._discovery(path)
        if path in COLLECTIONS:
            self._check_served(path)
            return self._page(path, query)
        if path.count("/") == _collection(path).count("/") + 2:
            self._check_served(_collection(path))
            found = [one for at, one in self.objects.items() if at.startswith(f"{path}/")]
            return {"metadata": {}, "items": [one for one in found if _is_selected(one, query)]}
        return self._existing(path)

    def _existing(self, path: str) -> Document:
        if _collection(path) in COLLECTIONS:
            self._check_served(_collection(path))
        if path not in self.objects:
            raise ApiStatusError(f"HTTP 404: {path} not found", status=404, reason="NotFound")
        return self.objects[path]

    def _check_served(self, collection: str) -> None:
        if collection not in self.kinds:
            raise ApiStatusError("HTTP 404: 404 page not found", status=404)

    def _discovery(self, path: str) -> Document:
        """List the API groups, or KubeVirt's kinds."""
        kinds = [kind.rpartition("/")[2] for kind in self.kinds if kind.startswith(KUBEVIRT)]
        if path == GROUPS:
            groups = ["apps", "kubevirt.io"] if kinds else ["apps"]
            return {"groups": [{"name": group} for group in groups]}
        if not kinds:
            raise ApiStatusError("HTTP 404: 404 page not found", status=404)
        return {"resources": [{"name": kind} for kind in kinds]}

    def _page(self, collection: str, query: Query) -> Document:
        found = [one for one in self.all(collection) if _is_selected(one, query)]
        start = int(query.get("continue", 0))
        end = start + min(int(query.get("limit", self.page_size)), self.page_size)
        metadata = {"resourceVersion": str(next(self._versions))}
        if end < len(found):
            metadata["continue"] = str(end)
        return {"metadata": metadata, "items": found[start:end] or None}

    def _replace(self, path: str, sent: Document) -> Document:
        version = sent["metadata"].get("resourceVersion", "")
        known = self.objects.get(path)
        if (known["metadata"]["resourceVersion"] if known else "") != version:
            raise _conflict()
        if known:
            sent["metadata"]["uid"] = known["metadata"]["uid"]
        return self.put(path, sent)

    def _create_by_dry_run(self, sent: Document, query: Query) -> Document:
        if self.created is None:
            raise status_error(403)
        assert query == {"dryRun": "All"}
        second = datetime.fromtimestamp(int(self.created()), UTC).isoformat()
        sent["metadata"]["creationTimestamp"] = second.replace("+00:00", "Z")
        return sent

    def clock(self) -> str:
        """Return a time after all times returned before."""
        moment = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=next(self._versions))
        return moment.isoformat().replace("+00:00", "Z")

    def own_annotations(self, document: Document, before: Document, manager: str) -> None:
        """Record who changed annotations in `managedFields`, as the API server does."""
        old, new = (one["metadata"].get("annotations") or {} for one in (before, document))
        changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        if not changed:
            return
        owned: dict[str, set[str]] = {manager: set()}
        for entry in document["metadata"].get("managedFields", ()):
            keys = entry["fieldsV1"]["f:metadata"]["f:annotations"]
            owned[entry["manager"]] = {key.removeprefix("f:") for key in keys} - changed
        owned[manager] |= changed & {*new}
        times = {
            one["manager"]: one["time"] for one in document["metadata"].get("managedFields", ())
        }
        times[manager] = self.clock()
        document["metadata"]["managedFields"] = [
            {
                "manager": name,
                "time": times[name],
                "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in keys}}},
            }
            for name, keys in owned.items()
            if keys
        ]

    def _patch(self, path: str, operations: list[Document] | Document, manager: str) -> Document:
        if isinstance(operations, dict):  # a merge patch
            self.change(path, lambda found: _annotate(found, operations))
            return self._existing(path)
        try:
            document: Document = apply_patch(self._existing(path), operations)
        except PATCH_ERRORS as exc:
            text = f"HTTP 422: the server rejected our request due to an error in it: {exc}"
            raise ApiStatusError(text, status=422, reason="Invalid") from None
        annotations = document["metadata"].get("annotations") or {}
        if (
            sum(len(f"{key}{text}".encode()) for key, text in annotations.items())
            > ANNOTATION_BYTES
        ):
            raise ApiStatusError("HTTP 422: annotations: Too long", status=422, reason="Invalid")
        if manager:
            self.own_annotations(document, self._existing(path), manager)
        if not document.get("spec", {}).get("schedulingGates", True):
            del document["spec"]["schedulingGates"]
        self.patched.append((path, operations))
        return self.put(path, document)

    def _apply(self, path: str, sent: Document, query: Document) -> Document:
        """Merge like server-side apply: keep additions of others, remove what we left out."""
        known = self.objects.get(path)
        manager = query["fieldManager"]
        owner = self.managers.get(path, manager)
        if known is not None and query.get("force") != "true" and owner != manager:
            raise _conflict()
        version = sent["metadata"].pop("resourceVersion", None)
        if known is not None and version not in {None, known["metadata"]["resourceVersion"]}:
            raise _conflict()
        if query.get("dryRun"):
            return sent
        self.managers[path] = manager
        before = dict(known or {})
        applied = before.get("metadata", {}).get("managedFields", {})
        merged = _merged(before, sent, applied)
        merged["metadata"]["managedFields"] = sent
        return self.put(path, merged)

    def _of(self, collection: str) -> list[tuple[str, Document]]:
        with self._changed:
            return [each for each in self.objects.items() if _collection(each[0]) == collection]

    def _notify(self, kind: str, path: str, document: Document) -> None:
        version = next(self._versions) if kind == "DELETED" else int(_version(document))
        self._events[_collection(path)].append((version, event(kind, document)))
        self._changed.notify_all()


def _version(document: Document) -> str:
    return str(document["metadata"]["resourceVersion"])


def _names(path: str) -> ObjectKey:
    _, _, _, _, namespace, _, name = path.split("/")
    return unquote(namespace), unquote(name)


def _collection(path: str) -> str:
    """Return the path that lists all objects of an object's kind."""
    head, _, tail = path.partition("/namespaces/")
    return f"{head}/{tail.split('/')[1]}" if "/" in tail else path.rpartition("/")[0]


def _is_selected(one: Document, query: Query) -> bool:
    running: bool = one.get("status", {}).get("phase") == "Running"
    bound = bool(one.get("spec", {}).get("nodeName"))
    unbound_only = str(query.get("fieldSelector", "")).startswith("spec.nodeName=")
    selectors = str(query.get("labelSelector", "")).split(",")
    selected = all(_has_label(one, each, running=running) for each in selectors)
    return selected and not (unbound_only and bound)


def _has_label(one: Document, selector: str, *, running: bool) -> bool:
    key, equals, value = selector.partition("=")
    labelled = one["metadata"].get("labels", {}).get(key.removesuffix("!")) == value
    return not (labelled or running) if key.endswith("!") else labelled or not equals


def _as_selected(line: bytes, query: Query) -> bytes:
    """Report an object that is no longer selected as deleted, as a watch does."""
    changed = json.loads(line)["object"]
    return line if _is_selected(changed, query) else event("DELETED", changed)


def _annotate(found: Document, sent: Document) -> None:
    merged = found["metadata"].get("annotations", {}) | sent.get("metadata", {}).get(
        "annotations", {}
    )
    kept = {name: value for name, value in merged.items() if value is not None}
    found["metadata"]["annotations"] = kept


def _merged(known: Any, sent: Any, applied: Any) -> Any:
    """Merge a sent value into the stored one; `applied` is the value of the previous apply."""
    if isinstance(sent, dict) and isinstance(known, dict):
        before = applied if isinstance(applied, dict) else {}
        kept = {key: one for key, one in known.items() if key in sent or key not in before}
        return kept | {
            key: _merged(known.get(key), one, before.get(key)) for key, one in sent.items()
        }
    if _is_named(sent) and _is_named(known):
        known, sent, applied = (
            {one["name"]: one for one in each or ()} for each in (known, sent, applied)
        )
        return list(_merged(known, sent, applied).values())
    return copy.deepcopy(sent)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value)


class FakeLookup:
    """Objects by API path (`holdfast.webhook.framework.plugin.Lookup`).

    `asked` has the paths that were looked up. Each lookup first raises the next of `failures`.
    """

    def __init__(self, objects: Mapping[str, Document] | None = None) -> None:
        self.objects = dict(objects or {})
        self.asked: list[str] = []
        self.failures: deque[Exception] = deque()

    def get(self, path: str, *, max_age: float = 0.0) -> Document | None:  # noqa: ARG002
        self.asked.append(path)
        if self.failures:
            raise self.failures.popleft()
        return copy.deepcopy(self.objects.get(path))


def event(kind: str, document: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode()


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def status_error(
    status: int, *, retry_after: float | None = None, reason: str = ""
) -> ApiStatusError:
    text = f"HTTP {status}: scripted"
    return ApiStatusError(text, status=status, retry_after=retry_after, reason=reason)


def _conflict() -> ApiStatusError:
    return ApiStatusError("HTTP 409: conflict", status=409, reason="Conflict")


def unreachable() -> UnreachableError:
    return UnreachableError("https://10.0.0.1 does not answer: timed out")
