"""Read-only lookups for plugins: GET of one object, afresh, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import ApiStatusError, StartError, UnreachableError

if TYPE_CHECKING:
    from webhook.cluster import Api

TIMEOUT = 2.0
"""Seconds for one lookup: less than the 2.5 s that a review may take."""

_NOT_FOUND = 404


class ClusterLookup:
    """Looks objects up in a cluster; the connection is made when the first is asked for.

    So a server whose plugins look nothing up needs no credentials at all.
    """

    def __init__(self, connect: Callable[[], Api]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._api: Api | None = None

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the object at an API path; None when there is none. Raises ClusterError."""
        try:
            found = msgspec.json.decode(self._connected().request("GET", path, timeout=TIMEOUT))
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND:
                return None
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UnreachableError(f"the answer for {path} cannot be read: {exc}") from exc
        if not isinstance(found, dict):
            raise UnreachableError(f"the answer for {path} is no object")
        return found

    def _connected(self) -> Api:
        with self._lock:
            if self._api is None:
                try:
                    self._api = self._connect()
                except StartError as exc:
                    raise UnreachableError(str(exc)) from exc
            return self._api
