"""Reading a cluster once, for commands: whole lists, single objects, and the API server's time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from webhook import inspection
from webhook.clock import Bounds, ServerClock
from webhook.cluster import Api, Query, Timing, boot_time
from webhook.errors import ApiStatusError, UnreachableError
from webhook.inspection import Node, NodeState

PAGE = 500
"""Objects a request, as kubectl asks for them."""
PENDING = "spec.nodeName=,status.phase=Pending"
"""The field selector of every pod that can be held."""

T = TypeVar("T")


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T]):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[T] | None = None


class Time:
    """The API server's time, by the answers that were seen: right within a second."""

    def __init__(self) -> None:
        self._clock = ServerClock()

    def take(self, timing: Timing) -> None:
        """Take an answer in."""
        self._clock.observe(sent=timing.sent, received=timing.received, date=timing.date)

    def bounds(self) -> Bounds | None:
        """Bound what the server's clock is ahead of this machine's clock since its start."""
        return self._clock.bounds(boot_time())

    def now_ms(self) -> int:
        """Give the time at the server now, in milliseconds since 1970. Raises UnreachableError."""
        bounds = self.bounds()
        if bounds is None:
            raise UnreachableError(
                "the API server's answers carry no Date; ask it directly, without a proxy"
            )
        return int((boot_time() + (bounds.low + bounds.high) / 2) * 1_000)


def objects(api: Api, path: str, kind: type[T], query: Query | None = None) -> Iterator[T]:
    """Go through all objects of a list, page by page. Raises ClusterError.

    The next page is fetched while what has come is worked on.
    """
    decoder = msgspec.json.Decoder(_Page[kind])  # type: ignore[valid-type]
    asked: dict[str, str | int] = {**(query or {}), "limit": PAGE}
    body = api.request("GET", path, query=asked)
    with ThreadPoolExecutor(1, "next-page") as ahead:
        while True:
            page = _decoded(decoder, body, path)
            items = page.items or ()
            if not page.metadata.continue_:
                yield from items
                return
            following = {**asked, "continue": page.metadata.continue_}
            coming = ahead.submit(api.request, "GET", path, query=following)
            yield from items
            body = coming.result()


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes, path: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UnreachableError(f"the answer for {path} cannot be read: {exc}") from exc


def one(api: Api, path: str, kind: type[T]) -> T | None:
    """Read one object; None where there is none. Raises ClusterError."""
    try:
        body = api.request("GET", path)
    except ApiStatusError as exc:
        if exc.is_not_found:
            return None
        raise
    return _decoded(msgspec.json.Decoder(kind), body, path)


def node_state(api: Api, name: str) -> NodeState:
    """Look at a node; who may not see nodes is told so in its place."""
    try:
        found = one(api, f"/api/v1/nodes/{quote(name, safe='')}", Node)
    except ApiStatusError as exc:
        return NodeState(name, f"it cannot be looked at ({exc})")
    return inspection.node_state(name, found)


def pods_path(namespace: str) -> str:
    """Make the path of the pods of a namespace, or of all where it is empty."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"


def may(api: Api, *, namespace: str, verb: str, group: str, resource: str, name: str = "") -> bool:
    """Ask whether this user may do something. Raises ClusterError."""
    attributes: dict[str, Any] = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body=msgspec.json.encode(review),
    )
    return bool(msgspec.json.decode(answer).get("status", {}).get("allowed"))
