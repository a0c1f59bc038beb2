"""Which pods share the slots of a pace."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.plugin import Wait
from holdfast.webhook.model import pace
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import KEY, PaceArgs
from holdfast.webhook.plugins.pace.group import PaceGroup
from holdfast.webhook.plugins.pace.groups import PaceGroups
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.runtime import pipelines
from tests.support.builders import CREATED_MS, make_profiles, read_pod
from tests.unit.plugins.pace.cluster import JVM, JVM_OF_ONE, SLOW, Cluster, owned_by, plugin_of


def test_paces_of_different_owners_are_independent() -> None:
    cluster = Cluster()
    for owner, text in (("a", "1"), ("b", "2")):
        for number in range(3):
            cluster.create(f"{owner}-{number}", text, owner=owner)
    cluster.run(500)

    assert Counter(uid[0] for _, uid in cluster.released) == {"a": 1, "b": 2}
    assert cluster.plugin.slots.counts() == {"inline": (3, 3)}


@pytest.mark.parametrize("text", ["4", "slow"])
@pytest.mark.parametrize("labels", [None, {KEY: "x"}], ids=["unlabelled", "labelled"])
@pytest.mark.parametrize("uid", ["", "rs-1"], ids=["without owner", "owned"])
def test_forged_owner_does_not_join_a_group_of_another_namespace(
    uid: str, labels: dict[str, str] | None, text: str
) -> None:
    def pod(namespace: str, owner: str) -> Pod:
        owners = [owned_by(owner)] if owner else []
        return read_pod({KEY: text}, namespace=namespace, labels=labels, owners=owners)

    groups = PaceGroups(lambda: CREATED_MS)
    groups.add(pace_args.check(PaceArgs(paces=(SLOW,))))
    victim = groups.find(pod("victim", uid))
    assert groups.find(pod("victim", uid)).group is victim.group
    assert groups.find(pod("evil", uid or "victim")).group is not victim.group


@pytest.mark.parametrize("text", ["4", "slow"])
def test_pod_with_a_changed_owner_keeps_its_group(text: str) -> None:
    groups = PaceGroups(lambda: CREATED_MS)
    groups.add(pace_args.check(PaceArgs(paces=(SLOW,))))
    labels = {KEY: "hash of rs-1"}
    found_groups = [
        groups.find(read_pod({KEY: text}, labels=labels, owners=owners)).group
        for owners in ([owned_by("rs-1")], [owned_by("forged")], [])
    ]
    assert all(group is found_groups[0] for group in found_groups)


def test_group_key_is_short_even_for_a_megabyte_uid() -> None:
    owner = owned_by("x" * 1_000_000)
    member = PaceGroups(lambda: CREATED_MS).find(read_pod({KEY: "1/24h"}, owners=[owner]))
    assert len("".join(member.group_key)) < 100


TWO_PROFILES = """
profiles:
- pluginConfig: [{name: pace, args: {paces: [{name: jvm, maxStarting: 1}]}}]
- schedulerName: other
  pluginConfig: [{name: pace, args: {paces: [{name: jvm, maxStarting: 1}, {name: b, rate: 1/1m}]}}]
"""


def test_profiles_share_the_slots_of_a_pace() -> None:
    profiles = make_profiles(TWO_PROFILES)
    first_pace, second_pace = (plugin for plugin in profiles.plugins if isinstance(plugin, Pace))
    assert first_pace.slots is second_pace.slots
    assert pipelines.count_paces(profiles) == {"jvm": (0, 0), "b": (0, 0)}

    cluster = Cluster(JVM_OF_ONE)
    third_pace = plugin_of(JVM_OF_ONE, handle=cluster.plugin.handle)
    cluster.create("a", "jvm")
    cluster.run(500)
    cluster.create("b", "jvm")
    assert isinstance(third_pace.permit(cluster.pods["b"], cluster.now - 5), Wait)


def test_profiles_that_define_a_pace_differently_are_rejected() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_profiles(TWO_PROFILES.replace("1}, {name: b", "2}, {name: b"))
    assert str(caught.value) == (
        "test.yaml: profiles[1].pluginConfig[0].args.paces: 'jvm' differs from the pace of this "
        "name in another profile, with which it shares its slots: define both alike, or rename one"
    )


def start_once(groups: PaceGroups, now: int, text: str, **fields: Any) -> None:
    pod = read_pod({KEY: text}, uid="u", **fields)
    _, key, group, _, limits, _ = groups.find(pod)
    group.wait("u", ((0, 0, 0), pod.key, limits))
    groups.retire(key, group)
    assert group.take("u", now, now + 1)
    group.confirm("u", now, now)
    group.end("u")
    groups.retire(key, group)


def test_idle_groups_keep_only_their_releases() -> None:
    now = CREATED_MS
    groups = PaceGroups(lambda: now)

    def release(count: int, period: str) -> None:
        for number in range(count):
            owner = owned_by(f"{period}-{now}-{number}")
            start_once(groups, now, f"1/{period}", owners=[owner])

    release(1_500, "24h")
    assert (len(groups), groups._groups) == (1_500, {})
    owner = owned_by(f"24h-{now}-7")
    member = groups.find(read_pod({KEY: "1/24h"}, owners=[owner]))
    member.group.wait("v", ((0, 0, 0), ("default", "v"), member.limits))
    assert list(member.group.calls(now)) == [(("default", "v"), now + 86_400_000)]

    now += 86_400_000
    release(600, "24h")
    assert len(groups) <= 601


def test_namespace_with_many_paces_evicts_only_its_own_releases() -> None:
    groups = PaceGroups(lambda: CREATED_MS)
    start_once(groups, CREATED_MS, "1/1m", namespace="other")
    for number in range(1, 10_001):
        start_once(groups, CREATED_MS, f"{number}/{86_400 - number % 2}s", namespace="evil")
    start_once(groups, CREATED_MS, "1/86300s", namespace="evil")
    for number in range(1, 1_001):
        start_once(groups, CREATED_MS, f"1,{number}/24h", namespace="evil")

    assert 10_000 <= len(groups) <= 11_000
    for text, namespace, is_kept in (
        ("1/1m", "other", True),
        ("2/24h", "evil", True),
        ("1/86300s", "evil", False),
    ):
        group = groups.find(read_pod({KEY: text}, namespace=namespace)).group
        assert bool(group.releases) is is_kept


class Unscanned(dict[str, int]):
    """A dict that fails if it is iterated over."""

    def __iter__(self) -> Any:
        raise AssertionError

    items = values = __iter__


def test_due_time_is_found_without_scanning_all_starting_pods() -> None:
    group = PaceGroup()
    group.starting = Unscanned()
    ends = random.Random(1).sample(range(1_000), 100)
    for number, end in enumerate(ends):
        group.start(f"p{number}", end)
    group.end("p7")
    group.wait("waits", ((0, 0, 0), ("default", "waits"), pace.parse("60")))

    assert group.turn_at("waits") == sorted(set(ends) - {ends[7]})[99 - 60]
    uids = group.overdue(500)
    assert uids == sorted(uids, key=lambda uid: ends[int(uid[1:])])
    assert {*uids} == {f"p{n}" for n, end in enumerate(ends) if end <= 500 and n != 7}


def test_sync_settles_each_group_once_after_its_pods() -> None:
    cluster = Cluster()
    for number in range(20):
        cluster.create(f"p{number}", "20", owner=f"rs-{number % 2}")
    cluster.run(300)
    slots, settled_groups = cluster.plugin.slots, list[PaceGroup]()
    settle = slots._settle

    def count(group: PaceGroup, now_ms: int, notices: Any) -> None:
        settled_groups.append(group)
        settle(group, now_ms, notices)

    slots._settle = count  # type: ignore[method-assign]
    assert slots.watch is not None
    slots.watch.on_sync(cluster.stored())
    assert len(settled_groups) == 20 + 2


def test_thousands_of_different_paces_share_one_series() -> None:
    cluster = Cluster(JVM)
    for number in range(1, 2_001):
        cluster.create(f"p{number}", str(number), owner=f"rs-{number}")
    cluster.run(10)
    assert set(cluster.plugin.slots.counts()) == {"jvm", "inline"}


def test_pods_and_their_groups_are_forgotten() -> None:
    cluster = Cluster()
    for number in range(200):
        cluster.create(f"p{number}", "4,10/1s", owner=f"rs-{number}")
        cluster.run(10_000)
        cluster.delete(f"p{number}")
    cluster.run()

    slots = cluster.plugin.slots
    assert slots.watch is not None
    slots.watch.on_sync([])
    assert slots._groups._groups == {}
    assert (slots._members, slots._held, slots._ended) == ({}, set(), set())
