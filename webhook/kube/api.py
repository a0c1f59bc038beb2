"""The interface to the Kubernetes API for all other modules. Pure, apart from the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.model.paths import api_path

READ_TIMEOUT = 30.0
"""Seconds to wait for more bytes of a response: a lost packet must not hang a release."""
SLOW_ADMISSION_TIMEOUT = 35.0
"""Timeout, in seconds, of a write that has failed before. Another webhook with
`failurePolicy: Ignore` may hang for 30 s before the API server skips it; the API server itself
gives up after 34 s."""
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
JSON = "application/json"

Query = Mapping[str, str | int]
OnEnd = Callable[[ClusterError | None], None]
"""Gets the outcome of a request: None on success, or the error."""
Begin = Callable[..., bool]
"""Sends a patch, like `Cluster.begin`."""
Observe = Callable[..., None]
"""Gets the timing of a response, like `ServerClock.observe`."""


class Api(Protocol):
    """A client for the Kubernetes API; tests may substitute a fake."""

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
        """Send a request and return the response body.

        Raises ApiStatusError for an error status, UnreachableError without a response, and
        ResponseTooLargeError if the response exceeds the size limit.
        `timeout`, in seconds, limits the wait for the first byte, and each pause after it.
        """
        ...

    def lines(self, path: str, *, query: Query, timeout: float) -> Iterator[bytes]:
        """Yield the lines of a response, such as a watch; `timeout` limits each pause."""
        ...


def boot_time() -> float:
    """Return the seconds of a monotonic clock that keeps running while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def pod_path(namespace: str, name: str) -> str:
    """Return the path of a pod."""
    return api_path("v1", "pods", namespace, name)
