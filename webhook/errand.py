"""A review's way from the event loop to a thread that may block, and back.

The standard library's pool makes a future of each job, with a condition and four locks, which the
event loop wraps into another one: a tenth of what a review of a VM's pod costs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from webhook.pool import Pool

T = TypeVar("T")


class Errand(Generic[T]):
    """Something for a thread to do, whose outcome the event loop waits for, up to a deadline.

    `do` raises nothing. `leave` is called once: by the thread when that is done, or when it has
    been given up before any thread began it, which none does then.
    """

    def __init__(self, do: Callable[[], T], leave: Callable[[], None]) -> None:
        self._do, self._leave = do, leave
        self._loop = asyncio.get_running_loop()
        self._coming: asyncio.Future[T] = self._loop.create_future()
        self._begins = threading.Lock()  # whoever has it first: the thread, or who gives up

    async def outcome(self, pool: Pool, seconds: float) -> T:
        """Have a thread of the pool do it. Raises TimeoutError, or RuntimeError when it is closed.

        Whoever is cancelled meanwhile gives it up as well.
        """
        try:
            pool.submit(self._run)
            async with asyncio.timeout(seconds):
                return await self._coming
        finally:
            if self._begins.acquire(blocking=False):
                self._leave()

    def _run(self) -> None:
        if not self._begins.acquire(blocking=False):
            return
        found = self._do()
        self._leave()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._settle, found)

    def _settle(self, found: T) -> None:
        if not self._coming.done():
            self._coming.set_result(found)
