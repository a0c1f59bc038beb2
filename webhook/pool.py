"""Threads for reviews that may block, and the way to them from the event loop and back.

The standard library's pool makes a future of each job, with a condition and four locks, which the
event loop wraps into another one: a tenth of what a review of a VM's pod costs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
Job = Callable[[], None]
"""What a thread is to do; it raises nothing."""


class Pool:
    """Threads that take jobs in the order in which they come: as many as are needed, up to a size.

    Safe to use from several threads. They do not keep the process from its end, whatever they wait
    for.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._started = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Have a job done; by a new thread, where none is idle. Raises RuntimeError when closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1
            elif self._started < self._size:
                self._start()

    def close(self) -> None:
        """Take no more jobs; those that wait are dropped, those that run may finish."""
        with self._lock:
            self._closed = True
            with suppress(Empty):
                while True:
                    self._jobs.get_nowait()
            for _ in range(self._started):
                self._jobs.put(None)

    def _start(self) -> None:
        name = f"{self._name}_{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._started += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # else the last one's review would be kept until the next comes
            with self._lock:
                self._idle += 1


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
