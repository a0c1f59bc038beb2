"""Run functions in the background of a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(*functions: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each function in a thread; when the block ends, set its event, and wait for it."""
    stop = threading.Event()
    threads = [threading.Thread(target=function, args=(stop,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
