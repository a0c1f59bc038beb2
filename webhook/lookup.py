"""Read-only lookups for plugins: GET of one object, afresh, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import ApiStatusError, StartError, UnreachableError

if TYPE_CHECKING:
    from webhook.cluster import Api

TIMEOUT = 1.0
"""Seconds for one lookup, connecting included: two end within the 2.5 s that a review may take."""


class ClusterLookup:
    """Looks objects up in a cluster, by the connection that `connect` gives.

    A server whose plugins look nothing up never connects, and needs no credentials at all.
    """

    def __init__(
        self,
        connect: Callable[[], Api],
        *,
        observe: Callable[[str, float], None] = lambda _outcome, _seconds: None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Look up; `observe` is told of each: "answered" or "failed", and the seconds it took.

        Whether there was an object it is not told: everybody may read what is measured, and could
        find out by a forged review what there is.
        """
        self._connect = connect
        self._observe = observe
        self._timer = timer
        self._lock = threading.Lock()
        self._api: Api | None = None

    def connect(self) -> None:
        """Load the client and the credentials now, and not in a review. Raises StartError."""
        with self._lock:
            if self._api is None:
                self._api = self._connect()

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the object at an API path; None when there is none.

        Raises ClusterError; a 404 without Kubernetes' own reason is one, too: it says that there
        are no objects of this kind at all, or came from somebody in between.
        """
        began = self._timer()
        outcome = "failed"
        try:
            found = self._get(path)
            outcome = "answered"
        finally:
            self._observe(outcome, self._timer() - began)
        return found

    def _get(self, path: str) -> Mapping[str, Any] | None:
        try:
            found = msgspec.json.decode(self._connected().request("GET", path, timeout=TIMEOUT))
        except ApiStatusError as exc:
            if exc.is_not_found:
                return None
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UnreachableError(f"the answer for {path} cannot be read: {exc}") from exc
        if not isinstance(found, dict):
            raise UnreachableError(f"the answer for {path} is no object")
        return found

    def _connected(self) -> Api:
        try:
            self.connect()
        except StartError as exc:
            raise UnreachableError(str(exc)) from exc
        assert self._api is not None  # noqa: S101 - as `connect` has left it
        return self._api
