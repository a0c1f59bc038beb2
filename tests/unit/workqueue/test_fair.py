"""However much is due in one namespace, and however long it takes, others have their turn."""

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


def queue(*keys: ObjectKey, most: int = 9, first: int = 9, slow: tuple[str, ...] = ()) -> FairQueue:
    """Give one with these keys; some namespaces are slow, since second 0."""
    found = FairQueue(most, first=first)
    for namespace in slow:
        begin(found, (namespace, "slow"))
        found.done((namespace, "slow"), SLOW_SECONDS, 0.0, succeeded=True)
    for key in keys:
        found.put(key, 0.0)
    return found


def begin(found: FairQueue, key: ObjectKey) -> None:
    found.put(key, 0.0)
    assert found.take(0.0) == key


def taken(found: FairQueue, count: int, now: float = 1.0) -> list[ObjectKey | None]:
    return [found.take(now) for _ in range(count)]


def test_a_namespace_keeps_its_order() -> None:
    found = queue(A, B, C)
    assert len(found) == 3
    assert taken(found, 4) == [A, B, C, None]
    assert len(found) == 0


def test_what_is_put_twice_waits_once() -> None:
    found = queue(A, B, A)
    assert len(found) == 2
    assert taken(found, 3) == [A, B, None]


def test_what_is_new_and_what_is_tried_again_have_turns() -> None:
    found = queue(A, B)
    for key in (C, ("one", "d"), ("one", "e"), A):
        found.put(key, 0.0, again=True)
    assert len(found) == 5
    assert taken(found, 6) == [A, C, B, ("one", "d"), ("one", "e"), None]


def test_what_is_discarded_has_no_turn() -> None:
    found = queue(A, B, X)
    found.put(C, 0.0, again=True)
    for key in (A, C, X, Y):
        found.discard(key)
    assert len(found) == 1
    assert not found.has_room("two")
    assert taken(found, 2) == [B, None]


def test_namespaces_have_their_turns() -> None:
    assert taken(queue(A, B, C, X, Y), 6) == [A, X, B, Y, C, None]


def test_what_comes_goes_to_the_namespace_with_the_fewest_workers() -> None:
    found = queue(*[("one", str(number)) for number in range(9)], most=5)
    taken(found, 4)
    for key in (X, Y):
        found.put(key, 1.0)
    assert taken(found, 4) == [X, Y, ("one", "4"), None]


def test_no_namespace_has_more_workers_than_its_part() -> None:
    found = queue(A, B, C, X, most=2)
    assert taken(found, 4) == [A, X, B, None]
    found.done(X, 0.1, 1.0, succeeded=True)
    assert found.take(1.0) is None
    found.give_back(A)
    assert taken(found, 2) == [C, None]


@pytest.mark.parametrize(("seconds", "slow"), [(SLOW_SECONDS - 0.1, False), (SLOW_SECONDS, True)])
def test_a_namespace_is_slow_in_which_something_took_long(seconds: float, slow: bool) -> None:
    found = queue()
    begin(found, A)
    assert found.done(A, seconds, 0.0, succeeded=True) is slow
    assert found.is_slow("one", 1.0) is slow
    assert not found.is_slow("two", 1.0)


def test_that_it_has_become_slow_is_told_once() -> None:
    found, told = queue(), []
    for at in (0.0, 50.0, 60 + REMEMBERED_SECONDS):
        begin(found, A)
        told.append(found.done(A, SLOW_SECONDS, at, succeeded=True))
    assert told == [True, False, True]


def test_it_is_slow_until_nothing_has_taken_long_for_a_while() -> None:
    found = queue(slow=("one", "two"))
    for seconds, at in ((SLOW_SECONDS, 50.0), (0.1, 60.0)):
        begin(found, A)
        found.done(A, seconds, at, succeeded=True)
    assert found.is_slow("one", REMEMBERED_SECONDS + 49)
    assert not found.is_slow("two", REMEMBERED_SECONDS)
    assert not found.is_slow("one", REMEMBERED_SECONDS + 50)


def test_slow_namespaces_have_no_more_workers_together_than_one_may() -> None:
    found = queue(A, B, X, Y, ("three", "z"), most=3, slow=("one", "two"))
    assert taken(found, 5) == [A, X, B, ("three", "z"), None]
    found.done(A, SLOW_SECONDS, 1.0, succeeded=True)
    assert taken(found, 2) == [Y, None]


def test_what_waits_becomes_slow_with_its_namespace() -> None:
    found = queue(A, B, C, X, most=2)
    assert taken(found, 2) == [A, X]
    found.done(A, SLOW_SECONDS, 1.0, succeeded=True)
    found.done(X, SLOW_SECONDS, 1.0, succeeded=True)
    found.put(("three", "z"), 1.0)
    assert taken(found, 4) == [B, C, ("three", "z"), None]


def test_a_namespace_stays_slow_while_something_of_it_waits_for_its_turn() -> None:
    found = queue(A, B, C, most=2, slow=("one",))
    assert taken(found, 3) == [A, B, None]
    late = 1 + REMEMBERED_SECONDS
    assert found.is_slow("one", late)
    found.done(A, 0.1, late, succeeded=True)
    assert found.take(late) == C
    assert not found.is_slow("one", late + REMEMBERED_SECONDS)


def test_what_is_due_now_and_then_does_not_keep_its_namespace_slow() -> None:
    found = queue(slow=("one",))
    late = 1 + REMEMBERED_SECONDS
    found.put(A, late)
    assert found.take(late) == A
    assert not found.is_slow("one", late)


def many(namespace: str, count: int = 50) -> list[ObjectKey]:
    return [(namespace, f"{number:02}") for number in range(count)]


def under_way(found: FairQueue, now: float = 1.0) -> list[ObjectKey]:
    return list(iter(lambda: found.take(now), None))


def test_a_namespace_has_one_more_worker_for_each_that_succeeds() -> None:
    found = queue(*many("one"), most=5, first=2)
    begun, counts = under_way(found), []
    for _ in range(5):
        counts.append(len(begun))
        found.done(begun.pop(0), 0.1, 1.0, succeeded=True)
        assert found.has_room("one")
        begun += under_way(found)
    assert counts == [2, 3, 4, 5, 5]
    assert not found.has_room("one")


def test_what_fails_at_once_wins_and_loses_no_worker() -> None:
    found = queue(*many("one"), most=5, first=2)
    begun = under_way(found)
    found.done(begun.pop(), 0.1, 1.0, succeeded=True)
    begun += under_way(found)
    for _ in range(9):
        found.done(begun.pop(0), 0.1, 1.0, succeeded=False)
        begun += under_way(found)
        assert len(begun) == 3


def test_what_succeeds_wins_a_worker_even_where_it_takes_long() -> None:
    found = queue(*many("one"), most=5, first=2)
    begun = under_way(found)
    found.done(begun.pop(), SLOW_SECONDS, 1.0, succeeded=True)
    assert len(begun + under_way(found)) == 3


def test_after_one_that_hung_a_namespace_begins_again() -> None:
    found = queue(*many("one"), most=5, first=2)
    begun = under_way(found)
    while len(begun) < 5:
        found.done(begun.pop(0), 0.1, 1.0, succeeded=True)
        begun += under_way(found)
    for left in (4, 3, 2):
        found.done(begun.pop(0), SLOW_SECONDS, 1.0, succeeded=False)
        assert len(begun) == left
        assert not found.has_room("one") or left < 2
        begun += under_way(found) if left < 2 else []
    found.done(begun.pop(0), SLOW_SECONDS, 1.0, succeeded=False)
    assert len(begun + under_way(found)) == 2


def hang(found: FairQueue, begun: list[ObjectKey], now: float) -> list[ObjectKey]:
    """End one after the other that is under way, in vain, and give what is begun instead."""
    following: list[ObjectKey] = []
    for key in begun:
        found.done(key, SLOW_SECONDS, now, succeeded=False)
        found.put(key, now, again=True)
        following += under_way(found, now)
    return following


def test_a_namespace_in_which_work_hangs_has_some_workers_more_now_and_then() -> None:
    found = queue(*many("one"), most=7, first=2)
    begun, counts = under_way(found), []
    for number in range(10):
        begun = hang(found, begun, 1.0 + number * MORE_SECONDS / 2)
        counts.append(len(begun))
    assert counts == [2, 2, 4, 4, 6, 6, 7, 7, 7, 7]


def test_that_ends_when_it_is_slow_no_more() -> None:
    found = queue(*many("one", 4), most=7, first=2)
    begun = under_way(found)
    begun = hang(found, begun, 1.0)
    begun = hang(found, begun, 1.0 + MORE_SECONDS)
    assert len(begun) == 4
    for key in begun:
        found.done(key, 0.1, 20.0, succeeded=True)
    late = 20.0 + REMEMBERED_SECONDS
    assert not found.is_slow("one", late)
    for key in many("one"):
        found.put(key, late)
    begun = under_way(found, late)
    assert len(begun) == 2
    assert len(hang(found, begun, late + MORE_SECONDS)) == 2


def test_a_namespace_that_had_no_worker_begins_again() -> None:
    found = queue(*many("one", 3), most=5, first=2)
    begun = under_way(found)
    for key in begun:
        found.done(key, 0.1, 1.0, succeeded=True)
    (last,) = under_way(found)
    found.done(last, 0.1, 1.0, succeeded=True)
    for key in many("one"):
        found.put(key, 2.0)
    assert len(under_way(found, 2.0)) == 2


def test_who_uses_less_than_half_of_what_it_may_have_wins_no_worker() -> None:
    found = queue(first=4)
    for number in range(20):  # one after the other, while one call stays in flight
        begin(found, ("one", str(number)))
        if number:
            found.done(("one", str(number)), 0.1, 1.0, succeeded=True)
    for key in many("one"):
        found.put(key, 2.0)
    assert 1 + len(under_way(found, 2.0)) == 4 + 1


def test_slow_but_quick_again_is_not_kept_behind_what_hangs() -> None:
    """Of two slow namespaces one hangs: the other one has what it leaves, not every second turn."""
    hanging = [("one", str(number)) for number in range(50)]
    quick = [("two", str(number)) for number in range(50)]
    found = queue(*hanging, most=4, slow=("one", "two"))
    taken(found, 4)
    for key in quick:
        found.put(key, 1.0)
    found.done(hanging[0], 10.0, 10.0, succeeded=True)
    served: Counter[str] = Counter()
    while (one := found.take(10.0)) is not None:
        served[one[0]] += 1
        if one[0] == "two":
            found.done(one, 0.02, 10.0, succeeded=True)
    assert served == {"two": 50, "one": 1}
