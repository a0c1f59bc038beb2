"""The scheduler's view of held pods; their order is tested in tests/unit/workqueue."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.webhook.controller import pending as pending_releases
from holdfast.webhook.controller import scheduler
from holdfast.webhook.controller.pending import PendingRelease, pending_release
from holdfast.webhook.controller.releaser import Attempt, Outcome
from holdfast.webhook.controller.scheduler import ReleaseScheduler
from holdfast.webhook.framework.plugin import Allow, Permit, Reject, Wait
from holdfast.webhook.model.annotations import NEVER_MS, NOT_BEFORE
from holdfast.webhook.model.limits import MAX_GATES, MAX_OWN_GATES
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.workqueue.controller import TaskResult
from tests.support.builders import CREATED, CREATED_MS, MINUTE, instant, make_decider, make_pod
from tests.support.scripted import Holding, decider_of, never

A, B = ("default", "a"), ("default", "b")
DELAY, APPROVAL = "holdfast.dev/delay", "holdfast.dev/approval"


def held(due_ms: int, uid: str = "u", version: str = "1", known_ms: int = 0) -> PendingRelease:
    return PendingRelease(due_ms, uid, version, (DELAY,), known_ms=known_ms)


class Pods:
    """A scheduler at second 0, and the uids that it has forgotten."""

    def __init__(self, *found: PendingRelease) -> None:
        self.forgotten: list[str] = []
        self.scheduler = ReleaseScheduler(
            lambda local: local, 9, first=9, forget=self.forgotten.append
        )
        for number, pending in enumerate(found):
            self.scheduler.put(("default", "ab"[number]), pending)

    def see(self, fresh: PendingRelease, *, watched: bool = True) -> PendingRelease | None:
        return self.scheduler.upsert(A, fresh, self.scheduler.get(A), 7, watched=watched)

    def settle(self, tried: PendingRelease, attempt: Attempt) -> TaskResult:
        return self.scheduler.settle(A, tried, attempt, 9)


def test_a_due_time_that_is_news_is_known_from_when_it_was_seen() -> None:
    pods = Pods()
    assert pods.see(held(10), watched=False) == held(10)
    assert pods.see(held(10, version="2")) is None
    assert pods.scheduler.get(A) == held(10, version="2")
    assert pods.see(held(5, version="3"), watched=False) == held(5, version="3", known_ms=7)
    assert pods.see(held(5, version="4")) is None
    assert pods.scheduler.get(A) == held(5, version="4", known_ms=7)


def test_another_pod_of_that_name_starts_afresh() -> None:
    pods = Pods(held(10))
    pods.scheduler.retry(A, 0.0, at_least=9)
    assert pods.see(held(10, uid="v")) == held(10, uid="v", known_ms=7)
    assert pods.forgotten == ["u"]
    assert pods.scheduler.next(1.0) == A


def test_a_pod_that_its_plugin_released_is_due_whatever_the_watch_reports() -> None:
    pods = Pods(held(NEVER_MS))
    pods.scheduler.expedite(A, 0, 0)
    pods.scheduler.expedite(B, 0, 0)
    assert pods.see(held(NEVER_MS, version="2")) is None
    assert pods.scheduler.next(0.0) == A
    assert len(pods.scheduler) == 1


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.GONE])
def test_a_pod_that_was_released_is_forgotten(outcome: Outcome) -> None:
    known = held(10)
    pods = Pods(known)
    assert pods.settle(known, Attempt(outcome)) == TaskResult()
    assert (len(pods.scheduler), pods.forgotten) == (0, ["u"])


def test_a_failed_attempt_is_to_be_retried_with_what_it_read() -> None:
    known, fresh = held(10), held(10, version="2")
    pods = Pods(known)
    result = pods.settle(known, Attempt(Outcome.RETRY, fresh, "why", 3.0))
    assert result == TaskResult("why", 3.0)
    assert pods.scheduler.get(A) == fresh


@pytest.mark.parametrize("is_seen_again", [False, True], ids=["same", "listed again"])
def test_a_pod_that_may_have_been_released_is_read_again(is_seen_again: bool) -> None:
    known = held(10)._replace(copy=b"pod")
    pods = Pods(known)
    if is_seen_again:
        pods.see(known)
    pods.settle(known, Attempt(Outcome.RETRY, None, "no answer"))
    pending = pods.scheduler.get(A)
    assert pending is not None
    assert pending.copy == b""


def test_a_pod_that_an_attempt_found_changed_waits_for_its_new_time() -> None:
    known = held(0)
    pods = Pods(known)
    assert pods.scheduler.next(0.0) == A
    assert pods.settle(known, Attempt(Outcome.CHANGED, held(5_000, uid="v"))) == TaskResult()
    pods.scheduler.done(A, 0.1, 0.0, succeeded=True)
    assert pods.forgotten == ["u"]
    assert pods.scheduler.get(A) == held(5_000, uid="v", known_ms=9)
    assert (pods.scheduler.next(4.9), pods.scheduler.next(5.0)) == (None, A)


def test_an_attempt_says_nothing_about_what_came_meanwhile() -> None:
    pods = Pods(held(10, uid="v"))
    assert pods.settle(held(10), Attempt(Outcome.RELEASED)) == TaskResult()
    assert pods.settle(held(10), Attempt(Outcome.RETRY, held(9), "why")) == TaskResult()
    assert pods.scheduler.get(A) == held(10, uid="v")


@pytest.mark.parametrize("outcome", [Outcome.CHANGED, Outcome.RETRY])
def test_plugins_that_two_threads_asked_are_asked_again(outcome: Outcome) -> None:
    """The watch asked first, and was told to wait for an event; the attempt asked last."""
    tried, waits = held(10)._replace(recheck=True), held(NEVER_MS)._replace(recheck=True)
    pods = Pods(tried)
    assert pods.scheduler.next(0.1) == A
    pods.see(waits)
    result = pods.settle(tried, Attempt(outcome, held(5_000), "why" * (outcome is Outcome.RETRY)))
    pods.scheduler.done(A, 0.1, 0.0, succeeded=not result.error)
    assert pods.scheduler.next(0.1) == A


def test_attempt_that_ends_while_the_watch_asks_makes_it_ask_again() -> None:
    tried, waits = held(10)._replace(recheck=True), held(NEVER_MS)._replace(recheck=True)
    pods = Pods(tried)
    assert pods.scheduler.next(0.1) == A
    before = pods.scheduler.get(A)
    pods.settle(tried, Attempt(Outcome.CHANGED, tried._replace(due_ms=5_000)))
    pods.scheduler.done(A, 0.1, 0.0, succeeded=True)
    pods.scheduler.upsert(A, waits, before, 7, watched=True)
    assert pods.scheduler.next(0.1) == A


def test_earliest_request_counts_while_an_attempt_is_under_way() -> None:
    tried = held(10)._replace(recheck=True)
    pods = Pods(tried)
    assert pods.scheduler.next(0.1) == A
    pods.scheduler.expedite(A, 9_000, 9)
    pods.settle(tried, Attempt(Outcome.CHANGED, held(5_000)))
    pods.scheduler.done(A, 0.1, 0.0, succeeded=True)
    assert (pods.scheduler.next(4.9), pods.scheduler.next(5.0)) == (None, A)


def test_earliest_request_counts_for_a_pod_that_is_being_added() -> None:
    pods = Pods()
    pods.scheduler.expect(A)
    for at_ms in (0, 9_000):
        pods.scheduler.expedite(A, at_ms, 0)
    pods.see(held(NEVER_MS))
    assert pods.scheduler.next(0.1) == A


def test_holds_are_counted_by_plugin_and_by_what_they_wait_for() -> None:
    scheduler = Pods().scheduler
    scheduler.put(("a", "due"), PendingRelease(100, "u1", "1", (DELAY, "example.com/quota")))
    scheduler.put(("a", "waits"), PendingRelease(200, "u2", "1", (DELAY,)))
    scheduler.put(("a", "both"), PendingRelease(NEVER_MS, "u3", "1", (DELAY, APPROVAL)))
    scheduler.put(("a", "gone"), PendingRelease(100, "u4", "1", (DELAY,)))
    scheduler.discard(("a", "gone"))

    assert scheduler.overdue(100) == 1
    assert dict(scheduler.holds(100)) == {
        ("delay", "release"): 1,
        ("delay", "time"): 1,
        ("delay", "plugin"): 1,
        ("approval", "plugin"): 1,
    }


def test_copies_are_kept_of_some_pods_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "COPIES", 1)
    first, second = held(10, "u")._replace(copy=b"u"), held(10, "v")._replace(copy=b"v")
    pods = Pods(first, second)
    assert pods.scheduler.get(B) == second._replace(copy=b"")
    pods.see(first._replace(resource_version="2", copy=b"w"))
    pods.scheduler.remove(A)
    pods.scheduler.put(B, second)
    assert pods.scheduler.get(B) == second


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(make_pod({"big": "x" * 250_000}, gates=[Holding.gate]), id="an annotation"),
        pytest.param(
            make_pod({}, gates=[Holding.gate, *(f"{n}.io/{'x' * 300}" for n in range(99))]),
            id="gates of others",
        ),
        pytest.param(
            make_pod({}, gates=[f"holdfast.dev/{n}{'x' * 50}" for n in range(5_000)]),
            id="gates of ours",
        ),
    ],
)
def test_of_a_hostile_pod_only_a_few_kilobytes_are_kept(hostile: dict[str, Any]) -> None:
    fresh = pending_release(Pod.of(hostile), decider_of(Holding(never)))
    assert fresh is not None
    pods = Pods(fresh)
    assert len(msgspec.msgpack.encode(pods.scheduler.get(A))) < 5_000


@pytest.mark.parametrize(
    ("domain", "limit"), [("holdfast.dev", MAX_OWN_GATES), ("a.io", MAX_GATES)]
)
def test_so_many_gates_that_admission_rejects_them_are_not_kept(domain: str, limit: int) -> None:
    gates = ["holdfast.dev/delay", *(f"{domain}/{n}" for n in range(limit))]
    fresh = pending_release(Pod.of(make_pod({}, gates=gates)), decider_of(Holding(never)))
    assert fresh is not None
    shared = pending_releases._shared.cache_info().currsize
    pods = Pods(fresh)
    assert pending_releases._shared.cache_info().currsize == shared
    kept = pods.scheduler.get(A)
    assert kept is not None
    assert (kept.gates, kept.recheck) == ((), True)
    assert not pods.scheduler.holds(0)


@pytest.mark.parametrize(
    "answer",
    [
        Allow("x" * 20_000),
        Wait(None, f"waits for {'x' * 20_000}", "x" * 20_000),
        Reject(f"invalid: {'x' * 20_000}"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_of_long_texts_of_a_plugin_only_a_few_kilobytes_are_kept(answer: Permit) -> None:
    pod = Pod.of(make_pod({}, gates=[Holding.gate]))
    fresh = pending_release(pod, decider_of(Holding(lambda _pod, _now_ms: answer)))
    assert fresh is not None
    assert fresh.reason or fresh.problem
    assert len(msgspec.msgpack.encode(fresh)) < 5_000


def test_many_due_pods_of_one_namespace_keep_no_other_waiting() -> None:
    pods = Pods()
    for number in range(20_000):
        pods.scheduler.put(("crowd", str(number)), held(0, uid=str(number)))
    pods.scheduler.put(("small", "a"), held(1, uid="a"))
    given = []
    for _ in range(30):
        key = pods.scheduler.next(1.0)
        given += [key[0]] if key else []
    assert "small" in given
    assert given.count("crowd") <= 9  # its share of workers; none is done yet


def test_pods_due_together_are_released_by_priority_and_then_by_creation() -> None:
    scheduler = ReleaseScheduler(lambda local: local, 9, first=9, forget=lambda _: None)
    due = instant(CREATED_MS + MINUTE)
    pods = {"a": (None, 1), "b": (0, 0), "c": (1_000, 9), "d": (2_000_000_000, 9), "e": (-1, 0)}
    for name, (priority, seconds) in pods.items():
        created = CREATED + timedelta(seconds=seconds)
        made = make_pod({NOT_BEFORE: due}, gates=[DELAY], name=name, created=created)
        made["spec"]["priority"] = priority
        fresh = pending_release(Pod.of(made), make_decider())
        assert fresh is not None
        scheduler.upsert(("default", name), fresh, None, 0, watched=True)

    now = (CREATED_MS + MINUTE) / 1_000
    assert scheduler.next(now - 0.001) is None
    taken = []
    while (key := scheduler.next(now)) is not None:
        taken.append(key[1])
        scheduler.done(key, 0.1, now, succeeded=True)
    assert taken == ["d", "c", "b", "a", "e"]


def held_together(*pods: tuple[str, str, int]) -> ReleaseScheduler:
    """Give a scheduler with pods of a namespace, name and priority, all due at second 60."""
    scheduler = ReleaseScheduler(lambda local: local, 9, first=9, forget=lambda _: None)
    for namespace, name, priority in pods:
        due = {NOT_BEFORE: instant(MINUTE)}
        made = make_pod(due, gates=[DELAY], name=name, namespace=namespace, uid=name)
        made["spec"]["priority"] = priority
        fresh = pending_release(Pod.of(made), make_decider())
        assert fresh is not None
        scheduler.upsert((namespace, name), fresh._replace(due_ms=MINUTE), None, 0, watched=True)
    return scheduler


HIGH, ALSO_HIGH, LOW, ELSEWHERE = ("a", "high"), ("a", "high-2"), ("a", "low"), ("b", "low-2")
PODS = [(*HIGH, 9), (*ALSO_HIGH, 9), (*LOW, 0), (*ELSEWHERE, 0)]


@pytest.mark.parametrize("succeeded", [True, False])
def test_release_does_not_overtake_one_of_a_higher_priority(succeeded: bool) -> None:
    """There may be room for one of them only."""
    scheduler = held_together(*PODS)
    assert {scheduler.next(60.0) for _ in PODS} == {HIGH, ALSO_HIGH, ELSEWHERE, None}
    scheduler.done(HIGH, 0.1, 60.1, succeeded=succeeded)
    assert scheduler.next(60.1) is None
    scheduler.done(ALSO_HIGH, 0.1, 60.2, succeeded=succeeded)
    assert scheduler.next(60.2) == LOW


def test_release_that_failed_before_keeps_no_other_waiting() -> None:
    scheduler = held_together((*HIGH, 9))
    assert scheduler.next(60.0) == HIGH
    scheduler.done(HIGH, 0.1, 60.1, succeeded=False)
    again = 60.1 + scheduler.retry(HIGH, 60.1, at_least=0.0)
    assert scheduler.next(again) == HIGH
    scheduler.upsert(LOW, held(MINUTE), None, 0, watched=True)
    assert scheduler.next(again) == LOW
