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
from holdfast.webhook.kube.events import Event, EventRecorder
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
        patch = {"metadata": {"annotations": annotations}}
        self.change(pod_path(*key), lambda pod: _annotate(pod, patch))

    def delete(self, target: str | ObjectKey) -> None:
        """Delete an object or a pod. One with finalizers only gets a deletionTimestamp."""
        path = target if isinstance(target, str) else pod_path(*target)
        self.change(
            path,
            lambda document: document["metadata"].setdefault(
                "deletionTimestamp", "2026-03-01T12:00:00Z"
            ),
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
        return [document for _, document in self._of(collection)]

    def patience(self, method: str) -> list[float]:
        return [timeout for request_method, timeout in self._timeouts if request_method == method]

    def count(self, method: str) -> int:
        return sum(method == request_method for request_method, _ in self.requests)

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
        payload: Any = json.loads(body) if body else {}
        with self._changed:
            if method == "GET":
                response = self._get(path, query or {})
            elif method == "PUT":
                response = self._replace(path, payload)
            elif method == "POST":
                response = self._create_by_dry_run(payload, query or {})
            elif method == "DELETE":
                response = self._existing(path)
                self.vanish(path)
            elif content_type in {JSON_PATCH, MERGE_PATCH}:
                response = self._patch(path, payload, str((query or {}).get("fieldManager", "")))
            else:
                assert (method, content_type) == ("PATCH", APPLY_PATCH)
                response = self._apply(path, payload, dict(query or {}))
        if self._after[method]:
            self._after[method].popleft()()
        self.on_response(method, path)
        return json.dumps(response).encode()

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
        last_version = int(query["resourceVersion"])
        while not self._closed:
            with self._changed:
                if path not in self.kinds:
                    return
                entries = [entry for entry in self._events[path] if entry[0] > last_version]
                if not entries:
                    self._changed.wait(WATCH_POLL)
            for version, line in entries:
                last_version = version
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
            documents = [
                document for key, document in self.objects.items() if key.startswith(f"{path}/")
            ]
            return {
                "metadata": {},
                "items": [document for document in documents if _is_selected(document, query)],
            }
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
        documents = [document for document in self.all(collection) if _is_selected(document, query)]
        start = int(query.get("continue", 0))
        end = start + min(int(query.get("limit", self.page_size)), self.page_size)
        metadata = {"resourceVersion": str(next(self._versions))}
        if end < len(documents):
            metadata["continue"] = str(end)
        return {"metadata": metadata, "items": documents[start:end] or None}

    def _replace(self, path: str, document: Document) -> Document:
        version = document["metadata"].get("resourceVersion", "")
        stored = self.objects.get(path)
        if (stored["metadata"]["resourceVersion"] if stored else "") != version:
            raise _conflict()
        if stored:
            document["metadata"]["uid"] = stored["metadata"]["uid"]
        return self.put(path, document)

    def _create_by_dry_run(self, document: Document, query: Query) -> Document:
        if self.created is None:
            raise status_error(403)
        assert query == {"dryRun": "All"}
        second = datetime.fromtimestamp(int(self.created()), UTC).isoformat()
        document["metadata"]["creationTimestamp"] = second.replace("+00:00", "Z")
        return document

    def clock(self) -> str:
        """Return a time after all times returned before."""
        moment = datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=next(self._versions))
        return moment.isoformat().replace("+00:00", "Z")

    def own_annotations(self, document: Document, old_document: Document, manager: str) -> None:
        """Record who changed annotations in `managedFields`, as the API server does."""
        old, new = (
            version["metadata"].get("annotations") or {} for version in (old_document, document)
        )
        changed_keys = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        if not changed_keys:
            return
        owned_keys: dict[str, set[str]] = {manager: set()}
        for entry in document["metadata"].get("managedFields", ()):
            keys = entry["fieldsV1"]["f:metadata"]["f:annotations"]
            owned_keys[entry["manager"]] = {key.removeprefix("f:") for key in keys} - changed_keys
        owned_keys[manager] |= changed_keys & {*new}
        times = {
            record["manager"]: record["time"]
            for record in document["metadata"].get("managedFields", ())
        }
        times[manager] = self.clock()
        document["metadata"]["managedFields"] = [
            {
                "manager": name,
                "time": times[name],
                "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in keys}}},
            }
            for name, keys in owned_keys.items()
            if keys
        ]

    def _patch(self, path: str, operations: list[Document] | Document, manager: str) -> Document:
        if isinstance(operations, dict):  # a merge patch
            self.change(path, lambda stored: _annotate(stored, operations))
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

    def _apply(self, path: str, document: Document, query: Document) -> Document:
        """Merge like server-side apply: keep additions of others, remove what we left out."""
        stored = self.objects.get(path)
        manager = query["fieldManager"]
        owner = self.managers.get(path, manager)
        if stored is not None and query.get("force") != "true" and owner != manager:
            raise _conflict()
        version = document["metadata"].pop("resourceVersion", None)
        if stored is not None and version not in {None, stored["metadata"]["resourceVersion"]}:
            raise _conflict()
        if query.get("dryRun"):
            return document
        self.managers[path] = manager
        before = dict(stored or {})
        applied = before.get("metadata", {}).get("managedFields", {})
        merged = _merged(before, document, applied)
        merged["metadata"]["managedFields"] = document
        return self.put(path, merged)

    def _of(self, collection: str) -> list[tuple[str, Document]]:
        with self._changed:
            return [item for item in self.objects.items() if _collection(item[0]) == collection]

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


def _is_selected(document: Document, query: Query) -> bool:
    running: bool = document.get("status", {}).get("phase") == "Running"
    bound = bool(document.get("spec", {}).get("nodeName"))
    unbound_only = str(query.get("fieldSelector", "")).startswith("spec.nodeName=")
    selectors = str(query.get("labelSelector", "")).split(",")
    selected = all(_has_label(document, selector, running=running) for selector in selectors)
    return selected and not (unbound_only and bound)


def _has_label(document: Document, selector: str, *, running: bool) -> bool:
    key, equals, value = selector.partition("=")
    labelled = document["metadata"].get("labels", {}).get(key.removesuffix("!")) == value
    return not (labelled or running) if key.endswith("!") else labelled or not equals


def _as_selected(line: bytes, query: Query) -> bytes:
    """Report an object that is no longer selected as deleted, as a watch does."""
    document = json.loads(line)["object"]
    return line if _is_selected(document, query) else event("DELETED", document)


def _annotate(document: Document, patch: Document) -> None:
    merged = document["metadata"].get("annotations", {}) | patch.get("metadata", {}).get(
        "annotations", {}
    )
    annotations = {name: value for name, value in merged.items() if value is not None}
    document["metadata"]["annotations"] = annotations


def _merged(stored: Any, sent: Any, applied: Any) -> Any:
    """Merge a sent value into the stored one; `applied` is the value of the previous apply."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        previous = applied if isinstance(applied, dict) else {}
        merged = {key: value for key, value in stored.items() if key in sent or key not in previous}
        return merged | {
            key: _merged(stored.get(key), value, previous.get(key)) for key, value in sent.items()
        }
    if _is_named(sent) and _is_named(stored):
        stored, sent, applied = (
            {element["name"]: element for element in elements or ()}
            for elements in (stored, sent, applied)
        )
        return list(_merged(stored, sent, applied).values())
    return copy.deepcopy(sent)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(element, dict) and "name" in element for element in value
    )


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


class FakeRecorder(EventRecorder):
    """Keeps all Events."""

    full = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    def run(self, _stop: threading.Event) -> None: ...

    def notes(self, reason: str) -> list[str]:
        return [event.note for event in self.events if event.reason == reason]


def event(kind: str, document: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode()


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def failing(*paths: str, status: int = 404, reason: str = "") -> Callable[[str, str], None]:
    """Make an `on_request` that fails requests of these paths; by default as a proxy does."""

    def act(_method: str, path: str) -> None:
        if path in paths:
            raise status_error(status, reason=reason)

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
