"""What takes long in one namespace leaves the others a way."""

from __future__ import annotations

import pytest

from webhook.slow_lane import REMEMBERED_SECONDS, SLOW_SECONDS, SlowLane

A, B, C = (("one", name) for name in "abc")
X, Y = (("two", name) for name in "xy")


def lane(size: int = 2) -> SlowLane:
    """Give one in which two namespaces are slow, since second 0."""
    found = SlowLane(size)
    for key in (A, X):
        found.took(key, SLOW_SECONDS, 0.0)
    return found


@pytest.mark.parametrize(("seconds", "slow"), [(SLOW_SECONDS - 0.1, False), (SLOW_SECONDS, True)])
def test_a_namespace_is_slow_in_which_something_took_long(seconds: float, slow: bool) -> None:
    found = SlowLane(2)
    found.took(A, seconds, 0.0)
    assert found.is_slow("one", 1.0) is slow
    assert not found.is_slow("two", 1.0)


def test_that_it_has_become_slow_is_told_once() -> None:
    found = SlowLane(2)
    told = [found.took(A, SLOW_SECONDS, at) for at in (0.0, 50.0, 60 + REMEMBERED_SECONDS)]
    assert told == [True, False, True]
    assert not found.took(X, 0.1, 60.0)


def test_it_is_slow_until_nothing_has_taken_long_for_a_while() -> None:
    found = lane()
    found.took(A, SLOW_SECONDS, 50.0)
    found.took(A, 0.1, 60.0)
    assert found.is_slow("one", REMEMBERED_SECONDS + 49)
    assert not found.is_slow("two", REMEMBERED_SECONDS)
    assert not found.is_slow("one", REMEMBERED_SECONDS + 50)


def test_no_more_is_handed_out_than_it_has_workers() -> None:
    found = lane()
    for key in (A, B, C):
        found.put(key)
    assert [found.take(1.0) for _ in range(3)] == [A, B, None]
    found.took(A, 0.1, 2.0)
    assert [found.take(2.0) for _ in range(2)] == [C, None]


def test_namespaces_have_their_turns_and_each_keeps_its_order() -> None:
    found = lane(size=9)
    for key in (A, B, C, X, Y):
        found.put(key)
    assert [found.take(1.0) for _ in range(6)] == [A, X, B, Y, C, None]


def test_what_is_put_twice_waits_once() -> None:
    found = lane()
    for key in (A, B, A):
        found.put(key)
    assert len(found) == 2
    assert [found.take(1.0) for _ in range(3)] == [A, B, None]


def test_what_was_not_begun_leaves_its_place() -> None:
    found = lane(size=1)
    found.put(A)
    found.put(B)
    assert [found.take(1.0), found.take(1.0)] == [A, None]
    found.drop(A)
    assert found.take(1.0) == B


def test_what_waits_where_nothing_is_slow_any_more_waits_for_no_place() -> None:
    found = lane(size=1)
    found.put(X)
    assert found.take(1.0) == X
    for key in (A, B, Y):
        found.put(key)
    found.took(Y, SLOW_SECONDS, 10.0)
    assert [found.take(REMEMBERED_SECONDS) for _ in range(3)] == [A, B, None]
    assert len(found) == 1
