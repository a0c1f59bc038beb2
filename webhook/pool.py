"""Threads for what may block: a review that looks something up, a release, a VM's record.

Unlike those of the standard library's pool they do not keep the process from its end, and nobody
makes a future of each job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

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
