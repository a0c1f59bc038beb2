"""Keys come up in order, are never in flight twice, and stay until done or dropped."""

import heapq

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue import queue as module
from holdfast.webhook.workqueue.backoff import FIRST_SECONDS
from holdfast.webhook.workqueue.fair import SLOW_SECONDS
from holdfast.webhook.workqueue.queue import WorkQueue

A, B, C = (("one", name) for name in "abc")
X = ("two", "x")


def queue_of(limit: int = 9, **times: float) -> WorkQueue[float]:
    queue = WorkQueue[float](float, limit, first=limit)
    for name, at in times.items():
        queue.put(("one", name), at)
    return queue


def take_all(queue: WorkQueue[float], now: float) -> list[ObjectKey]:
    return list(iter(lambda: queue.next(now), None))


def end(queue: WorkQueue[float], key: ObjectKey, now: float, *, succeeded: bool = True) -> bool:
    return queue.done(key, 0.1, now, succeeded=succeeded)


def test_requeued_key_comes_up_again() -> None:
    queue = queue_of(a=10)
    assert take_all(queue, 10) == [A]
    queue.requeue(A)
    assert queue.in_flight == 0
    assert take_all(queue, 10) == [A]


@pytest.mark.parametrize("succeeded", [True, False], ids=["success", "failure"])
def test_key_changed_in_flight_comes_up_again(succeeded: bool) -> None:
    queue = queue_of(a=10)
    assert take_all(queue, 10) == [A]
    queue.put(A, 15)
    assert take_all(queue, 15) == []
    end(queue, A, 15, succeeded=succeeded)
    if not succeeded:
        queue.retry(A, 15, at_least=5)
    assert take_all(queue, 15) == [A]
    end(queue, A, 15)
    assert take_all(queue, 99) == []


def test_postponed_ready_key_waits_for_its_new_time() -> None:
    queue = queue_of(1, a=10, b=10)
    assert take_all(queue, 10) == [A]  # B is ready, but has no worker
    assert queue.waits(B)
    queue.put(B, 20)
    end(queue, A, 10)
    assert take_all(queue, 19) == []
    assert take_all(queue, 20) == [B]


def test_failed_key_is_retried_after_its_backoff() -> None:
    queue = queue_of(a=10)
    assert take_all(queue, 10) == [A]
    end(queue, A, 10, succeeded=False)
    assert queue.retry(A, 10, at_least=5) == 5
    assert not queue.waits(A)
    assert queue.wait(11) == 4
    assert take_all(queue, 14.9) == []
    assert take_all(queue, 15) == [A]


def test_failed_key_that_changes_is_retried_early_and_once() -> None:
    queue = queue_of(a=10)
    take_all(queue, 10)
    end(queue, A, 10, succeeded=False)
    queue.retry(A, 10, at_least=9)
    queue.put(A, 11)
    assert take_all(queue, 11) == [A]
    assert take_all(queue, 30) == []  # the back-off is over, but the key is in flight
    end(queue, A, 30)
    assert take_all(queue, 99) == []


def test_custom_clock_may_be_unknown_or_set_back() -> None:
    ahead: list[float | None] = [None]

    def clock(local: float) -> float | None:
        return None if ahead[0] is None else (local + ahead[0]) * 1_000

    queue = WorkQueue[float](float, 1, first=1, clock=clock, per_second=1_000)
    queue.put(A, 2_000)
    queue.put(B, 2_000)
    assert (queue.next(99), queue.wait(99)) == (None, float("inf"))
    ahead[0] = 1.0
    assert queue.wait(0.5) == 0.5
    assert take_all(queue, 1) == [A]  # and B is ready
    ahead[0] = -9.0
    end(queue, A, 1)
    assert take_all(queue, 2) == []
    assert take_all(queue, 11) == [B]


@pytest.mark.parametrize("keeps_failures", [True, False])
def test_failures_of_a_key_count_until_it_is_dropped_or_succeeds(keeps_failures: bool) -> None:
    queue = WorkQueue[float](float, 9, first=9, keeps_failures=keeps_failures)
    waits = []
    for now in (10, 20):
        queue.put(A, now)
        assert take_all(queue, now) == [A]
        end(queue, A, now, succeeded=False)
        waits.append(queue.retry(A, now, at_least=0))
        queue.put(A, now + 5)
        assert take_all(queue, now + 5) == [A]
        queue.schedule(A)  # like a pod that is held again
        end(queue, A, now + 5)
    assert (waits[1] > FIRST_SECONDS) is keeps_failures

    queue.discard(A)
    queue.put(A, 30)
    assert take_all(queue, 30) == [A]
    end(queue, A, 30, succeeded=False)
    assert queue.retry(A, 30, at_least=0) <= FIRST_SECONDS


def test_failed_key_in_a_slow_namespace_needs_a_long_timeout() -> None:
    for seconds, fails, expected in [(SLOW_SECONDS, True, True), (0.1, True, False)]:
        queue = queue_of(a=10, b=10)
        assert take_all(queue, 10) == [A, B]
        became_slow = queue.done(A, seconds, 10, succeeded=not fails)
        assert became_slow == (seconds == SLOW_SECONDS)
        queue.retry(A, 10, at_least=0)
        assert queue.needs_long_timeout(A, 11) is expected
        assert not queue.needs_long_timeout(B, 11)


def test_keys_in_flight_in_slow_namespaces_do_not_count_as_fast() -> None:
    queue = queue_of(a=10, b=10, c=10)
    queue.put(("two", "a"), 10)
    assert len(take_all(queue, 10)) == 4
    queue.done(A, SLOW_SECONDS, 10, succeeded=True)
    assert (queue.in_flight, queue.in_flight_fast) == (3, 1)


def test_dropped_key_is_no_longer_ready() -> None:
    queue = queue_of(1, a=10, b=10)
    assert take_all(queue, 10) == [A]
    queue.discard(B)
    assert not queue.has_room("one")
    end(queue, A, 10)
    assert not queue.has_room("one")


def test_new_key_does_not_wait_behind_all_failed_keys() -> None:
    queue = queue_of(2, a=10, b=10, c=20)
    assert take_all(queue, 10) == [A, B]
    for key in (A, B):
        end(queue, key, 10, succeeded=False)
        queue.retry(key, 10, at_least=0)
    first, second = take_all(queue, 20)
    assert first == C
    assert second in {A, B}


def test_keys_beyond_one_ready_batch_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_AT_ONCE", 3)
    queue, keys = queue_of(1, **{f"k{number:02}": 1 for number in range(20)}), []
    while (key := queue.next(1)) is not None:
        keys.append(key)
        end(queue, key, 1)
    assert len(set(keys)) == len(keys) == 20


def paused_queue(**until: float) -> tuple[WorkQueue[float], list[ObjectKey]]:
    """Return a queue with keys in two namespaces, some of them paused, and the keys it reports."""
    paused_keys: list[ObjectKey] = []
    queue = WorkQueue[float](float, 9, first=9, on_paused=paused_keys.append)
    queue.pause(until, 0)
    for key, at in ((A, 10), (B, 20), (X, 10)):
        queue.put(key, at)
    return queue, paused_keys


def test_keys_of_a_paused_namespace_are_reported_when_they_are_due() -> None:
    queue, paused_keys = paused_queue(one=100)
    assert take_all(queue, 10) == [X]
    assert paused_keys == [A]
    assert take_all(queue, 30) == []
    assert paused_keys == [A, B]
    assert queue.wait(30) == 70


def test_pause_ends_at_its_time() -> None:
    queue, _ = paused_queue(one=25)
    assert take_all(queue, 24) == [X]
    assert queue.is_paused("one")
    assert take_all(queue, 25) == [A, B]
    assert not queue.is_paused("one")
    assert queue.wait(25) == float("inf")


def test_pause_applies_to_ready_keys() -> None:
    queue, paused_keys = paused_queue()
    assert queue.next(10) == A
    queue.pause({"one": 50, "two": 50}, 10)
    assert paused_keys == [X]
    assert take_all(queue, 20) == []
    end(queue, A, 20, succeeded=False)
    queue.retry(A, 20, at_least=5)
    assert take_all(queue, 40) == []
    assert paused_keys == [X, B, A]
    queue.discard(X)
    assert take_all(queue, 50) == [B, A]


def test_pause_continues_while_the_time_is_unknown() -> None:
    times: list[float | None] = [None, None, 10, 20]
    queue = WorkQueue[float](float, 9, first=9, clock=lambda _: times.pop(0))
    queue.put(A, 5)
    queue.pause({"one": 15}, 0)
    assert [queue.next(0) for _ in range(3)] == [None, None, A]


def test_due_does_not_visit_items_that_are_not_due() -> None:
    class CountingDict(dict[ObjectKey, float]):
        lookups = 0

        def get(self, *arguments: object) -> float | None:  # type: ignore[override]
            self.lookups += 1
            return super().get(*arguments)  # type: ignore[call-overload,no-any-return]

    queue = queue_of(**{f"p{number}": number for number in range(10_000)})
    queue._items = items = CountingDict(queue._items)
    assert sorted(at for _, at in queue.due(4)) == [0, 1, 2, 3, 4]
    assert items.lookups < 100


changes = st.lists(
    st.tuples(st.sampled_from("pdsne"), st.sampled_from("abc"), st.integers(0, 50)), max_size=60
)


@given(changes)
@example([("p", "a", 1), ("p", "a", 0), ("p", "a", 1), ("n", "a", 1)])
@example([("p", "a", 1), ("n", "a", 1), ("p", "a", 9), ("e", "a", 2), ("n", "a", 9)])
@example([("p", "a", 1), ("n", "a", 1), ("d", "a", 0), ("e", "a", 0), ("n", "a", 9)])
@example([("p", "a", 1), ("n", "a", 1), ("d", "a", 0), ("p", "a", 1), ("e", "a", 0), ("n", "a", 1)])
def test_queue_agrees_with_a_sorted_table(actions: list[tuple[str, str, int]]) -> None:
    queue, table, now = queue_of(), dict[ObjectKey, float](), 0
    in_flight: dict[ObjectKey, bool] = {}
    """Keys in flight, and whether they come up again."""
    for action, name, number in actions:
        key = ("one", name)
        if action == "p":
            in_flight |= {key: True} if key in in_flight and table.get(key) != number else {}
            queue.put(key, number)
            table[key] = number
        elif action == "d":
            queue.discard(key)
            table.pop(key, None)
        elif action == "s":
            in_flight |= {key: True} if key in in_flight else {}
            queue.schedule(key)
        elif action == "e" and key in in_flight:
            again = in_flight.pop(key)
            end(queue, key, now)
            if not again:
                table.pop(key, None)
        elif action == "n":
            now = max(now, number)
            due = ((at, key) for key, at in table.items() if at <= now and key not in in_flight)
            expected = [key for _, key in heapq.nsmallest(10, due)]
            assert take_all(queue, now) == expected
            in_flight |= dict.fromkeys(expected, False)
        assert dict(queue.due(now)) == {key: at for key, at in table.items() if at <= now}
        due_times = (at for key, at in table.items() if key not in in_flight)
        assert queue.wait(now) == min(due_times, default=float("inf")) - now
