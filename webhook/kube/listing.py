"""Reads of a cluster: whole lists page by page, single objects, and the API server's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.kube.client import READ_TIMEOUT, Api, Query, Timing, boot_time
from holdfast.webhook.kube.server_clock import Bounds, ServerClock

PAGE = 500
"""Objects per request, as in kubectl."""
PENDING = "spec.nodeName=,status.phase=Pending"
"""Selects every pod that can be held."""

T = TypeVar("T")


class ListMeta(msgspec.Struct, rename="camel"):
    """The metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """A page of a list; without metadata a response is none, and says nothing about objects."""

    metadata: ListMeta
    items: list[T] | None = None


def pages(fetch: Callable[[str], Page[T]]) -> Iterator[Page[T]]:
    """Iterate over the pages of a list; `fetch` gets the continue token, empty for the first page.

    Each page is fetched while the one before it is worked on. Raises what `fetch` raises.
    """
    with ThreadPoolExecutor(1, "next-page") as ahead:
        page = fetch("")
        while page.metadata.continue_:
            following = ahead.submit(fetch, page.metadata.continue_)
            yield page
            page = following.result()
        yield page


class Time:
    """The API server's time by its responses so far, accurate to a second."""

    def __init__(self) -> None:
        self._clock = ServerClock()

    def take(self, timing: Timing) -> None:
        """Take the timing of a response."""
        self._clock.observe(sent=timing.sent, received=timing.received, date=timing.date)

    def bounds(self) -> Bounds | None:
        """Return bounds of the offset between the server's clock and this machine's boot time."""
        return self._clock.bounds(boot_time())

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since 1970. Raises UnreachableError."""
        bounds = self.bounds()
        if bounds is None:
            raise UnreachableError(
                "the API server's answers carry no Date; ask it directly, without a proxy"
            )
        return int((boot_time() + (bounds.low + bounds.high) / 2) * 1_000)


def objects(api: Api, path: str, kind: type[T], query: Query | None = None) -> Iterator[T]:
    """Iterate over all objects of a list. Raises ClusterError."""
    decoder = msgspec.json.Decoder(Page[kind])  # type: ignore[valid-type]

    def fetch(token: str) -> Page[T]:
        asked: dict[str, str | int] = {**(query or {}), "limit": PAGE}
        if token:
            asked["continue"] = token
        return _decoded(decoder, api.request("GET", path, query=asked), path)

    for page in pages(fetch):
        yield from page.items or ()


def read(api: Api, path: str, kind: type[T], *, timeout: float = READ_TIMEOUT) -> T:
    """Read an object. Raises ClusterError, also if the response cannot be decoded."""
    return _decoded(msgspec.json.Decoder(kind), api.request("GET", path, timeout=timeout), path)


def one(api: Api, path: str, kind: type[T]) -> T | None:
    """Read an object, or return None if it does not exist. Raises ClusterError."""
    try:
        return read(api, path, kind)
    except ApiStatusError as exc:
        if exc.is_not_found:
            return None
        raise


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes, path: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UnreachableError(f"the response for {path} is not valid: {exc}") from exc


def pods_path(namespace: str) -> str:
    """Return the path of the pods of a namespace, or of all namespaces if it is empty."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"


def may(api: Api, *, namespace: str, verb: str, group: str, resource: str, name: str = "") -> bool:
    """Return whether this user may do something. Raises ClusterError."""
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
