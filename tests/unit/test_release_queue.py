from __future__ import annotations

import heapq

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webhook import holds
from webhook.release_queue import MOVED, Held, ReleaseQueue, steady

A, B, C = ("default", "a"), ("default", "b"), ("other", "a")


def held(due_ms: int, uid: str = "u", version: str = "1") -> Held:
    return Held(due_ms, uid, version, ("holdfast.dev/delay",))


def queue_of(**due: int) -> ReleaseQueue:
    queue = ReleaseQueue()
    for name, due_ms in due.items():
        queue.put(("default", name), held(due_ms))
    return queue


def drained(queue: ReleaseQueue, now_ms: int) -> list[str]:
    names = []
    while (key := queue.pop_due(now_ms)) is not None:
        names.append(key[1])
    return names


def test_empty() -> None:
    queue = ReleaseQueue()

    assert queue.next_due_ms() is None
    assert queue.pop_due(10**15) is None
    assert len(queue) == 0
    assert queue.get(A) is None


def test_pods_come_in_the_order_in_which_they_are_due() -> None:
    assert drained(queue_of(a=30, b=10, c=20), 30) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(9, []), (10, ["a"]), (11, ["a"])], ids=["before", "at", "after"]
)
def test_nothing_comes_before_its_time(now_ms: int, expected: list[str]) -> None:
    assert expected == drained(queue_of(a=10), now_ms)


def test_pod_that_was_handed_out_stays_held() -> None:
    queue = queue_of(a=10)
    queue.pop_due(10)

    assert held(10) == queue.get(A)
    assert list(queue) == [A]
    assert queue.next_due_ms() is None


def test_retry_brings_it_up_again() -> None:
    queue = queue_of(a=10)
    queue.pop_due(10)
    queue.retry(A)

    assert drained(queue, 10) == ["a"]


def test_retry_of_a_pod_that_is_gone_does_nothing() -> None:
    queue = queue_of(a=10)
    queue.discard(A)
    queue.retry(A)
    queue.retry(B)

    assert drained(queue, 10) == []


@pytest.mark.parametrize("due_ms", [5, 50], ids=["earlier", "later"])
def test_change_of_the_due_time_is_followed(due_ms: int) -> None:
    queue = queue_of(a=10)
    queue.put(A, held(due_ms, version="2"))

    assert due_ms == queue.next_due_ms()
    assert drained(queue, due_ms - 1) == []
    assert drained(queue, due_ms) == ["a"]


def test_change_of_nothing_but_the_version_does_not_bring_it_up_twice() -> None:
    queue = queue_of(a=10)
    queue.put(A, held(10, version="2"))

    assert drained(queue, 10) == ["a"]
    assert held(10, version="2") == queue.get(A)


def test_discarded_pods_do_not_come() -> None:
    queue = queue_of(a=10, b=20)
    queue.discard(A)
    queue.discard(C)

    assert queue.next_due_ms() == 20
    assert len(queue) == 1


def test_names_count_by_namespace() -> None:
    queue = queue_of(a=10)
    queue.put(C, held(5))

    assert [queue.pop_due(10), queue.pop_due(10)] == [C, A]


def test_overdue() -> None:
    queue = queue_of(a=10, b=20, c=30)
    queue.pop_due(10)

    assert queue.overdue(20) == 2


def test_changes_over_and_over_do_not_grow_the_heap_without_end() -> None:
    queue = queue_of(b=10**9)
    for due_ms in range(10_000):
        queue.put(A, held(10_000 - due_ms))

    assert len(queue._heap) <= 1_010
    assert drained(queue, 10**9) == ["a", "b"]


def test_counting_looks_at_no_pod_that_is_not_due() -> None:
    class Watched(dict[tuple[str, str], Held]):
        looked = 0

        def get(self, *arguments: object) -> Held | None:  # type: ignore[override]
            self.looked += 1
            return super().get(*arguments)  # type: ignore[call-overload,no-any-return]

    queue = queue_of(**{f"p{number}": number for number in range(10_000)})
    queue._held = watched = Watched(queue._held)

    assert queue.overdue(4) == 5
    assert queue.holds(4) == {("delay", "release"): 5, ("delay", "time"): 9_995}
    assert watched.looked < 100


changes = st.lists(
    st.tuples(st.sampled_from("pdnr"), st.sampled_from("abc"), st.integers(0, 50)), max_size=60
)


@given(changes)
@example([("p", "a", 1), ("n", "a", 1), ("p", "a", 9), ("n", "b", 2)])
def test_counts_agree_with_a_look_at_all(found: list[tuple[str, str, int]]) -> None:
    queue, now = ReleaseQueue(), 0
    for action, name, number in found:
        key = ("default", name)
        if action == "p":
            queue.put(key, held(number if number < 40 else holds.NEVER_MS))
        elif action == "d":
            queue.discard(key)
        elif action == "r":
            queue.retry(key)
        else:
            now = max(now, number)
            queue.pop_due(now)
        waiting = [one for one in map(queue.get, queue) if one is not None]
        due = sum(one.due_ms <= now for one in waiting)
        never = sum(one.due_ms == holds.NEVER_MS for one in waiting)
        counts = {"release": due, "plugin": never, "time": len(waiting) - due - never}
        assert queue.overdue(now) == due
        assert queue.holds(now) == {
            ("delay", reason): count for reason, count in counts.items() if count
        }


@given(changes)
@example([("p", "a", 1), ("p", "a", 0), ("p", "a", 1), ("n", "a", 1)])
def test_agrees_with_a_sorted_table(found: list[tuple[str, str, int]]) -> None:
    queue, table, now = ReleaseQueue(), dict[str, int](), 0
    for action, name, number in found:
        if action == "p":
            queue.put(("default", name), held(number))
            table[name] = number
        elif action == "d":
            queue.discard(("default", name))
            table.pop(name, None)
        elif action == "r":
            queue.retry(("default", name))
        else:
            now = max(now, number)
            due = heapq.nsmallest(10, ((at, one) for one, at in table.items() if at <= now))
            popped = drained(queue, now)
            assert [one for _, one in due] == popped
            for one in popped:
                queue.discard(("default", one))
                del table[one]
        assert min(table.values(), default=None) == queue.next_due_ms()


@pytest.mark.parametrize(
    ("known", "fresh", "expected"),
    [
        pytest.param(None, held(10), held(10), id="new"),
        pytest.param(held(10), held(10), held(10), id="as it was"),
        pytest.param(held(10), held(9), held(9), id="earlier"),
        pytest.param(held(10), held(11), held(10)._replace(problem=MOVED), id="put off"),
        pytest.param(held(10), held(11, version="2"), held(11, version="2"), id="changed"),
        pytest.param(held(10), held(11, uid="v"), held(11, uid="v"), id="another pod"),
    ],
)
def test_only_a_pod_that_changed_is_put_off(
    known: Held | None, fresh: Held, expected: Held
) -> None:
    assert steady(known, fresh) == expected


def test_holds_are_counted_by_plugin_and_by_what_they_wait_for() -> None:
    queue = ReleaseQueue()
    ours, other = "holdfast.dev/delay", "holdfast.dev/approval"
    queue.put(("a", "due"), Held(100, "u1", "1", (ours, "example.com/quota")))
    queue.put(("a", "waits"), Held(200, "u2", "1", (ours,)))
    queue.put(("a", "both"), Held(holds.NEVER_MS, "u3", "1", (ours, other)))

    assert dict(queue.holds(100)) == {
        ("delay", "release"): 1,
        ("delay", "time"): 1,
        ("delay", "plugin"): 1,
        ("approval", "plugin"): 1,
    }
