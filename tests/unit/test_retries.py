from __future__ import annotations

import pytest

from webhook.retries import FIRST_SECONDS, LIMIT_SECONDS, LONGEST_ASKED, Retries

ONE, OTHER = ("default", "one"), ("default", "other")


def test_waits_double_up_to_the_limit() -> None:
    retries = Retries()
    waits = [retries.failed(ONE, now=hour, at_least=0) for hour in range(0, 12 * 3600, 3600)]
    limits = [min(FIRST_SECONDS * 2**number, LIMIT_SECONDS) for number in range(12)]
    assert all(limit / 2 <= wait <= limit for limit, wait in zip(limits, waits, strict=True))


def test_a_server_that_asks_for_longer_is_heard() -> None:
    assert Retries().failed(ONE, now=0, at_least=LONGEST_ASKED - 1) == LONGEST_ASKED - 1


@pytest.mark.parametrize("asked", [86_400.0, float("inf")])
def test_a_server_that_asks_for_very_long_is_asked_before(asked: float) -> None:
    assert Retries().failed(ONE, now=0, at_least=asked) == LONGEST_ASKED


def test_pods_come_up_in_the_order_in_which_their_waits_end() -> None:
    retries = Retries()
    retries.failed(ONE, now=100, at_least=9)
    retries.failed(OTHER, now=100, at_least=5)
    assert retries.next_at() == 105
    assert retries.pop_due(104.9) is None
    assert [retries.pop_due(109), retries.pop_due(109), retries.pop_due(109)] == [OTHER, ONE, None]
    assert retries.next_at() == float("inf")


def test_a_pod_that_is_forgotten_begins_anew() -> None:
    retries = Retries()
    for hour in range(0, 8 * 3600, 3600):
        retries.failed(ONE, now=hour, at_least=0)
    retries.forget(ONE)
    retries.forget(OTHER)
    assert retries.failed(ONE, now=8 * 3600, at_least=0) <= FIRST_SECONDS


def test_a_try_ahead_of_its_time_changes_nothing_when_it_fails() -> None:
    retries = Retries()
    first = retries.failed(ONE, now=100, at_least=8)
    waits = [retries.failed(ONE, now=100 + ahead, at_least=0) for ahead in range(8)]
    assert waits == [first - ahead for ahead in range(8)]
    assert [retries.pop_due(108), retries.pop_due(1_000)] == [ONE, None]
    assert retries.failed(ONE, now=108, at_least=0) <= 2 * FIRST_SECONDS


def test_a_try_ahead_of_its_time_can_be_told_to_wait_longer() -> None:
    retries = Retries()
    retries.failed(ONE, now=100, at_least=8)
    assert retries.failed(ONE, now=104, at_least=9) == 9
    assert [retries.pop_due(112), retries.pop_due(113), retries.pop_due(999)] == [None, ONE, None]


def test_a_pod_that_is_forgotten_is_not_tried() -> None:
    retries = Retries()
    retries.failed(ONE, now=100, at_least=8)
    retries.forget(ONE)
    assert retries.pop_due(1_000) is None
    assert retries.next_at() == float("inf")
