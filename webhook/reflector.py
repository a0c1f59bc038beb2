"""List and watch: follow a set of pods as the API server has it, whatever happens to the watch.

A watch may end, expire (410), break, or go silent without closing. So each one is short, its
silence is bounded, and a fresh list is made now and then even when all seems well.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from webhook.cluster import Api, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.objects import Pod

WATCH_SECONDS = 30
"""How long one watch lasts; it is then begun again where it ended, which costs one request."""
WATCH_SILENCE_SECONDS = WATCH_SECONDS + 5.0
"""How long a watch may send nothing at all: it should have ended by then."""
RELIST_SECONDS = 600.0
"""How often everything is listed anew, should a watch have lost something unseen."""
PAGE = 500
LASTING_SECONDS = 10.0
"""How long list and watch have to last for the back-off to begin anew."""
BACKOFF_SECONDS, BACKOFF_LIMIT_SECONDS = 0.2, 10.0

_GONE = 410
_log = logging.getLogger("holdfast.controller")


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


_LIST = msgspec.json.Decoder(_PodList)
_EVENT = msgspec.json.Decoder(_Event)
_POD = msgspec.json.Decoder(Pod)
_STATUS = msgspec.json.Decoder(_Status)


class Follower(Protocol):
    """Who is told what the cluster has."""

    def replace(self, pods: Iterable[Pod]) -> None:
        """Take these pods, and no others, as all there are."""
        ...

    def update(self, pod: Pod) -> None:
        """Take a pod that is new or has changed."""
        ...

    def remove(self, pod: Pod) -> None:
        """Take a pod that is gone, or no longer among those that are followed."""
        ...


class Reflector:
    """Keeps a follower up to date with the pods of one field selector, in all namespaces."""

    def __init__(
        self,
        api: Api,
        follower: Follower,
        *,
        field_selector: str,
        on_restart: Callable[[str], None],
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._api = api
        self._follower = follower
        self._selector = field_selector
        self._on_restart = on_restart
        self._now = now

    def run(self, stop: threading.Event) -> None:
        """Follow until told to stop. Never raises for what a cluster may do."""
        backoff = BACKOFF_SECONDS
        while not stop.is_set():
            began = self._now()
            try:
                reason = self._watch_until_relist(self._list(), stop)
            except ClusterError as exc:
                reason = "error"
                _log.warning("following pods: %s; listing again", exc)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                reason = "error"
                _log.warning("following pods: an answer cannot be read (%s); listing again", exc)
            self._on_restart(reason)
            if self._now() - began >= LASTING_SECONDS:
                backoff = BACKOFF_SECONDS
            if reason in {"error", "expired"}:
                stop.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads load
                backoff = min(backoff * 2, BACKOFF_LIMIT_SECONDS)

    def _list(self) -> str:
        """List everything, page by page, and return the version to watch from."""
        pods: list[Pod] = []
        query: dict[str, str | int] = {"fieldSelector": self._selector, "limit": PAGE}
        while True:
            page = _LIST.decode(self._api.request("GET", "/api/v1/pods", query=query))
            pods.extend(filter(None, map(_read, page.items or ())))
            if not page.metadata.continue_:
                self._follower.replace(pods)
                return page.metadata.resource_version
            query["continue"] = page.metadata.continue_

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
            "fieldSelector": self._selector,
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        for line in self._api.lines("/api/v1/pods", query=query, timeout=WATCH_SILENCE_SECONDS):
            event = _EVENT.decode(line)
            if event.type == "ERROR":
                status = _STATUS.decode(event.object)
                raise ApiStatusError(f"the watch ended: {status.message}", status=status.code)
            pod = _POD.decode(event.object)
            version = pod.metadata.resource_version
            if event.type == "DELETED":
                self._follower.remove(pod)
            elif event.type != "BOOKMARK":
                self._follower.update(pod)
            if stop.is_set():
                break
        return version


def _read(source: msgspec.Raw) -> Pod | None:
    """Read one pod of a list; one that cannot be read must not keep all others from their time."""
    try:
        return _POD.decode(source)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        _log.error("a pod cannot be read, and is not looked after: %s", exc)
        return None
