"""Memory that goes back to the system."""

import threading

import psutil

from holdfast.webhook import process

SIZE = 20_000
"""More than Python's own allocator takes, and less than the C library maps by itself."""
COUNT = 2_000
KEPT = 20
"""Of so many one is kept, so that what is free lies between what is not."""


def resident() -> int:
    return psutil.Process().memory_info().rss


def test_what_is_free_between_other_things_goes_back() -> None:
    blocks = [bytes([1]) * SIZE for _ in range(COUNT)]
    blocks = blocks[::KEPT]
    before = resident()
    process.give_back()
    assert before - resident() > SIZE * COUNT / 2
    assert len(blocks) == COUNT / KEPT  # they are still there


def test_it_goes_back_again_and_again_until_the_end() -> None:
    until, enough, count = threading.Event(), threading.Event(), 0

    def give_back() -> None:
        nonlocal count
        count += 1
        if count == 3:
            enough.set()

    process.give_back_regularly(until, seconds=0.001, give_back=give_back)
    assert enough.wait(10)
    until.set()
    (thread,) = (one for one in threading.enumerate() if one.name == "memory")
    thread.join(10)
    assert not thread.is_alive()
