"""Which pods get a slot, and when a slot is free again."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.webhook.errors import PluginFailedError
from holdfast.webhook.framework.plugin import Allow, Permit, Wait
from holdfast.webhook.model import durations, pace
from holdfast.webhook.model.objects import Pod, PodStatus
from holdfast.webhook.plugins.pace.args import KEY
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.plugins.pace.slots import GATE
from tests.support.builders import CREATED_MS, make_pod, read_pod
from tests.support.scripted import Holding, decider_of
from tests.unit.plugins.pace.cluster import (
    JVM,
    JVM_OF_ONE,
    Cluster,
    cluster_of,
    owned_by,
    paced_pod,
    plugin_of,
    pod_of,
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("text", ["4", "1", "1/1s", "3/2s", "4,5/3s", "jvm"])
def test_limits_hold_and_all_pods_start(text: str, seed: int) -> None:
    cluster = Cluster(JVM, seed=seed)
    for number in range(60):
        at_ms = CREATED_MS + cluster.random.randint(0, 3_000)
        cluster.at(at_ms, partial(cluster.create, f"p{number}", text))
    for _ in range(10):
        cluster.run(5_000)
        if seed % 2:
            cluster.start()
    cluster.run()

    limits = pace.parse("4" if text == "jvm" else text)
    assert len(cluster.released) == len(cluster.pods) == 60
    if limits.starting is not None:
        assert cluster.most_starting() <= limits.starting
    if limits.releases is not None:
        assert cluster.shortest_interval(limits.releases) >= limits.period_ms


def test_slots_are_busy_while_pods_wait() -> None:
    cluster = Cluster()
    for number in range(200):
        cluster.create(f"p{number}", "4")
    cluster.run()

    (first, _), (last, _) = cluster.released[0], cluster.released[-4]
    busy_ms = sum(min(cluster.ready[uid], last) - at for at, uid in cluster.released if at < last)
    assert busy_ms / (4 * (last - first)) > 0.95


def test_releases_keep_up_with_the_rate() -> None:
    cluster = Cluster()
    for number in range(100):
        cluster.create(f"p{number}", "1/1s")
    cluster.run()

    assert cluster.shortest_interval(1) >= 1_000
    assert cluster.released[-1][0] - cluster.released[0][0] < 99 * 1_100


def test_release_delayed_by_a_webhook_counts_from_its_end() -> None:
    cluster = cluster_of("a", "b", pace="1/10s", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    released_at = durations.canonical_instant(cluster.now - 5)
    cluster.attempts = True
    cluster.run(30_000)
    cluster.pods["a"] = pod_of("a", "1/10s", released=released_at)
    cluster.released.append((cluster.now, "a"))
    cluster.report("a")
    cluster.run(60_000)

    assert [uid for _, uid in cluster.released] == ["a", "b"]
    assert 10_000 <= cluster.shortest_interval(1) < 10_100


def test_only_the_first_pod_in_the_queue_gets_a_due_time() -> None:
    cluster = cluster_of("a", "b", "c", pace="1/1s", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.plugin.slots.on_update(paced_pod(pod_of("a", "1/1s"), ready=False))
    waits = [cluster.plugin.permit(cluster.pods["b"], cluster.now - 5) for _ in range(3)]
    due = cluster.decider.reserve(cluster.pods["b"], cluster.now - 5)

    assert due is not None
    assert not due.open_ended
    assert waits == [Wait(due.at_ms, "at most 1 in 1s")] * 3
    assert 1_000 <= due.at_ms - cluster.now < 1_100
    assert cluster.plugin.permit(cluster.pods["c"], cluster.now - 5) == Wait(
        reason="at most 1 in 1s"
    )


def test_due_time_is_open_ended_while_a_pod_is_starting() -> None:
    cluster = cluster_of("a", "b")
    due = cluster.decider.reserve(cluster.pods["b"], cluster.now)

    assert due is not None
    assert due.open_ended


@pytest.mark.parametrize(("text", "most"), [("5", 5), ("4,9/1s", 4), ("1", 3)], ids=str)
def test_changed_pace_counts_pods_that_are_already_starting(text: str, most: int) -> None:
    cluster = Cluster()
    for number in range(12):
        cluster.create(f"p{number}", "3")
    cluster.run(200)
    assert len(cluster.released) == 3
    for uid in cluster.held:
        cluster.change(uid, text)
    cluster.run(600)
    assert len(cluster.released) == most

    cluster.run(120_000)
    assert (len(cluster.released), cluster.most_starting()) == (12, most)


def test_pods_start_by_priority() -> None:
    cluster = Cluster()
    cluster.create("first", "1")
    cluster.run(500)
    for number, priority in enumerate((0, 5, 0, 9)):
        cluster.create(f"p{number}", "1", priority=priority)
    cluster.run()

    assert [uid for _, uid in cluster.released] == ["first", "p3", "p1", "p0", "p2"]


def test_pod_that_never_becomes_ready_frees_its_slot_at_timeout() -> None:
    cluster = Cluster()
    cluster.becomes_ready = lambda uid: uid != "stuck"
    cluster.create("stuck", "1")
    cluster.run(100)
    cluster.create("next", "1")
    cluster.run()

    (stuck, _), (later, _) = cluster.released
    assert 300_000 <= later - stuck < 300_100
    assert cluster.events == [
        "stuck: PaceTimeout: not ready in time after its release: it no longer counts for its pace"
    ]


def test_deleted_pods_free_their_slots_and_queue_positions() -> None:
    cluster = Cluster()
    cluster.create("starting", "1")
    cluster.run(200)
    for uid in ("next", "last"):
        cluster.create(uid, "1")
        cluster.run(200)
    for uid in ("next", "starting"):
        cluster.delete(uid)
    cluster.run(200)

    assert [uid for _, uid in cluster.released] == ["starting", "last"]


@pytest.mark.parametrize("is_reported", [True, False], ids=["held", "not reported yet"])
def test_release_without_a_response_is_retried_after_the_timeout(*, is_reported: bool) -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    cluster.reports = is_reported
    cluster.create("first", "1", owner="rs-2")
    cluster.run(100)
    cluster.create("a", "1")
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.run(301_000)
    cluster.attempts = True
    cluster.attempt("a")
    assert [uid for _, uid in cluster.released] == ["a"]
    assert cluster.plugin.slots.counts() == {"inline": (1, 0)}


def test_failed_release_frees_the_slot() -> None:
    cluster = cluster_of("a", "b", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now) is None
    assert cluster.decider.reserve(cluster.pods["b"], cluster.now) is not None

    cluster.decider.unreserve(cluster.pods["a"])
    assert cluster.decider.reserve(cluster.pods["b"], cluster.now) is None


def test_failed_retry_keeps_the_slot_of_an_unanswered_release() -> None:
    cluster = cluster_of("a", "b", attempts=False)
    a, b = cluster.pods["a"], cluster.pods["b"]
    assert cluster.decider.reserve(a, cluster.now) is None
    cluster.run(11_000)
    for _ in range(3):
        assert cluster.decider.reserve(a, cluster.now) is None
        cluster.decider.unreserve(a)
        assert cluster.decider.reserve(b, cluster.now) is not None
        cluster.run(10_000)

    cluster.run(7_000)
    assert cluster.decider.reserve(a, cluster.now) is None
    cluster.decider.unreserve(a)
    assert cluster.decider.reserve(b, cluster.now) is None


def test_each_unanswered_release_keeps_the_slot() -> None:
    cluster = cluster_of("a", "b", attempts=False)
    a, b = cluster.pods["a"], cluster.pods["b"]
    for _ in range(6):
        assert cluster.decider.reserve(a, cluster.now) is None
        cluster.run(10_000)
    assert cluster.decider.reserve(a, cluster.now) is None
    cluster.decider.unreserve(a)
    assert cluster.decider.reserve(b, cluster.now) is not None
    cluster.run(37_000)
    assert cluster.decider.reserve(a, cluster.now) is None
    cluster.decider.unreserve(a)
    assert cluster.decider.reserve(b, cluster.now) is None


def test_forged_later_release_time_does_not_extend_the_timeout() -> None:
    cluster = Cluster()
    cluster.becomes_ready = lambda _uid: False
    cluster.create("stuck", "1")
    cluster.run(100)
    for uid in ("stuck", "never held"):
        pod = pod_of(uid, released="9999-01-01T00:00:00Z")
        cluster.plugin.slots.on_update(paced_pod(pod, ready=False))
    cluster.create("next", "1")
    cluster.run()

    assert cluster.released[-1][0] - CREATED_MS < 301_000


def test_forged_earlier_release_time_does_not_free_the_slot() -> None:
    cluster = Cluster()
    cluster.becomes_ready = lambda _uid: False
    cluster.now += 400_000
    for uid in ("starting", "next"):
        cluster.create(uid, "1")
        cluster.run(100)
    pod = pod_of("starting", released=durations.canonical_instant(CREATED_MS))
    cluster.plugin.slots.on_update(paced_pod(pod, ready=False))
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["starting"]


def test_deleted_held_pods_do_not_count_as_releases() -> None:
    cluster = Cluster()
    cluster.create("first", "1/1h")
    for number in range(4):
        cluster.create(f"p{number}", "1/1h", owner="rs-2")
    cluster.run(15)
    for number in range(4):
        cluster.delete(f"p{number}")
    cluster.run(100)
    cluster.create("last", "1/1h", owner="rs-2")
    cluster.run(500)

    assert {uid for _, uid in cluster.released} == {"first", "last"}


@pytest.mark.parametrize("text", ["2", "2/1h"])
@pytest.mark.parametrize("is_first", [True, False], ids=["paced pods", "held pods"])
def test_held_pods_that_fail_do_not_count_as_releases(text: str, *, is_first: bool) -> None:
    """PodGC marks deleted pods that have a finalizer as failed."""
    cluster = Cluster()
    cluster.create("first", "2", owner="rs-2")
    cluster.run(50)
    cluster.attempts = False
    for number in range(4):
        cluster.create(f"p{number}", text)
    cluster.run(100)
    cluster.attempts = True
    for number in range(4):
        pod = cluster.pods.pop(f"p{number}")
        failed_pod = PacedPod(pod.metadata, pod.spec, PodStatus(phase="Failed"))
        if not is_first:
            cluster.decider.forget(pod.metadata.uid)
        cluster.plugin.slots.on_update(failed_pod)
        cluster.decider.forget(pod.metadata.uid)
    for uid in ("a", "b", "c"):
        cluster.create(uid, text)
    cluster.run(500)

    assert sorted(uid for _, uid in cluster.released) == ["a", "b", "first"]


def test_pod_keeps_no_slot_if_another_plugin_fails() -> None:
    def fail(_pod: Pod, _now_ms: int) -> Permit:
        raise KeyError("x")

    cluster = Cluster()
    cluster.decider = decider_of(Holding(fail), cluster.plugin)
    pod = Pod.of(
        make_pod({KEY: "1"}, gates=[GATE, Holding.gate], uid="a", owners=[owned_by("rs-1")])
    )
    cluster.pods["a"] = pod
    cluster.plugin.slots.take(pod, cluster.now)
    cluster.run(50)
    with pytest.raises(PluginFailedError):
        cluster.decider.permit(pod, cluster.now)
    cluster.create("b", "1")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["b"]


@pytest.mark.parametrize("is_released", [True, False], ids=["released", "held"])
def test_changed_pace_frees_the_slot_for_others(*, is_released: bool) -> None:
    cluster = Cluster(JVM_OF_ONE)
    cluster.now += 10
    cluster.becomes_ready = lambda _uid: False
    if not is_released:
        cluster.attempts = False
    for uid in ("first", "second"):
        cluster.create(uid, "jvm")
        cluster.run(200)
    cluster.attempts = True
    if is_released:
        cluster.pods["first"] = pod_of("first")
        cluster.report("first")
    else:
        cluster.change("first", "1")
    cluster.run(1_000)

    assert sorted(uid for _, uid in cluster.released) == ["first", "second"]


def test_pod_that_loses_its_pace_is_released_at_once() -> None:
    message = "annotation holdfast.dev/pace was removed: released without a pace"
    assert plugin_of().permit(read_pod(gates=[GATE]), CREATED_MS) == Allow(message)
    cluster = cluster_of("first", "second", "third")
    pod = make_pod(gates=[GATE], labels={KEY: "x"}, name="second", uid="second")
    cluster.pods["second"] = Pod.of(pod)
    cluster.observe("second")
    cluster.run(100)
    assert [uid for _, uid in cluster.released] == ["first", "second"]

    cluster.make_ready("first")
    cluster.run(100)
    assert [uid for _, uid in cluster.released] == ["first", "second", "third"]


@pytest.mark.parametrize("annotations", [{}, {KEY: "no"}], ids=["removed", "invalid"])
def test_pod_without_a_valid_pace_does_not_block_others(annotations: dict[str, str]) -> None:
    cluster = cluster_of("a", "b", attempts=False)
    cluster.attempts = True
    pod = make_pod(annotations, gates=[GATE], name="a", uid="a", owners=[owned_by("rs-1")])
    cluster.plugin.permit(Pod.of(pod), CREATED_MS)
    cluster.run(100)
    assert [uid for _, uid in cluster.released] == ["b"]


def test_pod_with_an_invalid_pace_stays_held() -> None:
    cluster = Cluster()
    pod = Pod.of(make_pod({KEY: "no"}, gates=[GATE]))
    result = cluster.plugin.permit(pod, CREATED_MS)

    assert isinstance(result, Wait)
    assert result.problem.endswith(": held until the annotation is corrected")
    assert isinstance(cluster.plugin.reserve(pod, CREATED_MS), Wait)


def test_limits_are_the_reason_outside_the_controller() -> None:
    pod = Pod.of(make_pod({KEY: "4,10/1m"}, gates=[GATE]))
    reason = "at most 4 starting, at most 10 in 1m"
    assert plugin_of().permit(pod, CREATED_MS) == Wait(reason=reason)
