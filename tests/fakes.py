"""Hand-written stand-ins: an API server made of a dictionary, and a JSON Patch of its own."""

from __future__ import annotations

import copy
import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from webhook.cluster import JSON, JSON_PATCH, READ_TIMEOUT, Query
from webhook.errors import ApiStatusError, UnreachableError
from webhook.objects import Names

Document = dict[str, Any]
WATCH_POLL = 0.002


class PatchError(Exception):
    """A JSON Patch does not apply."""


def apply_patch(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Apply the RFC 6902 operations add, remove, replace and test; the document is left alone."""
    result = copy.deepcopy(document)
    for operation in operations:
        result = _apply(result, operation)
    return result


def _apply(document: Any, operation: Mapping[str, Any]) -> Any:
    tokens = _tokens(operation["path"])
    kind = operation["op"]
    if not tokens:
        raise PatchError("operations on the whole document are not ours")
    parent = document
    for token in tokens[:-1]:
        parent = _step(parent, token)
    last = tokens[-1]
    value = copy.deepcopy(operation.get("value"))
    if kind == "test":
        if _step(parent, last) != value:
            raise PatchError(f"test failed at {operation['path']}")
    elif kind == "remove":
        _step(parent, last)
        del parent[int(last) if isinstance(parent, list) else last]
    elif kind == "replace":
        _step(parent, last)
        parent[int(last) if isinstance(parent, list) else last] = value
    elif kind == "add" and isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise PatchError(f"no place {last} in {operation['path']}")
        parent.insert(index, value)
    elif kind == "add" and isinstance(parent, dict):
        parent[last] = value
    else:
        raise PatchError(f"cannot {kind} at {operation['path']}")
    return document


def _tokens(path: str) -> list[str]:
    if not path:
        return []
    if not path.startswith("/"):
        raise PatchError(f"{path} is no JSON Pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/")]


def _step(parent: Any, token: str) -> Any:
    if isinstance(parent, dict) and token in parent:
        return parent[token]
    if (
        isinstance(parent, list)
        and token.isascii()
        and token.isdigit()
        and int(token) < len(parent)
    ):
        return parent[int(token)]
    raise PatchError(f"there is no {token!r}")


class FakeApi:
    """A cluster of pods in a dictionary (`webhook.cluster.Api`).

    Actions that a test lays in with `before` run ahead of the next request of that method, one a
    request: they may change the cluster, or raise what the request is to raise. `after` runs when
    the request has been carried out: what it raises is a lost answer. `answers` holds what a GET of
    a path is answered with, whatever the pods are. Watches stream what a test lays into `streams`,
    then, when it has laid in none, what happens to the pods.
    """

    def __init__(self, *pods: Document) -> None:
        self.pods: dict[Names, Document] = {}
        self.requests: list[tuple[str, str]] = []
        self._timeouts: list[tuple[str, float]] = []
        self.queries: list[Query] = []
        self.bodies: list[bytes] = []
        self.answers: dict[str, bytes] = {}
        self.streams: deque[Iterable[bytes | Exception]] = deque()
        self.page_size = 500
        self._before: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._after: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self._versions = itertools.count(100)
        self._events: list[bytes] = []
        self._changed = threading.Condition()
        self._closed = False
        for pod in pods:
            self.put(pod)

    # --- what a test does ----------------------------------------------------------------------

    def before(self, method: str, *actions: Callable[[], None]) -> None:
        self._before[method].extend(actions)

    def after(self, method: str, *actions: Callable[[], None]) -> None:
        self._after[method].extend(actions)

    def put(self, pod: Document) -> Document:
        """Store a pod as it is, with a resourceVersion of its own, and tell the watches."""
        with self._changed:
            metadata = pod["metadata"]
            metadata["resourceVersion"] = str(next(self._versions))
            key = metadata["namespace"], metadata["name"]
            kind = "MODIFIED" if key in self.pods else "ADDED"
            if pod["spec"].get("nodeName"):
                kind = "DELETED"
            self.pods[key] = pod
            self._tell(kind, pod)
            return pod

    def annotate(self, key: Names, **annotations: str | None) -> None:
        """Change a pod's annotations; None removes one."""
        with self._changed:
            pod = copy.deepcopy(self.pods[key])
            present = pod["metadata"].setdefault("annotations", {})
            for name, value in annotations.items():
                if value is None:
                    present.pop(name, None)
                else:
                    present[name] = value
            self.put(pod)

    def delete(self, key: Names) -> None:
        with self._changed:
            self._tell("DELETED", self.pods.pop(key))

    def gates(self, key: Names) -> list[str]:
        return [gate["name"] for gate in self.pods[key]["spec"].get("schedulingGates", ())]

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def patience(self, method: str) -> list[float]:
        """Give the timeouts of all requests by this method, in order."""
        return [timeout for one, timeout in self._timeouts if one == method]

    def count(self, method: str) -> int:
        return sum(method == one for one, _ in self.requests)

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
        self._timeouts.append((method, timeout))
        self.queries.append(dict(query or {}))
        if self._before[method]:
            self._before[method].popleft()()
        if method == "GET" and path in self.answers:
            return self.answers[path]
        with self._changed:
            if path == "/version":
                answer: Any = {"major": "1", "minor": "36"}
            elif path == "/api/v1/pods":
                answer = self._page(query or {})
            elif method == "PATCH":
                assert content_type == JSON_PATCH
                assert body is not None
                self.bodies.append(body)
                answer = self._patch(path, json.loads(body))
            else:
                answer = self.pods[self._key(path)]
        if self._after[method]:
            self._after[method].popleft()()
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
        if self._before["WATCH"]:
            self._before["WATCH"].popleft()()
        if self.streams:
            for line in self.streams.popleft():
                if isinstance(line, Exception):
                    raise line
                yield line
            return
        seen = 0
        while not self._closed:
            with self._changed:
                fresh, seen = self._events[seen:], len(self._events)
                if not fresh:
                    self._changed.wait(WATCH_POLL)
            yield from fresh

    def _key(self, path: str) -> Names:
        _, _, _, _, namespace, _, name = path.split("/")
        key = unquote(namespace), unquote(name)
        if key not in self.pods:
            raise ApiStatusError(
                f'HTTP 404: pods "{key[1]}" not found', status=404, reason="NotFound"
            )
        return key

    def _page(self, query: Query) -> Document:
        waiting = [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]
        start = int(query.get("continue", 0))
        end = start + min(int(query["limit"]), self.page_size)
        metadata = {"resourceVersion": str(next(self._versions))}
        if end < len(waiting):
            metadata["continue"] = str(end)
        return {"metadata": metadata, "items": waiting[start:end] or None}

    def _patch(self, path: str, operations: Sequence[Document]) -> Document:
        key = self._key(path)
        try:
            pod: Document = apply_patch(self.pods[key], operations)
        except PatchError as exc:
            text = f"HTTP 422: the server rejected our request due to an error in it: {exc}"
            raise ApiStatusError(text, status=422, reason="Invalid") from None
        if not pod["spec"].get("schedulingGates"):
            pod["spec"].pop("schedulingGates", None)
        return self.put(pod)

    def _tell(self, kind: str, pod: Document) -> None:
        self._events.append(event(kind, pod))
        self._changed.notify_all()


class FakeLookup:
    """The objects of a cluster by their API path (`webhook.framework.Lookup`).

    `asked` are the paths that were asked for; `failures` are raised, one by one, when it is asked.
    """

    def __init__(self, objects: Mapping[str, Document] | None = None) -> None:
        self.objects = dict(objects or {})
        self.asked: list[str] = []
        self.failures: deque[Exception] = deque()

    def get(self, path: str) -> Document | None:
        self.asked.append(path)
        if self.failures:
            raise self.failures.popleft()
        return copy.deepcopy(self.objects.get(path))


def event(kind: str, pod: Mapping[str, Any]) -> bytes:
    """Write one line of a watch."""
    return json.dumps({"type": kind, "object": pod}).encode()


def raising(error: Exception) -> Callable[[], None]:
    """Make an action that raises."""

    def act() -> None:
        raise error

    return act


def status_error(
    status: int, *, retry_after: float | None = None, reason: str = ""
) -> ApiStatusError:
    text = f"HTTP {status}: scripted"
    return ApiStatusError(text, status=status, retry_after=retry_after, reason=reason)


def unreachable() -> UnreachableError:
    return UnreachableError("https://10.0.0.1 does not answer: timed out")
