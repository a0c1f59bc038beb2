"""List and watch a set of objects, and recover from every failure of the watch.

A watch may end, expire (410), break, or go silent without closing. Each watch is therefore short
and has a read timeout, and all objects are listed again periodically. A kind that is not installed,
or that this process may not read, is logged once and retried.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, Query, boot_time
from holdfast.webhook.workqueue.backoff import LONGEST_ASKED

WATCH_SECONDS = 30
"""Duration of a watch; the next one resumes where it ended, at the cost of one request."""
WATCH_SILENCE_SECONDS = WATCH_SECONDS + 5.0
"""Read timeout of a watch, in seconds: the watch should have ended by then."""
RELIST_SECONDS = 600.0
"""Interval, in seconds, of a full list, in case a watch has missed a change."""
FURTHER_SECONDS = 240.0
"""Seconds for which a further page is retried: an API server keeps a list for five minutes."""
FURTHER_PAUSE_SECONDS = 1.0
"""Seconds between two attempts, unless the server asks for a longer pause."""
LASTING_SECONDS = 10.0
"""Seconds that list and watch have to last to reset the back-off."""
BACKOFF_SECONDS, BACKOFF_LIMIT_SECONDS = 0.2, 10.0
ABSENT_SECONDS = 30.0
"""Interval, in seconds, of retries for a kind that is not installed."""

_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410
_LATER = frozenset({429, 503, 504})
"""The server is overloaded, or its cache lags; a retry may soon succeed."""
_log = logging.getLogger("holdfast.controller")


_RawPage = listing.Page[msgspec.Raw]
"""Objects are decoded one by one: an invalid object must not hide the others."""


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str


class _VersionedObject(msgspec.Struct):
    metadata: _Version


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


_PAGE = msgspec.json.Decoder(_RawPage)
_EVENT = msgspec.json.Decoder(_WatchEvent)
_VERSIONED = msgspec.json.Decoder(_VersionedObject)
_STATUS = msgspec.json.Decoder(_Status)
_INVALID = (msgspec.DecodeError, UnicodeDecodeError)


Object = TypeVar("Object")
Item = TypeVar("Item")
Handled = TypeVar("Handled", contravariant=True)  # noqa: PLC0105 - reads better


class ResourceEventHandler(Protocol[Handled]):
    """Gets all objects, and each change of an object."""

    def on_sync(self, objects: Iterable[Handled], /) -> None:
        """Replace all known objects with these.

        The iteration reads them from the API server page by page. Do not catch its errors: an
        incomplete list must not count as deletions.
        """
        ...

    def on_update(self, one: Handled, /) -> None:
        """Handle a new or changed object."""
        ...

    def on_delete(self, one: Handled, /) -> None:
        """Handle an object that was deleted, or no longer matches the selectors."""
        ...


@dataclass(frozen=True, slots=True)
class Handlers(Generic[Item]):
    """A `ResourceEventHandler` built from functions."""

    on_sync: Callable[[Iterable[Item]], None]
    on_update: Callable[[Item], None]
    on_delete: Callable[[Item], None]


@dataclass(eq=False)
class Reflector(Generic[Object]):
    """Keeps a handler up to date with the objects at an API path.

    `selection` holds field and label selectors. `absent` is logged if the kind is not installed;
    without it, that is an error. `cure` is logged if this process may not read the kind. In both
    cases, `on_unreadable` gets the reason each time that the objects cannot be listed.
    """

    api: Api
    handler: ResourceEventHandler[Object]
    kind: type[Object]
    _: KW_ONLY
    path: str
    selection: Query
    on_restart: Callable[[str], None]
    absent: str = ""
    cure: str = ""
    on_unreadable: Callable[[str], None] | None = None
    now: Callable[[], float] = boot_time

    def __post_init__(self) -> None:
        self._logged = ""
        self._decoder = msgspec.json.Decoder(self.kind)

    def run(self, stop: threading.Event) -> None:
        """List and watch until `stop` is set. Cluster errors are logged, never raised."""
        backoff = BACKOFF_SECONDS
        while not stop.is_set():
            began = self.now()
            reason = self._follow(stop)
            self.on_restart(reason)
            # An API server that accepts a watch and breaks it at once must not reset the back-off.
            if self.now() - began >= LASTING_SECONDS:
                backoff = BACKOFF_SECONDS
            if reason == "absent":
                stop.wait(ABSENT_SECONDS)
            elif reason in {"error", "expired"}:
                stop.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads load
                backoff = min(backoff * 2, BACKOFF_LIMIT_SECONDS)

    def _follow(self, stop: threading.Event) -> str:
        """List, then watch; return the reason for stopping."""
        listed = False
        try:
            version = self._list(stop)
            listed = True
            if self._logged:
                _log.info("following %s", self.path)
            self._logged = ""
            return self._watch_until_relist(version, stop)
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND and self.absent:
                self._log_once(logging.INFO, self.absent)
                if self.on_unreadable is not None:
                    self.on_unreadable(self.absent)
                # This does not mean that the objects are deleted: the 404 may come from a proxy,
                # and an API server that stops serving a kind reports their deletion.
                return "absent"
            cure = f" ({self.cure})" if exc.status == _FORBIDDEN and self.cure else ""
            self._log_once(logging.WARNING, f"{exc}{cure}; listing again")
            if exc.status == _FORBIDDEN and self.on_unreadable is not None and not listed:
                self.on_unreadable(str(exc))
        except ClusterError as exc:
            self._log_once(logging.WARNING, f"{exc}; listing again")
        except _INVALID as exc:
            self._log_once(logging.WARNING, f"invalid response ({exc}); listing again")
        return "error"

    def _log_once(self, level: int, text: str) -> None:
        _log.log(
            logging.DEBUG if text == self._logged else level, "following %s: %s", self.path, text
        )
        self._logged = text

    def _list(self, stop: threading.Event) -> str:
        version = ""

        def read(paging: Query) -> bytes:
            is_first = "continue" not in paging
            return self._read(paging) if is_first else self._read_further(paging, stop)

        def objects() -> Iterator[Object]:
            nonlocal version
            for page in listing.pages(read, lambda body: safe_json.decode(_PAGE, body)):
                version = page.metadata.resource_version
                yield from filter(None, map(self._decoded, page.items or ()))

        self.handler.on_sync(objects())
        return version

    def _read_further(self, paging: Query, stop: threading.Event) -> bytes:
        """Return a further page; retry while the server is overloaded or its cache lags."""
        # The first page came from etcd; further pages get 504 until the cache has caught up (since
        # Kubernetes 1.34). Listing from the start would request a later version each time.
        deadline = self.now() + FURTHER_SECONDS
        while True:
            try:
                return self._read(paging)
            except ApiStatusError as exc:
                if exc.status not in _LATER or self.now() >= deadline:
                    raise
                # without the server's message, which differs each time
                text = f"HTTP {exc.status} for a further page of the list; retrying"
                self._log_once(logging.WARNING, text)
                retry_after = min(exc.retry_after or 0.0, LONGEST_ASKED)
                if stop.wait(max(FURTHER_PAUSE_SECONDS, retry_after)):
                    raise

    def _read(self, paging: Query) -> bytes:
        return self.api.request("GET", self.path, query={**self.selection, **paging})

    def _watch_until_relist(self, version: str, stop: threading.Event) -> str:
        relist_at = self.now() + RELIST_SECONDS
        while not stop.is_set():
            if self.now() >= relist_at:
                return "relist"
            began = self.now()
            try:
                version = self._watch(version, stop)
            except ApiStatusError as exc:
                if exc.status == _GONE:
                    return "expired"
                raise
            self.on_restart("end")
            # do not flood a server that ends each watch at once
            if self.now() - began < BACKOFF_SECONDS:
                stop.wait(BACKOFF_SECONDS)
        return "stop"

    def _watch(self, version: str, stop: threading.Event) -> str:
        query: dict[str, str | int] = {
            **self.selection,
            "watch": 1,
            # Bookmarks advance the version even without changes, so it does not expire.
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        for line in self.api.lines(self.path, query=query, timeout=WATCH_SILENCE_SECONDS):
            event = safe_json.decode(_EVENT, line)
            if event.type == "ERROR":
                status = safe_json.decode(_STATUS, event.object)
                raise ApiStatusError(f"the watch ended: {status.message}", status=status.code)
            try:
                item = safe_json.decode(self._decoder, event.object)
            except _INVALID as exc:
                # As in a list: an invalid object must not cause a relist.
                version = _version(None, event.object)
                self._log_ignored(exc)
                continue
            version = _version(item, event.object)
            if event.type == "DELETED":
                self.handler.on_delete(item)
            elif event.type != "BOOKMARK":
                self.handler.on_update(item)
            if stop.is_set():
                break
        return version

    def _decoded(self, source: msgspec.Raw) -> Object | None:
        try:
            return safe_json.decode(self._decoder, source)
        except _INVALID as exc:
            self._log_ignored(exc)
            return None

    def _log_ignored(self, reason: Exception) -> None:
        _log.error("%s: ignoring an invalid object: %s", self.path, reason)


def _version(item: object, source: msgspec.Raw) -> str:
    """Return the version to resume the watch from, even if the object's type lacks the field."""
    version: str = getattr(getattr(item, "metadata", None), "resource_version", "")
    return version or safe_json.decode(_VERSIONED, source).metadata.resource_version
