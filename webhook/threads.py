"""Threads that start and end with a process: a group of long-running threads, and a pool."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Self

JOIN_SECONDS = 2.0
"""Seconds that shutdown waits for threads: a signal ends the process within three seconds."""

_log = logging.getLogger("holdfast.controller")

Work = Callable[[threading.Event], None]


class ThreadGroup:
    """Runs each function in a thread; a context manager that stops all threads on exit.

    An unexpected exception in a thread is logged, and `on_failure` is called to end the process.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._threads: list[tuple[threading.Thread, float]] = []
        self.failed = False
        self.unfinished: frozenset[str] = frozenset()
        """The names of threads that were still running after their grace period."""

    def add(self, name: str, work: Work, *, grace: float = JOIN_SECONDS) -> None:
        """Add a function, which is called with the event that stops it.

        Shutdown waits for it until `grace` seconds after the shutdown began; use 0 for work that
        may be abandoned.
        """
        thread = threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True)
        self._threads.append((thread, grace))

    def start(self, name: str, work: Work) -> None:
        """Run a function now, in a thread that shutdown does not wait for."""
        threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True).start()

    def stop(self) -> None:
        """Set the event that stops all threads, without waiting for them."""
        self._stop.set()

    def __enter__(self) -> Self:
        for thread, _ in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        began = time.monotonic()
        for thread, grace in self._threads:
            thread.join(max(0.0, began + grace - time.monotonic()))
        running = (thread for thread, grace in self._threads if grace and thread.is_alive())
        self.unfinished = frozenset(thread.name for thread in running)

    def _guarded(self, name: str, work: Work) -> None:
        try:
            work(self._stop)
        except BaseException:  # noqa: BLE001 - any error ends the process
            _log.exception("thread %s died; the process ends, to be restarted", name)
            self.failed = True
            self._on_failure()


Job = Callable[[], None]
"""A function for a pool; it must not raise."""


class ThreadPool:
    """Threads that run jobs in order of arrival, started as needed, up to a size. Thread-safe.

    Not a ThreadPoolExecutor: the interpreter joins an executor's threads at exit, so one hanging
    request would keep the process from exiting.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._started = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job, and start a thread if none is idle. Raises RuntimeError if closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1
            elif self._started < self._size:
                self._start()

    def close(self) -> None:
        """Accept no more jobs. Queued jobs are dropped; running jobs may finish."""
        with self._lock:
            self._closed = True
            with suppress(Empty):
                while True:
                    self._jobs.get_nowait()
            # One None for each thread, which ends when it gets one.
            for _ in range(self._started):
                self._jobs.put(None)

    def _start(self) -> None:
        name = f"{self._name}_{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._started += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # otherwise the last job's review would live until the next one comes
            with self._lock:
                self._idle += 1
