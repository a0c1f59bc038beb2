"""A cluster of single objects by their API paths, in a dictionary (`webhook.cluster.Api`)."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes import PatchError, apply_patch
from webhook.cluster import APPLY_PATCH, JSON, JSON_PATCH, READ_TIMEOUT, Query
from webhook.errors import ApiStatusError

Document = dict[str, Any]


class ObjectApi:
    """GET, PUT, POST, apply and DELETE of objects, under uid and resourceVersion.

    `before` and `after` are called around each request, with its method and path: what `before`
    raises keeps it from being carried out, what `after` raises is a lost answer. Apply merges,
    lists of named things by their names: what others have added stays, what was applied before and
    is no more goes. Another manager's objects conflict.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {}
        self.managers: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        self.after: Callable[[str, str], None] = lambda _method, _path: None
        self._versions = itertools.count(1)

    def put(self, path: str, one: Document) -> Document:
        """Store an object as it is, with a resourceVersion of its own."""
        stored = copy.deepcopy(one)
        metadata = stored.setdefault("metadata", {})
        metadata.setdefault("name", path.rpartition("/")[2])
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[path] = stored
        return stored

    def writes(self) -> list[tuple[str, str]]:
        return [one for one in self.requests if one[0] != "GET"]

    # --- webhook.cluster.Api -------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,  # noqa: ARG002 - the protocol's
    ) -> bytes:
        self.requests.append((method, path))
        self.before(method, path)
        answer = self._carry_out(method, path, dict(query or {}), body, content_type)
        self.after(method, path)
        return json.dumps(answer).encode()

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        raise AssertionError(f"nobody should watch {path}: {query}, {timeout}")

    def _carry_out(
        self, method: str, path: str, query: Document, body: bytes | None, content_type: str
    ) -> Document:
        sent: Any = json.loads(body) if body else {}
        if method == "GET":
            return self._get(path)
        if method == "PUT":
            return self._replace(path, sent)
        if method == "DELETE":
            self._get(path)
            return self.objects.pop(path)
        assert method == "PATCH"
        if content_type == JSON_PATCH:
            return self._patch(path, sent)
        assert content_type == APPLY_PATCH
        return self._apply(path, sent, query)

    def _get(self, path: str) -> Document:
        if path not in self.objects:
            raise ApiStatusError(f"HTTP 404: {path} not found", status=404, reason="NotFound")
        return self.objects[path]

    def _replace(self, path: str, sent: Document) -> Document:
        version = sent["metadata"].get("resourceVersion", "")
        known = self.objects.get(path)
        if (known["metadata"]["resourceVersion"] if known else "") != version:
            raise ApiStatusError("HTTP 409: it has been modified", status=409, reason="Conflict")
        if known:
            sent["metadata"]["uid"] = known["metadata"]["uid"]
        return self.put(path, sent)

    def _patch(self, path: str, operations: list[Document]) -> Document:
        try:
            patched: Document = apply_patch(self._get(path), operations)
        except PatchError as exc:
            raise ApiStatusError(f"HTTP 422: {exc}", status=422, reason="Invalid") from None
        return self.put(path, patched)

    def _apply(self, path: str, sent: Document, query: Document) -> Document:
        known = self.objects.get(path)
        manager = query["fieldManager"]
        owner = self.managers.get(path, manager)
        if known is not None and query.get("force") != "true" and owner != manager:
            raise ApiStatusError("HTTP 409: conflict", status=409, reason="Conflict")
        version = sent["metadata"].pop("resourceVersion", None)
        if known is not None and version not in {None, known["metadata"]["resourceVersion"]}:
            raise ApiStatusError("HTTP 409: it has been modified", status=409, reason="Conflict")
        self.managers[path] = manager
        before = dict(known or {})
        applied = before.get("metadata", {}).get("managedFields", {})
        merged = _merged(before, sent, applied)
        merged["metadata"]["managedFields"] = sent
        return self.put(path, merged)


def _merged(known: Any, sent: Any, applied: Any) -> Any:
    """Merge what is sent into what is there; `applied` is what was sent the last time."""
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
