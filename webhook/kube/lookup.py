"""Read-only lookups for plugins."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from holdfast.webhook.errors import LookupLimitError, NoCredentialsError, StartError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api

TIMEOUT = 1.0
"""Seconds for one lookup and its connection: two fit into the 2.5 s that a review may take."""
MOST_OF_A_COMMAND = 2_000
"""Maximum lookups per minute of a command: each pod may wait for 32 objects, named by users."""
_MINUTE = 60.0


@dataclass(eq=False)
class ClusterLookup:
    """Looks up objects over a connection created by `connection`, with a limit per minute.

    It connects on first use: a server whose plugins never look up objects needs no credentials.
    `observe` gets the outcome ("answered" or "failed") and the seconds of each lookup, but not
    whether the object exists: anyone can read the metrics, and could probe for objects with forged
    reviews.
    """

    connection: Callable[[], Api]
    _: KW_ONLY
    per_minute: float = math.inf
    observe: Callable[[str, float], None] = lambda _outcome, _seconds: None
    timer: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._api: Api | None = None
        self._cached: dict[str, tuple[float, Mapping[str, Any] | None]] = {}
        self._minute, self._count = -math.inf, 0

    def connect(self) -> None:
        """Load the client and the credentials now rather than in a review. Raises StartError."""
        with self._lock:
            if self._api is None:
                self._api = self.connection()

    def get(self, path: str, *, max_age: float = 0.0) -> Mapping[str, Any] | None:
        """Return the object or list at an API path, or None if it does not exist.

        Only calls with a `max_age`, in seconds, use the cache. Raises ClusterError, also for a 404
        without a Kubernetes reason: the kind is not installed, or a proxy sent the response.
        """
        began = self.timer()
        cached = self._cached.get(path)
        if cached is not None and began - cached[0] < max_age:
            return cached[1]
        outcome = "failed"
        self._limit(began)
        try:
            result = self._get(path)
            outcome = "answered"
        finally:
            self.observe(outcome, self.timer() - began)
        if max_age:
            self._cached[path] = began, result
        return result

    def _limit(self, now: float) -> None:
        if now - self._minute >= _MINUTE:
            self._minute, self._count = now, 0
            self._cached.clear()  # do not keep entries that are no longer requested
        self._count += 1
        if self._count > self.per_minute:
            raise LookupLimitError(f"more than {self.per_minute:,} lookups in a minute")

    def _get(self, path: str) -> Mapping[str, Any] | None:
        try:
            self.connect()
            assert self._api is not None  # noqa: S101 - set by `connect`
            return listing.one(self._api, path, dict[str, Any], timeout=TIMEOUT)
        except StartError as exc:
            raise NoCredentialsError(str(exc)) from exc
