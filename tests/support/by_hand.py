"""Loops whose threads and waits are a test's own: nothing happens before it says so."""

import threading
from collections.abc import Callable

from holdfast.webhook import threads


class ThreadPool(threads.ThreadPool):
    """Carries out what it was given only when the test says so, in the test's own thread."""

    def __init__(self) -> None:
        super().__init__(0, "by-hand")
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)


class Impatient(threading.Condition):
    """Takes down how long it was to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return True
