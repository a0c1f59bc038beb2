"""Loops whose threads and waits are a test's own: nothing happens before it says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Pool(ThreadPoolExecutor):
    """Carries out what it was given only when the test says so, in the test's own thread."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(lambda: fn(*args, **kwargs))
        return Future()


class Impatient(threading.Condition):
    """Takes down how long it was to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return True
