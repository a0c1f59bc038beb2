"""Free memory is returned to the operating system."""

import threading

import psutil

from holdfast.webhook import process

SIZE = 20_000
"""Too large for Python's own allocator, and too small for a mapping by the C library."""
COUNT = 2_000
KEPT = 20
"""One block in this many is kept, so that the free ones lie between used ones."""


def resident() -> int:
    return psutil.Process().memory_info().rss


def test_fragmented_free_memory_is_returned() -> None:
    blocks = [bytes([1]) * SIZE for _ in range(COUNT)]
    blocks = blocks[::KEPT]
    before = resident()
    process.give_back()
    assert before - resident() > SIZE * COUNT / 2
    assert len(blocks) == COUNT / KEPT  # the kept blocks stay allocated


def test_memory_is_returned_regularly_until_stopped() -> None:
    stop, third_call, count = threading.Event(), threading.Event(), 0

    def give_back() -> None:
        nonlocal count
        count += 1
        if count == 3:
            third_call.set()

    process.give_back_regularly(stop, seconds=0.001, give_back=give_back)
    assert third_call.wait(10)
    stop.set()
    (thread,) = (candidate for candidate in threading.enumerate() if candidate.name == "memory")
    thread.join(10)
    assert not thread.is_alive()
