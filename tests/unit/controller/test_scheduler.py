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


class SchedulerEnv:
    """A scheduler at second 0, and the UIDs that it has forgotten."""

    def __init__(self, *held_pods: PendingRelease) -> None:
        self.forgotten: list[str] = []
        self.scheduler = ReleaseScheduler(
            lambda local: local, 9, first=9, forget=self.forgotten.append
        )
        for number, pending in enumerate(held_pods):
            self.scheduler.put(("default", "ab"[number]), pending)

    def upsert(self, pending: PendingRelease, *, watched: bool = True) -> PendingRelease | None:
        return self.scheduler.upsert(A, pending, self.scheduler.get(A), 7, watched=watched)

    def settle(self, pending: PendingRelease, attempt: Attempt) -> TaskResult:
        return self.scheduler.settle(A, pending, attempt, 9)


def test_changed_due_time_records_when_it_was_seen() -> None:
    env = SchedulerEnv()
    assert env.upsert(held(10), watched=False) == held(10)
    assert env.upsert(held(10, version="2")) is None
    assert env.scheduler.get(A) == held(10, version="2")
    assert env.upsert(held(5, version="3"), watched=False) == held(5, version="3", known_ms=7)
    assert env.upsert(held(5, version="4")) is None
    assert env.scheduler.get(A) == held(5, version="4", known_ms=7)


def test_recreated_pod_resets_backoff() -> None:
    env = SchedulerEnv(held(10))
    env.scheduler.retry(A, 0.0, at_least=9)
    assert env.upsert(held(10, uid="v")) == held(10, uid="v", known_ms=7)
    assert env.forgotten == ["u"]
    assert env.scheduler.next(1.0) == A


def test_expedited_pod_stays_due_after_watch_update() -> None:
    env = SchedulerEnv(held(NEVER_MS))
    env.scheduler.expedite(A, 0, 0)
    env.scheduler.expedite(B, 0, 0)
    assert env.upsert(held(NEVER_MS, version="2")) is None
    assert env.scheduler.next(0.0) == A
    assert len(env.scheduler) == 1


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.GONE])
def test_released_or_gone_pod_is_forgotten(outcome: Outcome) -> None:
    pending = held(10)
    env = SchedulerEnv(pending)
    assert env.settle(pending, Attempt(outcome)) == TaskResult()
    assert (len(env.scheduler), env.forgotten) == (0, ["u"])


def test_failed_attempt_is_retried_with_fresh_pod() -> None:
    pending, updated = held(10), held(10, version="2")
    env = SchedulerEnv(pending)
    result = env.settle(pending, Attempt(Outcome.RETRY, updated, "why", 3.0))
    assert result == TaskResult("why", 3.0)
    assert env.scheduler.get(A) == updated


@pytest.mark.parametrize("listed_again", [False, True], ids=["same", "listed again"])
def test_possibly_released_pod_loses_its_copy(listed_again: bool) -> None:
    original = held(10)._replace(copy=b"pod")
    env = SchedulerEnv(original)
    if listed_again:
        env.upsert(original)
    env.settle(original, Attempt(Outcome.RETRY, None, "no answer"))
    pending = env.scheduler.get(A)
    assert pending is not None
    assert pending.copy == b""


def test_changed_pod_waits_for_new_due_time() -> None:
    pending = held(0)
    env = SchedulerEnv(pending)
    assert env.scheduler.next(0.0) == A
    assert env.settle(pending, Attempt(Outcome.CHANGED, held(5_000, uid="v"))) == TaskResult()
    env.scheduler.done(A, 0.1, 0.0, succeeded=True)
    assert env.forgotten == ["u"]
    assert env.scheduler.get(A) == held(5_000, uid="v", known_ms=9)
    assert (env.scheduler.next(4.9), env.scheduler.next(5.0)) == (None, A)


def test_attempt_result_for_replaced_pod_is_ignored() -> None:
    env = SchedulerEnv(held(10, uid="v"))
    assert env.settle(held(10), Attempt(Outcome.RELEASED)) == TaskResult()
    assert env.settle(held(10), Attempt(Outcome.RETRY, held(9), "why")) == TaskResult()
    assert env.scheduler.get(A) == held(10, uid="v")


@pytest.mark.parametrize("outcome", [Outcome.CHANGED, Outcome.RETRY])
def test_concurrent_permit_calls_cause_recheck(outcome: Outcome) -> None:
    """The watch called permit first and got Wait; the attempt called it last."""
    pending, postponed = held(10)._replace(recheck=True), held(NEVER_MS)._replace(recheck=True)
    env = SchedulerEnv(pending)
    assert env.scheduler.next(0.1) == A
    env.upsert(postponed)
    result = env.settle(pending, Attempt(outcome, held(5_000), "why" * (outcome is Outcome.RETRY)))
    env.scheduler.done(A, 0.1, 0.0, succeeded=not result.error)
    assert env.scheduler.next(0.1) == A


def test_attempt_ending_during_watch_update_causes_recheck() -> None:
    pending, postponed = held(10)._replace(recheck=True), held(NEVER_MS)._replace(recheck=True)
    env = SchedulerEnv(pending)
    assert env.scheduler.next(0.1) == A
    before = env.scheduler.get(A)
    env.settle(pending, Attempt(Outcome.CHANGED, pending._replace(due_ms=5_000)))
    env.scheduler.done(A, 0.1, 0.0, succeeded=True)
    env.scheduler.upsert(A, postponed, before, 7, watched=True)
    assert env.scheduler.next(0.1) == A


def test_earliest_due_time_wins_during_attempt() -> None:
    pending = held(10)._replace(recheck=True)
    env = SchedulerEnv(pending)
    assert env.scheduler.next(0.1) == A
    env.scheduler.expedite(A, 9_000, 9)
    env.settle(pending, Attempt(Outcome.CHANGED, held(5_000)))
    env.scheduler.done(A, 0.1, 0.0, succeeded=True)
    assert (env.scheduler.next(4.9), env.scheduler.next(5.0)) == (None, A)


def test_earliest_expedite_wins_while_pod_is_added() -> None:
    env = SchedulerEnv()
    env.scheduler.expect(A)
    for at_ms in (0, 9_000):
        env.scheduler.expedite(A, at_ms, 0)
    env.upsert(held(NEVER_MS))
    assert env.scheduler.next(0.1) == A


def test_holds_are_counted_by_plugin_and_reason() -> None:
    scheduler = SchedulerEnv().scheduler
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


def test_number_of_pod_copies_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "COPIES", 1)
    first, second = held(10, "u")._replace(copy=b"u"), held(10, "v")._replace(copy=b"v")
    env = SchedulerEnv(first, second)
    assert env.scheduler.get(B) == second._replace(copy=b"")
    env.upsert(first._replace(resource_version="2", copy=b"w"))
    env.scheduler.remove(A)
    env.scheduler.put(B, second)
    assert env.scheduler.get(B) == second


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(make_pod({"big": "x" * 250_000}, gates=[Holding.gate]), id="large annotation"),
        pytest.param(
            make_pod({}, gates=[Holding.gate, *(f"{n}.io/{'x' * 300}" for n in range(99))]),
            id="foreign gates",
        ),
        pytest.param(
            make_pod({}, gates=[f"holdfast.dev/{n}{'x' * 50}" for n in range(5_000)]),
            id="own gates",
        ),
    ],
)
def test_hostile_pod_uses_little_memory(hostile: dict[str, Any]) -> None:
    pending = pending_release(Pod.of(hostile), decider_of(Holding(never)))
    assert pending is not None
    env = SchedulerEnv(pending)
    assert len(msgspec.msgpack.encode(env.scheduler.get(A))) < 5_000


@pytest.mark.parametrize(
    ("domain", "limit"), [("holdfast.dev", MAX_OWN_GATES), ("a.io", MAX_GATES)]
)
def test_excessive_gates_are_not_stored(domain: str, limit: int) -> None:
    gates = ["holdfast.dev/delay", *(f"{domain}/{n}" for n in range(limit))]
    pending = pending_release(Pod.of(make_pod({}, gates=gates)), decider_of(Holding(never)))
    assert pending is not None
    cache_size = pending_releases._shared.cache_info().currsize
    env = SchedulerEnv(pending)
    assert pending_releases._shared.cache_info().currsize == cache_size
    stored = env.scheduler.get(A)
    assert stored is not None
    assert (stored.gates, stored.recheck) == ((), True)
    assert not env.scheduler.holds(0)


@pytest.mark.parametrize(
    "answer",
    [
        Allow("x" * 20_000),
        Wait(None, f"waits for {'x' * 20_000}", "x" * 20_000),
        Reject(f"invalid: {'x' * 20_000}"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_long_plugin_messages_use_little_memory(answer: Permit) -> None:
    pod = Pod.of(make_pod({}, gates=[Holding.gate]))
    pending = pending_release(pod, decider_of(Holding(lambda _pod, _now_ms: answer)))
    assert pending is not None
    assert pending.reason or pending.problem
    assert len(msgspec.msgpack.encode(pending)) < 5_000


def test_busy_namespace_does_not_block_other_namespaces() -> None:
    env = SchedulerEnv()
    for number in range(20_000):
        env.scheduler.put(("busy", str(number)), held(0, uid=str(number)))
    env.scheduler.put(("small", "a"), held(1, uid="a"))
    namespaces = []
    for _ in range(30):
        key = env.scheduler.next(1.0)
        namespaces += [key[0]] if key else []
    assert "small" in namespaces
    assert namespaces.count("busy") <= 9  # its share of workers; none has finished yet


def test_pods_due_together_are_ordered_by_priority_then_creation() -> None:
    scheduler, due = SchedulerEnv().scheduler, instant(CREATED_MS + MINUTE)
    pods = {"a": (None, 1), "b": (0, 0), "c": (1_000, 9), "d": (2_000_000_000, 9), "e": (-1, 0)}
    for name, (priority, seconds) in pods.items():
        created = CREATED + timedelta(seconds=seconds)
        pod = make_pod({NOT_BEFORE: due}, gates=[DELAY], name=name, created=created)
        pod["spec"]["priority"] = priority
        pending = pending_release(Pod.of(pod), make_decider())
        assert pending is not None
        scheduler.upsert(("default", name), pending, None, 0, watched=True)

    now = (CREATED_MS + MINUTE) / 1_000
    assert scheduler.next(now - 0.001) is None
    names = []
    while (key := scheduler.next(now)) is not None:
        names.append(key[1])
        scheduler.done(key, 0.1, now, succeeded=True)
    assert names == ["d", "c", "b", "a", "e"]


def scheduler_with_pods(*pods: tuple[str, str, int]) -> ReleaseScheduler:
    """Return a scheduler with pods (namespace, name, priority), all due at second 60."""
    scheduler, held_until = SchedulerEnv().scheduler, {NOT_BEFORE: instant(MINUTE)}
    for namespace, name, priority in pods:
        pod = make_pod(held_until, gates=[DELAY], name=name, namespace=namespace, uid=name)
        pod["spec"]["priority"] = priority
        pending = pending_release(Pod.of(pod), make_decider())
        assert pending is not None
        scheduler.upsert((namespace, name), pending._replace(due_ms=MINUTE), None, 0, watched=True)
    return scheduler


HIGH, ALSO_HIGH, LOW, ELSEWHERE = ("a", "high"), ("a", "high-2"), ("a", "low"), ("b", "low-2")
PODS = [(*HIGH, 9), (*ALSO_HIGH, 9), (*LOW, 0), (*ELSEWHERE, 0)]


@pytest.mark.parametrize("succeeded", [True, False])
def test_release_waits_for_higher_priority(succeeded: bool) -> None:
    """The cluster may have room for only one of them."""
    scheduler = scheduler_with_pods(*PODS)
    assert {scheduler.next(60.0) for _ in PODS} == {HIGH, ALSO_HIGH, ELSEWHERE, None}
    scheduler.done(HIGH, 0.1, 60.1, succeeded=succeeded)
    assert scheduler.next(60.1) is None
    scheduler.done(ALSO_HIGH, 0.1, 60.2, succeeded=succeeded)
    assert scheduler.next(60.2) == LOW


def test_retried_release_does_not_block_lower_priority() -> None:
    scheduler = scheduler_with_pods((*HIGH, 9))
    assert scheduler.next(60.0) == HIGH
    scheduler.done(HIGH, 0.1, 60.1, succeeded=False)
    retry_at = 60.1 + scheduler.retry(HIGH, 60.1, at_least=0.0)
    assert scheduler.next(retry_at) == HIGH
    scheduler.upsert(LOW, held(MINUTE), None, 0, watched=True)
    assert scheduler.next(retry_at) == LOW
