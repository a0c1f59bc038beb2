from __future__ import annotations

from webhook.work_queue import WorkQueue

A, B = ("default", "a"), ("default", "b")


def test_keys_come_up_in_the_order_of_their_times() -> None:
    queue = WorkQueue()
    queue.put(A, 2.0)
    queue.put(B, 1.0)

    assert queue.next_at() == 1.0
    assert [queue.take(2.0), queue.take(2.0), queue.take(2.0)] == [B, A, None]
    assert queue.under_way == 2


def test_key_whose_time_has_not_come_stays() -> None:
    queue = WorkQueue()
    queue.put(A, 2.0)

    assert queue.take(1.9) is None
    assert len(queue) == 1


def test_key_that_is_dropped_does_not_come_up() -> None:
    queue = WorkQueue()
    queue.put(A)
    queue.put(B)
    queue.discard(A)
    queue.discard(("default", "unknown"))

    assert [queue.take(0.0), queue.take(0.0)] == [B, None]
    assert len(queue) == 0


def test_key_that_is_dropped_while_it_is_under_way_does_not_come_up_again() -> None:
    queue = WorkQueue()
    queue.put(A)
    assert queue.take(0.0) == A
    queue.put(A)
    queue.discard(A)
    queue.finish(A)

    assert queue.take(0.0) is None


def test_what_is_put_and_dropped_over_and_over_leaves_nothing() -> None:
    queue = WorkQueue()
    queue.put(A)
    for number in range(5_000):
        queue.put(("default", str(number)))
        queue.discard(("default", str(number)))

    assert len(queue._heap) <= 1_003
    assert queue.take(0.0) == A


def test_earlier_time_counts() -> None:
    queue = WorkQueue()
    queue.put(A, 5.0)
    queue.put(A, 1.0)
    queue.put(A, 3.0)

    assert queue.take(1.0) == A
    queue.finish(A)
    assert queue.take(9.0) is None


def test_key_that_is_put_while_it_is_under_way_comes_up_once_more_afterwards() -> None:
    queue = WorkQueue()
    queue.put(A)
    assert queue.take(0.0) == A
    queue.put(A)
    queue.put(A)
    assert queue.take(0.0) is None
    assert queue.next_at() == float("inf")

    queue.finish(A)
    assert queue.take(0.0) == A
    queue.finish(A)
    assert queue.take(0.0) is None
    assert queue.under_way == 0
