"""Requests on the event loop, and the reviews that may block in a bounded pool, under a deadline.

A review that cannot block is answered where it arrives: handing it to a thread costs three times
the CPU of answering it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.webhook.server.handler import (
    BODY_LIMIT,
    AdmissionHandler,
    HttpResponse,
    PreparedReview,
    text,
)
from holdfast.webhook.threads import ThreadPool

POOL_SIZE = 16
"""Threads for reviews that may block; as many more may wait for one of them. The bodies of all of
them together have no more bytes than the longest body may have: launcher pods have 20 KB."""
DEADLINE = 2.5
"""Seconds for a review that may block: less than the 3 s that the API server waits for us."""

_log = logging.getLogger("holdfast.server")

T = TypeVar("T")


@dataclass(eq=False)
class AsyncHandler:
    """Answers requests for the event loop, with a handler that may block.

    `on_startup` runs in the worker before the first connection is accepted: its exception stops the
    server. `deadline` is in seconds, `body_limit` in bytes.
    """

    handler: AdmissionHandler
    _: KW_ONLY
    on_startup: Callable[[], None] = lambda: None
    body_limit: int = BODY_LIMIT
    pool_size: int = POOL_SIZE
    deadline: float = DEADLINE

    def __post_init__(self) -> None:
        self._pool = ThreadPool(self.pool_size, "holdfast-review")
        self._capacity = _CapacityLimit(2 * self.pool_size, self.body_limit)

    def post(
        self, path: str, content_type: str, body: bytes, content_encoding: str, peer: str = ""
    ) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Answer a POST from an address at once, or return what to await where that may block."""
        try:
            prepared = self.handler.prepare(path, content_type, body, content_encoding, peer)
            if isinstance(prepared, HttpResponse):
                return prepared
            if not prepared.may_block:
                return self.handler.decide(prepared)
        except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
            return _broken("POST", path)
        return self._offload(path, prepared, len(body))

    def page(self, method: str, path: str) -> HttpResponse:
        """Answer any other request."""
        try:
            return self.handler.page(method, path)
        except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
            return _broken(method, path)

    def stop(self) -> None:
        """Accept no more work; calls that wait for a thread are dropped."""
        self._pool.close()

    async def _offload(self, path: str, prepared: PreparedReview, size: int) -> HttpResponse:
        if not self._capacity.acquire(size):
            return self.handler.reject_full(prepared)
        call = OffloadedCall(
            partial(self._decide, path, prepared), partial(self._capacity.release, size)
        )
        try:
            return await call.result(self._pool, self.deadline)
        except RuntimeError:
            # HTTP 500: the API server then follows failurePolicy.
            return text("the server is shutting down; try again", 500)
        except TimeoutError:
            return self.handler.reject_late(prepared, self.deadline)

    def _decide(self, path: str, prepared: PreparedReview) -> HttpResponse:
        try:
            return self.handler.decide(prepared)
        except BaseException:  # noqa: BLE001 - a plugin's SystemExit would end the thread
            return _broken("POST", path)


def _broken(method: str, path: str) -> HttpResponse:
    _log.exception("cannot answer %s %.200r", method, path)
    return text("internal error; see the server's log", 500)


class OffloadedCall(Generic[T]):
    """A call that a thread makes while the event loop waits, up to a deadline.

    `call` raises nothing. `release` is called once: by the thread when the call is over, or when
    the call was given up before a thread began it, in which case no thread starts it.

    `concurrent.futures` does the same for 55 us of CPU; this takes 28 us, and its threads do not
    keep the process alive.
    """

    def __init__(self, call: Callable[[], T], release: Callable[[], None]) -> None:
        self._call, self._release = call, release
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()
        # The first one takes it and keeps it: the thread, or the caller that gives up.
        self._begins = threading.Lock()

    async def result(self, pool: ThreadPool, seconds: float) -> T:
        """Wait for the result. Raises TimeoutError, or RuntimeError when the pool is closed.

        Cancelling the wait gives the call up as well.
        """
        try:
            pool.submit(self._run)
            async with asyncio.timeout(seconds):
                return await self._future
        finally:
            if self._begins.acquire(blocking=False):
                self._release()

    def _run(self) -> None:
        if not self._begins.acquire(blocking=False):
            return
        result = self._call()
        self._release()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: T) -> None:
        if not self._future.done():
            self._future.set_result(result)


class _CapacityLimit:
    """Limits the calls in threads, and the bytes of their bodies. Safe to use from several threads.

    The thread of a call that was given up still runs, and keeps the review: its share is free when
    the thread is done.
    """

    def __init__(self, calls: int, size: int) -> None:
        self._lock = threading.Lock()
        self._calls, self._size = calls, size

    def acquire(self, size: int) -> bool:
        with self._lock:
            if not self._calls or size > self._size:
                return False
            self._calls -= 1
            self._size -= size
            return True

    def release(self, size: int) -> None:
        with self._lock:
            self._calls += 1
            self._size += size
