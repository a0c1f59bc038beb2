"""What is due is handed out once, in its order, and comes up again until it is forgotten."""

from __future__ import annotations

import pytest

from webhook.agenda import Agenda, Task
from webhook.fair_queue import SLOW_SECONDS
from webhook.objects import Names
from webhook.release_queue import Held, ReleaseQueue

A, B, C = (("one", name) for name in "abc")
INFINITE = float("inf")


def held(due_ms: int) -> Held:
    return Held(due_ms, "uid", "1", ("holdfast.dev/delay",))


def waiting(**due_ms: int) -> ReleaseQueue:
    """Give pods that are held until these times."""
    found = ReleaseQueue()
    for name, at in due_ms.items():
        found.put(("one", name), held(at))
    return found


def agenda(**due_ms: int) -> Agenda:
    """Give one of pods that are held until these times."""
    return Agenda(waiting(**due_ms), 9, first=9)


def taken(found: Agenda, now_ms: int, local: float = 0.0) -> list[Names]:
    def take() -> Task | None:
        return found.take(now_ms, local)

    return [key for key, _ in iter(take, None)]


def test_what_is_due_is_handed_out_in_its_order_and_once() -> None:
    found = agenda(c=30, a=10, b=20)
    assert taken(found, 9) == []
    assert taken(found, 20) == [A, B]
    assert taken(found, 20) == []
    assert found.under_way == 2


def test_what_was_put_back_comes_up_again() -> None:
    found = agenda(a=10)
    assert taken(found, 10) == [A]
    found.put_back(A)
    assert found.under_way == 0
    assert taken(found, 10) == [A]


def test_what_changes_while_it_is_under_way_comes_up_when_that_has_ended() -> None:
    pods = waiting(a=10)
    found = Agenda(pods, 9, first=9)
    assert taken(found, 10) == [A]
    pods.put(A, held(15))
    assert taken(found, 15) == []
    found.took(A, 0.1, 0.0, worked=True)
    pods.retry(A)
    assert taken(found, 15) == [A]


def test_what_is_due_later_after_all_waits_for_its_time() -> None:
    pods = waiting(a=10, b=10)
    found = Agenda(pods, 1, first=1)
    assert taken(found, 10) == [A]  # B has had no turn, and is among those that are due
    pods.put(B, held(20))
    found.took(A, 0.1, 0.0, worked=True)
    found.forget(A)
    assert taken(found, 19) == []
    assert taken(found, 20) == [B]


def test_what_is_forgotten_does_not_come_up() -> None:
    pods = waiting(a=10, b=10)
    found = Agenda(pods, 9, first=9)
    found.forget(A)
    assert taken(found, 10) == [B]
    assert list(pods) == [B]


def test_what_failed_is_tried_again_when_its_wait_is_over() -> None:
    found = agenda(a=10)
    assert taken(found, 10) == [A]
    found.took(A, 0.1, 0.0, worked=False)
    assert found.failed(A, 0.0, at_least=5.0) == 5.0
    assert found.wait(1.0, 1.0) == 4.0
    assert taken(found, 10, 4.9) == []
    assert taken(found, 10, 5.0) == [A]


@pytest.mark.parametrize(("now", "seconds"), [(0.0, 2.0), (1.5, 0.5), (3.0, -1.0)])
def test_it_waits_for_what_is_due_next(now: float, seconds: float) -> None:
    assert agenda(a=2_000, b=9_000).wait(now, 0.0) == pytest.approx(seconds)


def test_it_waits_for_ever_where_nothing_is_held() -> None:
    assert agenda().wait(0.0, 0.0) == INFINITE


@pytest.mark.parametrize(
    ("seconds", "failed", "patient"),
    [(SLOW_SECONDS, True, True), (SLOW_SECONDS, False, False), (0.1, True, False)],
)
def test_who_failed_where_releases_take_long_is_waited_for(
    seconds: float, failed: bool, patient: bool
) -> None:
    found = agenda(a=10)
    assert taken(found, 10) == [A]
    assert found.took(A, seconds, 0.0, worked=False) is (seconds >= SLOW_SECONDS)
    if failed:
        found.failed(A, 0.0, at_least=0.0)
    assert found.is_patient(A, 1.0) is patient
    assert not found.is_patient(B, 1.0)


def test_what_is_under_way_in_slow_namespaces_does_not_count_as_quick() -> None:
    pods = waiting(a=10, b=10, c=10)
    pods.put(("two", "a"), held(10))
    found = Agenda(pods, 9, first=9)
    assert len(taken(found, 10)) == 4
    found.took(A, SLOW_SECONDS, 0.0, worked=True)
    assert (found.under_way, found.under_way_quickly) == (3, 1)


def test_what_is_forgotten_leaves_nothing_where_others_hang() -> None:
    """Else what comes and goes behind what hangs is kept until all before it has had its turn."""
    pods = waiting(a=10, b=10)
    found = Agenda(pods, 1, first=1)
    assert taken(found, 10) == [A]
    found.forget(B)
    assert not found.has_room("one")
    found.took(A, 0.1, 0.0, worked=True)
    assert not found.has_room("one")


def test_what_is_new_does_not_wait_behind_all_that_failed() -> None:
    pods = waiting(a=10, b=10, c=20)
    found = Agenda(pods, 2, first=2)
    assert taken(found, 10) == [A, B]
    for key in (A, B):
        found.took(key, 0.1, 0.0, worked=False)
        found.failed(key, 0.0, at_least=0.0)
    first, second = taken(found, 20, 1.0)
    assert first == C
    assert second in {A, B}
