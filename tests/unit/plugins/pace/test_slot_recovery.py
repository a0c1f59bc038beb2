"""Slots after a restart, a new leader, a restored backup, and late watch events."""

from __future__ import annotations

import pytest

from holdfast.webhook.framework.plugin import Wait
from holdfast.webhook.model import pace
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.plugins.pace.slots import GATE
from tests.support.builders import CREATED_MS
from tests.unit.plugins.pace.cluster import Cluster, cluster_of, paced_pod, pod_of


def test_no_pod_starts_before_the_watch_has_synced() -> None:
    cluster = Cluster()
    cluster.create("a", "1")
    assert cluster.plugin.permit(cluster.pods["a"], CREATED_MS - 5) == Wait(
        reason="at most 1 starting"
    )
    cluster.run(15)
    assert cluster.released == []


def test_new_leader_counts_releases_of_the_former_leader() -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.create("first", "1", owner="rs-2")
    cluster.run(100)
    cluster.reports = False
    for uid in ("a", "b"):
        cluster.create(uid, "1")
    cluster.pods["a"] = pod_of("a")
    cluster.decider.forget("a")  # the former leader has released it

    cluster.run(5)
    cluster.term, cluster.attempts, cluster.reports = 1, True, True
    for uid in ("first", "b"):
        cluster.attempt(uid)
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]
    assert len(cluster.stopped) == 1
    cluster.stopped[0].on_delete(paced_pod(cluster.pods["a"], ready=False))  # no longer watched
    cluster.stopped[0].on_sync([])
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]
    cluster.make_ready("a")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["first", "b"]


def test_slot_reserved_in_an_earlier_term_is_rechecked() -> None:
    """The release of `a` got no response, and then another leader released `b`."""
    cluster = cluster_of("a", "b", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.pods["b"] = pod_of("b")
    cluster.decider.forget("b")
    cluster.term, cluster.attempts = 1, True
    cluster.attempt("a")
    cluster.run(500)
    assert cluster.released == []

    cluster.make_ready("b")
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["a"]


@pytest.mark.parametrize("still_starting", [False, True], ids=["ready", "starting"])
@pytest.mark.parametrize("first", ["watch of paced pods", "watch of held pods", "new term"])
@pytest.mark.parametrize("text", ["2", "2/10s"])
def test_pods_restored_from_a_backup_wait_for_slots_again(
    text: str, first: str, *, still_starting: bool
) -> None:
    cluster, uids = Cluster(), ["a", "b", "c"]
    for uid in uids:
        cluster.create(uid, text)
    cluster.run(100 if still_starting else 20_000)
    # restore an etcd backup in which all pods are held
    cluster._queue.clear()
    cluster.released.clear()
    cluster.ready.clear()
    for uid in uids:
        cluster.pods[uid] = pod_of(uid, text, gates=[GATE])

    cluster.term += first == "new term"
    for uid in uids:
        if first == "watch of paced pods":
            cluster.plugin.slots.on_update(paced_pod(cluster.pods[uid], ready=False))
    for uid in uids:
        cluster.observe(uid)
        cluster.attempt(uid)
    for uid in uids:
        cluster.report(uid)
    cluster.run(60_000)

    assert sorted(uid for _, uid in cluster.released) == uids
    limits = pace.parse(text)
    if limits.starting is not None:
        assert cluster.most_starting() <= limits.starting
    else:
        assert cluster.shortest_interval(2) >= limits.period_ms


def test_stale_event_of_a_held_pod_does_not_free_its_slot() -> None:
    """The watch of held pods has already reported its release by the former leader."""
    cluster = Cluster()
    cluster.create("a", "1")
    cluster.attempts = False
    cluster.run(100)
    held = cluster.pods["a"]
    cluster.pods["a"] = pod_of("a")
    cluster.decider.forget("a")
    cluster.plugin.slots.on_update(paced_pod(held, ready=False))
    cluster.attempts = True
    cluster.create("b", "1")
    cluster.run(1_000)

    assert cluster.released == []
    cluster.report("a")
    cluster.make_ready("a")
    cluster.run(1_000)
    assert [uid for _, uid in cluster.released] == ["b"]


@pytest.mark.parametrize(
    ("text", "then", "released"),
    [
        ("1", "starts", ["a"]),
        ("1", "is ready", ["a", "b"]),
        ("1", "times out", ["a", "b"]),
        ("1", "is deleted", ["a", "b"]),
        ("2/1h", "starts", ["a", "b"]),
    ],
)
def test_stale_held_state_of_a_released_pod_changes_no_slot(
    text: str, then: str, released: list[str]
) -> None:
    """The watch of held pods lags behind the watch of paced pods."""
    cluster = Cluster()
    cluster.becomes_ready = lambda _uid: False
    cluster.create("a", text)
    held = cluster.pods["a"]
    cluster.run(100)
    if then == "is ready":
        cluster.make_ready("a")
    elif then == "times out":
        cluster.run(300_000)
    elif then == "is deleted":
        cluster.delete("a")
    cluster.run(100)
    for _ in range(2):
        assert cluster.decider.due(held).at_ms == NEVER_MS
        assert cluster.decider.reserve(held, cluster.now) is not None
        if text == "1":
            cluster.decider.unreserve(held)
    for uid in ("b", "c"):
        cluster.create(uid, text)
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == released
    assert len(cluster.events) == (then == "times out")


@pytest.mark.parametrize("text", ["1", "1/10s"])
def test_pod_forgotten_instead_of_its_predecessor_waits_again(text: str) -> None:
    """A lagging watch of held pods reports the deletion of a pod with the same name."""
    cluster = cluster_of("first", "again", pace=text)
    cluster.decider.forget("again")
    cluster.observe("again")
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]

    cluster.run(20_000)
    (first, _), (second, _) = cluster.released
    if text == "1":
        assert 0 < second - cluster.ready["first"] < 100
    else:
        assert 10_000 <= second - first < 10_100


def test_slot_of_a_pod_deleted_before_a_new_term_is_free() -> None:
    """Its release got no response, and no watch reports its deletion."""
    cluster = cluster_of("a", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    del cluster.pods["a"]
    cluster.decider.forget("a")
    cluster.term, cluster.attempts = 1, True
    cluster.create("b", "1")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["b"]


@pytest.mark.parametrize("is_first", [True, False], ids=["list", "release"])
def test_held_pod_missing_from_a_list_has_no_slot(*, is_first: bool) -> None:
    """Its release got no response, and the watch of held pods lags."""
    cluster = cluster_of("a", "b", attempts=False)
    slots, deleted = cluster.plugin.slots, cluster.pods.pop("a")
    assert slots.watch is not None
    if is_first:
        slots.watch.on_sync(cluster.stored())
        assert cluster.decider.reserve(deleted, cluster.now) is not None
    else:
        assert cluster.decider.reserve(deleted, cluster.now) is None
        slots.watch.on_sync(cluster.stored())

    assert cluster.decider.reserve(cluster.pods["b"], cluster.now) is None


def test_pod_with_an_expired_slot_is_released_in_a_new_term() -> None:
    cluster = cluster_of("a", "b", pace="2", attempts=False)
    for uid in ("a", "b"):
        assert cluster.decider.reserve(cluster.pods[uid], cluster.now - 5) is None
    cluster.run(301_000)
    cluster.observe("a")
    cluster.term, cluster.attempts = 1, True
    cluster.attempt("a")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["a"]


def test_leader_crash_between_reserve_and_patch_leaks_no_slot() -> None:
    cluster = cluster_of("a", attempts=False)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.attempts = True
    cluster.create("b", "1")
    cluster.start()
    cluster.run()
    assert [uid for _, uid in cluster.released] == ["a", "b"]
    assert cluster.most_starting() == 1
