"""Hostile input costs work in proportion to its length, and bounded memory.

No test measures time. Work is the number of lines of Python that run, which is always the same for
the same input. Memory is the peak that Python allocates for one review.
"""

import json
import tracemalloc

import pytest

from tests.support.builders import make_review
from tests.support.counting import counted
from tests.support.expensive import SHAPES, WORKLOADS, annotated, body_of
from tests.support.hostile import PATHS, SERVER

SMALL, TIMES = 200, 8
"""Number of repeated elements in the small body, and how many times as many the large one has."""
SLACK = 1.1
MOST_PER_BYTE = 40
"""Bytes of memory per byte of the body: `{}` in a list costs most, for 3 bytes of the body."""
FIXED = 256 << 10
LONG = 100_000
"""Characters of a long value."""


CASES = [(path, shape) for path in PATHS for shape in SHAPES]
CASES += [("/validate", shape) for shape in WORKLOADS]


def work(path: str, content: bytes) -> int:
    SERVER.ask_here(path, content)  # warm up: one-time work is not counted
    with counted() as steps:  # counts this thread only
        response = SERVER.ask_here(path, content)
    assert response.status == 200
    return steps[0]


@pytest.mark.parametrize(("path", "shape"), CASES)
def test_work_grows_no_faster_than_the_body(path: str, shape: str) -> None:
    small_work, large_work = (work(path, body_of(shape, SMALL * n)) for n in (1, TIMES))

    assert small_work > 500, "nothing was counted"
    assert large_work <= small_work * TIMES * SLACK


def test_unknown_keys_beyond_the_last_warning_cost_little() -> None:
    small_work, large_work = (
        work("/validate", body_of("unknown keys", SMALL * n)) for n in (1, TIMES)
    )

    assert large_work <= small_work * TIMES / 2


@pytest.mark.parametrize(("path", "shape"), CASES)
def test_memory_is_proportional_to_the_body(path: str, shape: str) -> None:
    content = body_of(shape, SMALL * TIMES)
    SERVER.ask(path, content)
    tracemalloc.start()
    try:
        status, _ = SERVER.ask(path, content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert status == 200
    assert peak <= MOST_PER_BYTE * len(content) + FIXED


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        pytest.param("delay", "0" * LONG, "15", id="delay"),
        pytest.param("holdfast.dev/window", f"Mon {' ' * LONG}", "10:00-11:00", id="window"),
        pytest.param("holdfast.dev/after", f"job/x,{' ' * LONG}", "job/y", id="after"),
        pytest.param("holdfast.dev/pace", f"4,{' ' * LONG}", "10/1m", id="pace"),
        pytest.param("holdfast.dev/approval", "x" * LONG, "y", id="approval"),
    ],
)
def test_long_values_are_not_kept_after_their_reviews(key: str, start: str, end: str) -> None:
    """Anyone can send reviews, each with a different value."""

    def ask(number: int) -> None:
        value = f"{start}{start[-1] * number}{end}"
        content = json.dumps(make_review(annotated(**{key: value}))).encode()
        assert SERVER.ask("/mutate", content)[0] == 200

    ask(0)
    tracemalloc.start()
    try:
        for number in range(1, 21):
            ask(number)
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert memory < 5 * LONG
