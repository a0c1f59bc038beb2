"""The API of a cluster, as all modules but the client see it. Pure, apart from the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.model.paths import api_path

READ_TIMEOUT = 30.0
"""Seconds between two bytes of a response: a release must not hang on one lost packet."""
SLOW_ADMISSION_TIMEOUT = 35.0
"""Seconds for a write that failed before. Another webhook with `failurePolicy: Ignore` may hang for
30 s before the API server skips it; the API server itself gives up after 34 s."""
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
JSON = "application/json"

Query = Mapping[str, str | int]
OnEnd = Callable[[ClusterError | None], None]
"""Takes the end of a request: None, or why it failed."""
Begin = Callable[..., bool]
"""Sends a patch as `Cluster.begin` does."""
Observe = Callable[..., None]
"""Takes the timing of a response, as `ServerClock.observe` does."""


class Api(Protocol):
    """The API of a cluster; tests may provide their own."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> bytes:
        """Send a request and return the response's body.

        Raises ApiStatusError for an error status, UnreachableError without a response, and
        ResponseTooLargeError if the response exceeds its limit.
        `timeout`, in seconds, limits the wait for the first byte, and each pause after it.
        """
        ...

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        """Stream a response, such as a watch, line by line; `timeout` limits each pause."""
        ...


def boot_time() -> float:
    """Return seconds of a clock that neither steps nor stops while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def pod_path(namespace: str, name: str) -> str:
    """Return the path of a pod."""
    return api_path("v1", "pods", namespace, name)
