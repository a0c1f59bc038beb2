"""Read lists page by page, single objects, and the API server's time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import ApiStatusError, ResponseTooLargeError, UnreachableError
from holdfast.webhook.kube.api import READ_TIMEOUT, Api, Query, boot_time
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model.paths import api_path

PAGE = 500
"""Objects per request, as in kubectl, unless they are large."""
SMALL_PAGE = 1 << 22
"""Bytes of a page; after a smaller page, the next one may have twice as many objects."""
UNBOUND = "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector that matches every pod that can be held, like kube-scheduler's. Users who may
write a pod's status can give a held pod the phase Running."""

T = TypeVar("T")


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """A page of a list. `metadata` is required: a response without it is not a list."""

    metadata: _ListMeta
    items: list[T] | None = None


def pages(read: Callable[[Query], bytes], decode: Callable[[bytes], Page[T]]) -> Iterator[Page[T]]:
    """Yield the pages of a list; `read` gets the limit and the continue token of a page.

    The next page is fetched while the caller processes the current one. A page that is too large is
    read again with a quarter of the objects. Raises the errors of `read` and `decode`.
    """
    limit = PAGE

    def fetch(token: str) -> Page[T]:
        nonlocal limit
        while True:
            try:
                body = read({"limit": limit, **({"continue": token} if token else {})})
                break
            except ResponseTooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
        if len(body) < SMALL_PAGE:
            limit = min(PAGE, limit * 2)
        return decode(body)

    with ThreadPoolExecutor(1, "next-page") as pool:
        page = fetch("")
        while page.metadata.continue_:
            future = pool.submit(fetch, page.metadata.continue_)
            yield page
            page = future.result()
        yield page


class CommandClock(ServerClock):
    """The API server's time for a command, from the responses so far; accurate to a second."""

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since 1970. Raises UnreachableError."""
        bounds = self.bounds(boot_time())
        if bounds is None:
            raise UnreachableError(
                "the API server's responses have no Date header; connect without a proxy"
            )
        return int((boot_time() + (bounds.low + bounds.high) / 2) * 1_000)


def objects(
    api: Api,
    path: str,
    kind: type[T],
    query: Query | None = None,
    *,
    timeout: float = READ_TIMEOUT,
) -> Iterator[T]:
    """Yield all objects of a list. Raises ClusterError."""
    decoder = msgspec.json.Decoder(Page[kind])  # type: ignore[valid-type]

    def fetch(paging: Query) -> bytes:
        return api.request("GET", path, query={**(query or {}), **paging}, timeout=timeout)

    for page in pages(fetch, lambda body: decoded(body, path, decoder)):
        yield from page.items or ()


def read(api: Api, path: str, kind: type[T], *, timeout: float = READ_TIMEOUT) -> T:
    """Return an object. Raises ClusterError, also if the response cannot be decoded."""
    return decoded(api.request("GET", path, timeout=timeout), path, msgspec.json.Decoder(kind))


def one(api: Api, path: str, kind: type[T], *, timeout: float = READ_TIMEOUT) -> T | None:
    """Return an object, or None if it does not exist. Raises ClusterError."""
    try:
        return read(api, path, kind, timeout=timeout)
    except ApiStatusError as exc:
        if exc.is_not_found:
            return None
        raise


def decoded(body: bytes, path: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the decoded response for a path. Raises UnreachableError if it is invalid."""
    try:
        return safe_json.decode(decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UnreachableError(f"the response for {path} is not valid: {exc}") from exc


def pods_path(namespace: str) -> str:
    """Return the path of the pods of a namespace, or of all namespaces if it is empty."""
    return api_path("v1", "pods", namespace)
