"""Answer requests on the event loop, and reviews that may block in a thread pool, with a deadline.

A review that cannot block is answered on the event loop, because handing it to a thread costs three
times the CPU of answering it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

from holdfast.webhook.server.handler import (
    BODY_LIMIT,
    AdmissionHandler,
    HttpResponse,
    PreparedReview,
    text,
)
from holdfast.webhook.threads import ThreadPool

POOL_SIZE = 16
"""Threads for reviews that may block; as many more reviews may wait for a thread. All their bodies
together may not exceed the maximum size of one body; launcher pods have 20 KB."""
DEADLINE = 2.5
"""Seconds for a review that may block: less than the API server's timeout of 3 s."""

_log = logging.getLogger("holdfast.server")


@dataclass(eq=False)
class AsyncHandler:
    """Answers requests on the event loop, with a handler that may block.

    `on_startup` runs in the worker before the first connection is accepted; if it raises, the
    server stops. `deadline` is in seconds, `body_limit` in bytes.
    """

    handler: AdmissionHandler
    _: KW_ONLY
    on_startup: Callable[[], None] = lambda: None
    body_limit: int = BODY_LIMIT
    pool_size: int = POOL_SIZE
    deadline: float = DEADLINE

    def __post_init__(self) -> None:
        self._pool = ThreadPool(self.pool_size, "holdfast-review")
        # Only the event loop changes these counters.
        self._calls_left, self._bytes_left = 2 * self.pool_size, self.body_limit

    def post(
        self, path: str, content_type: str, body: bytes, content_encoding: str, peer: str = ""
    ) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Return the response to a POST from an address, or a coroutine if the review may block."""
        try:
            prepared = self.handler.prepare(path, content_type, body, content_encoding, peer)
            if isinstance(prepared, HttpResponse):
                return prepared
            if not prepared.may_block:
                return self.handler.decide(prepared)
        except Exception:  # noqa: BLE001 - any error is logged, and answered with 500
            return _broken("POST", path)
        return self._offload(path, prepared, len(body))

    def page(self, method: str, path: str) -> HttpResponse:
        """Return the response to any other request."""
        try:
            return self.handler.page(method, path)
        except Exception:  # noqa: BLE001 - any error is logged, and answered with 500
            return _broken(method, path)

    def stop(self) -> None:
        """Accept no more reviews, and drop the reviews that wait for a thread."""
        self._pool.close()

    async def _offload(self, path: str, prepared: PreparedReview, size: int) -> HttpResponse:
        if not self._calls_left or size > self._bytes_left:
            return self.handler.reject_full(prepared)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[HttpResponse] = loop.create_future()

        def run() -> None:
            # No request waits for a cancelled future.
            response = None if future.cancelled() else self._decide(path, prepared)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, future, response, size)

        try:
            self._pool.submit(run)
        except RuntimeError:
            # HTTP 500: the API server then follows failurePolicy.
            return text("the server is shutting down; try again", 500)
        # Until `_end`, because the thread of an abandoned review still holds it.
        self._calls_left -= 1
        self._bytes_left -= size
        try:
            async with asyncio.timeout(self.deadline):
                return await future
        except TimeoutError:
            return self.handler.reject_late(prepared, self.deadline)

    def _end(
        self, future: asyncio.Future[HttpResponse], response: HttpResponse | None, size: int
    ) -> None:
        self._calls_left += 1
        self._bytes_left += size
        if response is not None and not future.done():
            future.set_result(response)

    def _decide(self, path: str, prepared: PreparedReview) -> HttpResponse:
        try:
            return self.handler.decide(prepared)
        except BaseException:  # noqa: BLE001 - a plugin's SystemExit would end the thread
            return _broken("POST", path)


def _broken(method: str, path: str) -> HttpResponse:
    _log.exception("cannot answer %s %.200r", method, path)
    return text("internal error; see the server's log", 500)
