import pytest

from holdfast.webhook.workqueue.backoff import (
    FIRST_SECONDS,
    FORGET_SECONDS,
    LIMIT_SECONDS,
    LONGEST_ASKED,
    Backoff,
)

ONE, OTHER = ("default", "one"), ("default", "other")


def test_waits_double_up_to_the_limit_even_after_days_of_failures() -> None:
    backoff = Backoff()
    waits = [backoff.failed(ONE, now=minute, at_least=0) for minute in range(0, 3000 * 60, 60)]
    limits = [min(FIRST_SECONDS * 2 ** min(number, 10), LIMIT_SECONDS) for number in range(3000)]
    assert all(limit / 2 <= wait <= limit for limit, wait in zip(limits, waits, strict=True))


@pytest.mark.parametrize("retry_after", [LONGEST_ASKED - 1, 86_400.0, float("inf")])
def test_retry_after_is_honoured_up_to_a_limit(retry_after: float) -> None:
    wait = Backoff().failed(ONE, now=0, at_least=retry_after)
    assert wait == min(retry_after, LONGEST_ASKED)


def test_keys_are_popped_in_order_of_retry_time() -> None:
    backoff = Backoff()
    backoff.failed(ONE, now=100, at_least=9)
    backoff.failed(OTHER, now=100, at_least=5)
    assert backoff.next_at() == 105
    assert backoff.pop(104.9) is None
    assert [backoff.pop(109), backoff.pop(109), backoff.pop(109)] == [OTHER, ONE, None]
    assert backoff.next_at() == float("inf")


def test_forgotten_key_is_not_retried_and_its_backoff_is_reset() -> None:
    backoff = Backoff()
    for minute in range(0, 8 * 60, 60):
        backoff.failed(ONE, now=minute, at_least=0)
    backoff.forget(ONE)
    backoff.forget(OTHER)
    assert backoff.pop(1_000) is None
    assert backoff.next_at() == float("inf")
    assert backoff.failed(ONE, now=8 * 60, at_least=0) <= FIRST_SECONDS


def test_failed_early_attempt_does_not_move_the_retry() -> None:
    backoff = Backoff()
    first = backoff.failed(ONE, now=100, at_least=8)
    waits = [backoff.failed(ONE, now=100 + ahead, at_least=0) for ahead in range(8)]
    assert waits == [first - ahead for ahead in range(8)]
    assert [backoff.pop(108), backoff.pop(1_000)] == [ONE, None]
    assert backoff.failed(ONE, now=108, at_least=0) <= 2 * FIRST_SECONDS


def test_failed_early_attempt_honours_longer_retry_after() -> None:
    backoff = Backoff()
    backoff.failed(ONE, now=100, at_least=8)
    assert backoff.failed(ONE, now=104, at_least=9) == 9
    assert [backoff.pop(112), backoff.pop(113), backoff.pop(999)] == [None, ONE, None]


def test_failure_with_a_stale_clock_reading_is_retried() -> None:
    backoff = Backoff()
    backoff.failed(ONE, now=100, at_least=8)
    assert backoff.pop(108) == ONE
    assert backoff.failed(ONE, now=107.9, at_least=0) > 0
    assert backoff.pop(109) == ONE


def test_failure_long_after_the_last_retry_resets_the_backoff() -> None:
    backoff, now = Backoff(), 0.0
    for _ in range(10):
        now += backoff.failed(ONE, now=now, at_least=0)
        assert backoff.pop(now) == ONE
    now += FORGET_SECONDS - 1
    now += backoff.failed(ONE, now=now, at_least=LIMIT_SECONDS)
    assert backoff.pop(now) == ONE
    assert backoff.failed(ONE, now=now + FORGET_SECONDS - 1, at_least=0) >= LIMIT_SECONDS / 2
    now += FORGET_SECONDS + LIMIT_SECONDS
    assert backoff.pop(now) == ONE
    assert backoff.failed(ONE, now=now + FORGET_SECONDS, at_least=0) <= FIRST_SECONDS
