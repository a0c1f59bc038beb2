"""A backlog or slow work in one namespace does not starve the others."""

from collections import Counter

import pytest

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.fair import (
    MORE_SECONDS,
    REMEMBERED_SECONDS,
    SLOW_SECONDS,
    FairQueue,
)

A, B, C = (("one", name) for name in "abc")
X, Y = (("two", name) for name in "xy")


def make_queue(
    *keys: ObjectKey, limit: int = 9, first: int = 9, slow: tuple[str, ...] = ()
) -> FairQueue:
    """Return a queue with these keys; the `slow` namespaces are slow since second 0."""
    queue = FairQueue(limit, first=first)
    for namespace in slow:
        start(queue, (namespace, "slow"))
        queue.done((namespace, "slow"), SLOW_SECONDS, 0.0, succeeded=True)
    for key in keys:
        queue.put(key, 0.0)
    return queue


def start(queue: FairQueue, key: ObjectKey) -> None:
    queue.put(key, 0.0)
    assert queue.take(0.0) == key


def take_n(queue: FairQueue, count: int, now: float = 1.0) -> list[ObjectKey | None]:
    return [queue.take(now) for _ in range(count)]


def test_keys_of_a_namespace_are_taken_in_order_and_once() -> None:
    queue = make_queue(A, B, C, A)
    assert len(queue) == 3
    assert take_n(queue, 4) == [A, B, C, None]
    assert len(queue) == 0


def test_new_and_retried_keys_alternate() -> None:
    queue = make_queue(A, B)
    for key in (C, ("one", "d"), ("one", "e"), A):
        queue.put(key, 0.0, again=True)
    assert len(queue) == 5
    assert take_n(queue, 6) == [A, C, B, ("one", "d"), ("one", "e"), None]


def test_discarded_key_is_not_taken() -> None:
    queue = make_queue(A, B, X)
    queue.put(C, 0.0, again=True)
    for key in (A, C, X, Y):
        queue.discard(key)
    assert len(queue) == 1
    assert not queue.has_room("two")
    assert take_n(queue, 2) == [B, None]


def test_namespaces_take_turns() -> None:
    assert take_n(make_queue(A, B, C, X, Y), 6) == [A, X, B, Y, C, None]


def test_namespace_with_fewest_workers_is_served_first() -> None:
    queue = make_queue(*[("one", str(number)) for number in range(9)], limit=5)
    take_n(queue, 4)
    for key in (X, Y):
        queue.put(key, 1.0)
    assert take_n(queue, 4) == [X, Y, ("one", "4"), None]


def test_workers_of_a_namespace_are_limited() -> None:
    queue = make_queue(A, B, C, X, limit=2)
    assert take_n(queue, 4) == [A, X, B, None]
    queue.done(X, 0.1, 1.0, succeeded=True)
    assert queue.take(1.0) is None
    queue.give_back(A)
    assert take_n(queue, 2) == [C, None]


@pytest.mark.parametrize(("seconds", "slow"), [(SLOW_SECONDS - 0.1, False), (SLOW_SECONDS, True)])
def test_slow_attempt_makes_its_namespace_slow(seconds: float, slow: bool) -> None:
    queue = make_queue()
    start(queue, A)
    assert queue.done(A, seconds, 0.0, succeeded=True) is slow
    assert queue.is_slow("one", 1.0) is slow
    assert not queue.is_slow("two", 1.0)


def test_becoming_slow_is_reported_once() -> None:
    queue, results = make_queue(), []
    for now in (0.0, 50.0, 60 + REMEMBERED_SECONDS):
        start(queue, A)
        results.append(queue.done(A, SLOW_SECONDS, now, succeeded=True))
    assert results == [True, False, True]


def test_namespace_recovers_after_a_while_without_slow_attempts() -> None:
    queue = make_queue(slow=("one", "two"))
    for seconds, now in ((SLOW_SECONDS, 50.0), (0.1, 60.0)):
        start(queue, A)
        queue.done(A, seconds, now, succeeded=True)
    assert queue.is_slow("one", REMEMBERED_SECONDS + 49)
    assert not queue.is_slow("two", REMEMBERED_SECONDS)
    assert not queue.is_slow("one", REMEMBERED_SECONDS + 50)


def test_slow_namespaces_share_one_worker_limit() -> None:
    queue = make_queue(A, B, X, Y, ("three", "z"), limit=3, slow=("one", "two"))
    assert take_n(queue, 5) == [A, X, B, ("three", "z"), None]
    queue.done(A, SLOW_SECONDS, 1.0, succeeded=True)
    assert take_n(queue, 2) == [Y, None]


def test_queued_keys_become_slow_with_their_namespace() -> None:
    queue = make_queue(A, B, C, X, limit=2)
    assert take_n(queue, 2) == [A, X]
    queue.done(A, SLOW_SECONDS, 1.0, succeeded=True)
    queue.done(X, SLOW_SECONDS, 1.0, succeeded=True)
    queue.put(("three", "z"), 1.0)
    assert take_n(queue, 4) == [B, C, ("three", "z"), None]


def test_namespace_stays_slow_while_its_keys_are_queued() -> None:
    queue = make_queue(A, B, C, limit=2, slow=("one",))
    assert take_n(queue, 3) == [A, B, None]
    late = 1 + REMEMBERED_SECONDS
    assert queue.is_slow("one", late)
    queue.done(A, 0.1, late, succeeded=True)
    assert queue.take(late) == C
    assert not queue.is_slow("one", late + REMEMBERED_SECONDS)


def test_occasional_keys_do_not_keep_a_namespace_slow() -> None:
    queue = make_queue(slow=("one",))
    late = 1 + REMEMBERED_SECONDS
    queue.put(A, late)
    assert queue.take(late) == A
    assert not queue.is_slow("one", late)


def many(namespace: str, count: int = 50) -> list[ObjectKey]:
    return [(namespace, f"{number:02}") for number in range(count)]


def take_all(queue: FairQueue, now: float = 1.0) -> list[ObjectKey]:
    return list(iter(lambda: queue.take(now), None))


def test_each_success_adds_a_worker() -> None:
    queue = make_queue(*many("one"), limit=5, first=2)
    in_flight, counts = take_all(queue), []
    for _ in range(5):
        counts.append(len(in_flight))
        queue.done(in_flight.pop(0), 0.1, 1.0, succeeded=True)
        assert queue.has_room("one")
        in_flight += take_all(queue)
    assert counts == [2, 3, 4, 5, 5]
    assert not queue.has_room("one")


def test_fast_failure_leaves_the_worker_share_unchanged() -> None:
    queue = make_queue(*many("one"), limit=5, first=2)
    in_flight = take_all(queue)
    queue.done(in_flight.pop(), 0.1, 1.0, succeeded=True)
    in_flight += take_all(queue)
    for _ in range(9):
        queue.done(in_flight.pop(0), 0.1, 1.0, succeeded=False)
        in_flight += take_all(queue)
        assert len(in_flight) == 3


def test_slow_success_adds_a_worker() -> None:
    queue = make_queue(*many("one"), limit=5, first=2)
    in_flight = take_all(queue)
    queue.done(in_flight.pop(), SLOW_SECONDS, 1.0, succeeded=True)
    assert len(in_flight + take_all(queue)) == 3


def test_slow_failure_resets_the_worker_share() -> None:
    queue = make_queue(*many("one"), limit=5, first=2)
    in_flight = take_all(queue)
    while len(in_flight) < 5:
        queue.done(in_flight.pop(0), 0.1, 1.0, succeeded=True)
        in_flight += take_all(queue)
    for share in (4, 3, 2):
        queue.done(in_flight.pop(0), SLOW_SECONDS, 1.0, succeeded=False)
        assert len(in_flight) == share
        assert not queue.has_room("one") or share < 2
        in_flight += take_all(queue) if share < 2 else []
    queue.done(in_flight.pop(0), SLOW_SECONDS, 1.0, succeeded=False)
    assert len(in_flight + take_all(queue)) == 2


def hang(queue: FairQueue, in_flight: list[ObjectKey], now: float) -> list[ObjectKey]:
    """Fail each key in flight slowly, one by one; return the keys taken in their place."""
    next_keys: list[ObjectKey] = []
    for key in in_flight:
        queue.done(key, SLOW_SECONDS, now, succeeded=False)
        queue.put(key, now, again=True)
        next_keys += take_all(queue, now)
    return next_keys


def test_hanging_namespace_gains_workers_periodically() -> None:
    queue = make_queue(*many("one"), limit=7, first=2)
    in_flight, counts = take_all(queue), []
    for number in range(10):
        in_flight = hang(queue, in_flight, 1.0 + number * MORE_SECONDS / 2)
        counts.append(len(in_flight))
    assert counts == [2, 2, 4, 4, 6, 6, 7, 7, 7, 7]


def test_recovery_resets_the_worker_share() -> None:
    queue = make_queue(*many("one", 4), limit=7, first=2)
    in_flight = take_all(queue)
    in_flight = hang(queue, in_flight, 1.0)
    in_flight = hang(queue, in_flight, 1.0 + MORE_SECONDS)
    assert len(in_flight) == 4
    for key in in_flight:
        queue.done(key, 0.1, 20.0, succeeded=True)
    late = 20.0 + REMEMBERED_SECONDS
    assert not queue.is_slow("one", late)
    for key in many("one"):
        queue.put(key, late)
    in_flight = take_all(queue, late)
    assert len(in_flight) == 2
    assert len(hang(queue, in_flight, late + MORE_SECONDS)) == 2


def test_idle_namespace_resets_its_worker_share() -> None:
    queue = make_queue(*many("one", 3), limit=5, first=2)
    in_flight = take_all(queue)
    for key in in_flight:
        queue.done(key, 0.1, 1.0, succeeded=True)
    (last_key,) = take_all(queue)
    queue.done(last_key, 0.1, 1.0, succeeded=True)
    for key in many("one"):
        queue.put(key, 2.0)
    assert len(take_all(queue, 2.0)) == 2


def test_share_used_less_than_half_does_not_grow() -> None:
    queue = make_queue(first=4)
    for number in range(20):  # one after the other, while one call stays in flight
        start(queue, ("one", str(number)))
        if number:
            queue.done(("one", str(number)), 0.1, 1.0, succeeded=True)
    for key in many("one"):
        queue.put(key, 2.0)
    assert 1 + len(take_all(queue, 2.0)) == 4 + 1


def test_fast_work_in_a_slow_namespace_outpaces_a_hanging_one() -> None:
    """If one of two slow namespaces hangs, the other gets the rest, not every second turn."""
    hanging_keys = many("one")
    queue = make_queue(*hanging_keys, limit=4, slow=("one", "two"))
    take_n(queue, 4)
    for key in many("two"):
        queue.put(key, 1.0)
    queue.done(hanging_keys[0], 10.0, 10.0, succeeded=True)
    counts: Counter[str] = Counter()
    while (served_key := queue.take(10.0)) is not None:
        counts[served_key[0]] += 1
        if served_key[0] == "two":
            queue.done(served_key, 0.02, 10.0, succeeded=True)
    assert counts == {"two": 50, "one": 1}
