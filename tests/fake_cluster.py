"""A stand-in for an API server with objects of any kind: lists, watches, patches, finalizers."""

from __future__ import annotations

import copy
import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fakes import WATCH_POLL, Document, PatchError, apply_patch, event
from webhook.cluster import JSON, JSON_PATCH, READ_TIMEOUT, Query
from webhook.errors import ApiStatusError

PODS = "/api/v1/pods"
KUBEVIRT = "/apis/kubevirt.io/v1"
COLLECTIONS = (
    PODS,
    "/api/v1/nodes",
    f"{KUBEVIRT}/virtualmachineinstances",
    f"{KUBEVIRT}/virtualmachines",
    f"{KUBEVIRT}/virtualmachineinstancemigrations",
)
GROUPS = "/apis"


class FakeCluster:
    """Objects by their API path (`webhook.cluster.Api`).

    `before` and `after` hold what is to happen ahead of, or behind, the next requests of a method;
    what is raised there the request raises, as what `judge` raises of any. `kinds` are the
    collections that are served.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {}
        self.kinds = set(COLLECTIONS)
        self.requests: list[tuple[str, str]] = []
        self.patched: list[tuple[str, list[Document]]] = []
        self.timeouts: list[tuple[str, float]] = []
        """How long each request would have waited: seconds."""
        self.before: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self.after: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self.judge: Callable[[str, str], None] = lambda _method, _path: None
        self._versions = itertools.count(100)
        self._events: dict[str, list[bytes]] = defaultdict(list)
        self._changed = threading.Condition()
        self._closed = False

    # --- what a test does ----------------------------------------------------------------------

    def put(self, path: str, document: Document) -> Document:
        """Store an object as it is, with a resourceVersion of its own, and tell the watches."""
        with self._changed:
            document = copy.deepcopy(document)
            metadata = document["metadata"]
            metadata["resourceVersion"] = str(next(self._versions))
            kind = "MODIFIED" if path in self.objects else "ADDED"
            self.objects[path] = document
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
                kind = "DELETED"
                del self.objects[path]
            self._tell(kind, path, document)
            return document

    def change(self, path: str, act: Callable[[Document], None]) -> None:
        """Change an object, as another writer would."""
        with self._changed:
            document = copy.deepcopy(self.objects[path])
            act(document)
            self.put(path, document)

    def delete(self, path: str) -> None:
        """Delete an object, as far as its finalizers let it go."""
        self.change(
            path,
            lambda one: one["metadata"].setdefault("deletionTimestamp", "2026-03-01T12:00:00Z"),
        )

    def vanish(self, path: str) -> None:
        """Remove an object whatever its finalizers say."""
        with self._changed:
            self._tell("DELETED", path, self.objects.pop(path))

    def all(self, collection: str) -> list[Document]:
        with self._changed:
            return [one for path, one in self.objects.items() if _collection(path) == collection]

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def forget_requests(self) -> None:
        self.requests.clear()
        self.patched.clear()

    # --- webhook.cluster.Api -------------------------------------------------------------------

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
        self.timeouts.append((method, timeout))
        self.judge(method, path)
        if self.before[method]:
            self.before[method].popleft()()
        with self._changed:
            if method == "GET" and path in {GROUPS, KUBEVIRT}:
                answer: Any = self._served(path)
            elif method == "GET" and path in COLLECTIONS:
                answer = self._list(path, query or {})
            elif method == "GET" and path.count("/") == _collection(path).count("/") + 2:
                answer = self._list_namespace(path)
            else:
                self._check(_collection(path))
                if path not in self.objects:
                    text = f"HTTP 404: {path} not found"
                    raise ApiStatusError(text, status=404, reason="NotFound")
                answer = self.objects[path]
                if method == "PATCH":
                    assert content_type == JSON_PATCH
                    assert body is not None
                    answer = self._patch(path, json.loads(body))
        if self.after[method]:
            self.after[method].popleft()()
        return json.dumps(answer).encode()

    def lines(
        self,
        path: str,
        *,
        query: Query,
        timeout: float,  # noqa: ARG002 - the protocol's
    ) -> Iterator[bytes]:
        self.requests.append(("WATCH", path))
        self._check(path)
        seen = int(query["resourceVersion"])
        while not self._closed:
            with self._changed:
                if path not in self.kinds:
                    return
                fresh, seen = self._events[path][seen:], len(self._events[path])
                if not fresh:
                    self._changed.wait(WATCH_POLL)
            yield from (_as_selected(line, query) for line in fresh)

    def _list(self, collection: str, query: Query) -> Document:
        self._check(collection)
        items = [one for one in self.all(collection) if _selected(one, query)]
        return {"metadata": {"resourceVersion": str(len(self._events[collection]))}, "items": items}

    def _check(self, collection: str) -> None:
        if collection not in self.kinds:
            raise ApiStatusError("HTTP 404: 404 page not found", status=404)

    def _served(self, path: str) -> Document:
        """List the groups, or KubeVirt's kinds, as far as there are any."""
        kinds = [kind.rpartition("/")[2] for kind in self.kinds if kind.startswith(KUBEVIRT)]
        if path == GROUPS:
            groups = ["apps", "kubevirt.io"] if kinds else ["apps"]
            return {"groups": [{"name": group} for group in groups]}
        if not kinds:
            raise ApiStatusError("HTTP 404: 404 page not found", status=404)
        return {"resources": [{"name": kind} for kind in kinds]}

    def _list_namespace(self, path: str) -> Document:
        self._check(_collection(path))
        return {"items": [one for at, one in self.objects.items() if at.startswith(f"{path}/")]}

    def _patch(self, path: str, operations: Sequence[Document]) -> Document:
        try:
            document: Document = apply_patch(self.objects[path], operations)
        except PatchError as exc:
            text = f"HTTP 422: the server rejected our request due to an error in it: {exc}"
            raise ApiStatusError(text, status=422, reason="Invalid") from None
        self.patched.append((path, list(operations)))
        return self.put(path, document)

    def _tell(self, kind: str, path: str, document: Document) -> None:
        self._events[_collection(path)].append(event(kind, document))
        self._changed.notify_all()


def _collection(path: str) -> str:
    """Give the path that lists all objects of an object's kind."""
    head, found, tail = path.partition("/namespaces/")
    return f"{head}/{tail.split('/')[1]}" if found else path.rpartition("/")[0]


def _selected(one: Document, query: Query) -> bool:
    """Tell what the selectors that we use select."""
    launcher: bool = one["metadata"].get("labels", {}).get("kubevirt.io") == "virt-launcher"
    running: bool = one.get("status", {}).get("phase") == "Running"
    return {
        "": True,
        "kubevirt.io=virt-launcher": launcher,
        "kubevirt.io!=virt-launcher": not launcher and not running,
    }[str(query.get("labelSelector", ""))]


def _as_selected(line: bytes, query: Query) -> bytes:
    """Write an event as a watch with selectors has it: what they select no longer is gone."""
    told = json.loads(line)
    return line if _selected(told["object"], query) else event("DELETED", told["object"])
