"""A thread pool and a condition that a test controls: nothing runs or waits by itself."""

import threading
from collections.abc import Callable

from holdfast.webhook import threads


class ThreadPool(threads.ThreadPool):
    """Collects jobs, which the test then runs in its own thread."""

    def __init__(self) -> None:
        super().__init__(0, "manual")
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        """Run the jobs, but not those that they submit."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


class RecordingCondition(threading.Condition):
    """Records the timeout of each wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return True
