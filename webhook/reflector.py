"""List and watch: follow a set of objects as the API server has it, whatever happens to the watch.

A watch may end, expire (410), break, or go silent without closing. So each one is short, its
silence is bounded, and a fresh list is made now and then even when all seems well. A kind that the
cluster does not have, or that this process may not read, is said once, and asked for again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import msgspec

from webhook.cluster import Api, Query, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.objects import Metadata
from webhook.retries import LONGEST_ASKED

WATCH_SECONDS = 30
"""How long one watch lasts; it is then begun again where it ended, which costs one request."""
WATCH_SILENCE_SECONDS = WATCH_SECONDS + 5.0
"""How long a watch may send nothing at all: it should have ended by then."""
RELIST_SECONDS = 600.0
"""How often everything is listed anew, should a watch have lost something unseen."""
PAGE = 500
FURTHER_SECONDS = 240.0
"""How long a list's further page is asked for: an API server remembers a list for five minutes."""
FURTHER_PAUSE_SECONDS = 1.0
"""The pause between two tries, where the server asks for no longer one."""
LASTING_SECONDS = 10.0
"""How long list and watch have to last for the back-off to begin anew."""
BACKOFF_SECONDS, BACKOFF_LIMIT_SECONDS = 0.2, 10.0
ABSENT_SECONDS = 30.0
"""How often a kind is asked for that the cluster does not have."""

_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410
_LATER = frozenset({429, 503, 504})
"""What a server answers that may well answer soon: it has too much to do, or is behind itself."""
_log = logging.getLogger("holdfast.controller")


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


_LIST = msgspec.json.Decoder(_List)
_EVENT = msgspec.json.Decoder(_Event)
_STATUS = msgspec.json.Decoder(_Status)


class Followed(Protocol):
    """What every object that can be followed has."""

    @property
    def metadata(self) -> Metadata:
        """Its metadata, for the version to watch from."""
        ...


Object = TypeVar("Object", bound=Followed)
Taken = TypeVar("Taken", contravariant=True)  # noqa: PLC0105 - what a follower takes


class Follower(Protocol[Taken]):
    """Who is told what the cluster has."""

    def replace(self, objects: Iterable[Taken], /) -> None:
        """Take these objects, and no others, as all there are.

        They come page by page from the API server while they are gone through, once; what that
        raises is to be let through, and then nothing is known to be gone.
        """
        ...

    def update(self, one: Taken, /) -> None:
        """Take an object that is new or has changed."""
        ...

    def remove(self, one: Taken, /) -> None:
        """Take an object that is gone, or no longer among those that are followed."""
        ...


class _Listing(Generic[Object]):
    """The objects of a list, each page asked for when it is needed: all at once are too many."""

    def __init__(
        self, pages: Iterable[_List], read: Callable[[msgspec.Raw], Object | None]
    ) -> None:
        self._pages = pages
        self._read = read
        self.version = ""

    def __iter__(self) -> Iterator[Object]:
        for page in self._pages:
            self.version = page.metadata.resource_version
            yield from filter(None, map(self._read, page.items or ()))


class Reflector(Generic[Object]):
    """Keeps a follower up to date with the objects at one API path, as a selection has them.

    `path` lists all namespaces, or one; `selection` holds field and label selectors. `absent` is
    said where the cluster does not have the kind at all, which is an error without it; `cure` where
    it may not be read.
    """

    def __init__(
        self,
        api: Api,
        follower: Follower[Object],
        kind: type[Object],
        *,
        path: str,
        selection: Query,
        on_restart: Callable[[str], None],
        absent: str = "",
        cure: str = "",
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._api = api
        self._absent = absent
        self._cure = cure
        self._said = ""
        self._follower = follower
        self._path = path
        self._selection = selection
        self._decoder = msgspec.json.Decoder(kind)
        self._on_restart = on_restart
        self._now = now

    def run(self, stop: threading.Event) -> None:
        """Follow until told to stop. Never raises for what a cluster may do."""
        backoff = BACKOFF_SECONDS
        while not stop.is_set():
            began = self._now()
            reason = self._follow(stop)
            self._on_restart(reason)
            if self._now() - began >= LASTING_SECONDS:
                backoff = BACKOFF_SECONDS
            if reason == "absent":
                stop.wait(ABSENT_SECONDS)
            elif reason in {"error", "expired"}:
                stop.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads load
                backoff = min(backoff * 2, BACKOFF_LIMIT_SECONDS)

    def _follow(self, stop: threading.Event) -> str:
        """List, then watch as long as that goes well; tell why it ended."""
        try:
            version = self._list(stop)
            if self._said:
                _log.info("following %s", self._path)
            self._said = ""
            return self._watch_until_relist(version, stop)
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND and self._absent:
                self._say(logging.INFO, self._absent)
                self._follower.replace([])
                return "absent"
            cure = f" ({self._cure})" if exc.status == _FORBIDDEN and self._cure else ""
            self._say(logging.WARNING, f"{exc}{cure}; listing again")
        except ClusterError as exc:
            self._say(logging.WARNING, f"{exc}; listing again")
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            self._say(logging.WARNING, f"an answer cannot be read ({exc}); listing again")
        return "error"

    def _say(self, level: int, text: str) -> None:
        """Log what goes wrong, once until it is well again."""
        _log.log(
            logging.DEBUG if text == self._said else level, "following %s: %s", self._path, text
        )
        self._said = text

    def _list(self, stop: threading.Event) -> str:
        """List everything, and return the version to watch from."""
        listing = _Listing(self._pages(stop), self._read)
        self._follower.replace(listing)
        return listing.version

    def _pages(self, stop: threading.Event) -> Iterator[_List]:
        """Ask for each page while the one before it is read: neither side waits for the other."""
        with ThreadPoolExecutor(1, "next-page") as ahead:
            page = self._page()
            while page.metadata.continue_:
                following = ahead.submit(self._further_page, page.metadata.continue_, stop)
                yield page
                page = following.result()
            yield page

    def _further_page(self, continued: str, stop: threading.Event) -> _List:
        """Ask for a further page, again and again while the API server puts it off.

        Where its cache is behind, it takes the first page from etcd, and answers 504 (`Too large
        resource version`) for those after it until the cache has come to the first page's version
        (from Kubernetes 1.34 on). To begin anew would be to ask for a later version each time; and
        where it has too much to do (429, 503), to ask for many pages because of one.
        """
        until = self._now() + FURTHER_SECONDS
        while True:
            try:
                return self._page(continued)
            except ApiStatusError as exc:
                if exc.status not in _LATER or self._now() >= until:
                    raise
                text = f"a further page is put off (HTTP {exc.status}); asking for it again"
                self._say(logging.WARNING, text)  # what the server says differs each time
                asked = min(exc.retry_after or 0.0, LONGEST_ASKED)
                if stop.wait(max(FURTHER_PAUSE_SECONDS, asked)):
                    raise

    def _page(self, continued: str = "") -> _List:
        query: dict[str, str | int] = {**self._selection, "limit": PAGE}
        if continued:
            query["continue"] = continued
        return _LIST.decode(self._api.request("GET", self._path, query=query))

    def _watch_until_relist(self, version: str, stop: threading.Event) -> str:
        relist_at = self._now() + RELIST_SECONDS
        while not stop.is_set():
            if self._now() >= relist_at:
                return "relist"
            began = self._now()
            try:
                version = self._watch(version, stop)
            except ApiStatusError as exc:
                if exc.status == _GONE:
                    return "expired"
                raise
            self._on_restart("end")
            if self._now() - began < BACKOFF_SECONDS:
                stop.wait(BACKOFF_SECONDS)  # a server that ends each watch at once is not stormed
        return "stop"

    def _watch(self, version: str, stop: threading.Event) -> str:
        query: dict[str, str | int] = {
            **self._selection,
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        for line in self._api.lines(self._path, query=query, timeout=WATCH_SILENCE_SECONDS):
            event = _EVENT.decode(line)
            if event.type == "ERROR":
                status = _STATUS.decode(event.object)
                raise ApiStatusError(f"the watch ended: {status.message}", status=status.code)
            one = self._decoder.decode(event.object)
            version = one.metadata.resource_version
            if event.type == "DELETED":
                self._follower.remove(one)
            elif event.type != "BOOKMARK":
                self._follower.update(one)
            if stop.is_set():
                break
        return version

    def _read(self, source: msgspec.Raw) -> Object | None:
        """Read one object of a list; one that cannot be read must not keep all others waiting."""
        try:
            return self._decoder.decode(source)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            _log.error("%s: an object cannot be read, and is left alone: %s", self._path, exc)
            return None
