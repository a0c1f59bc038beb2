"""The pace plugin: which pods are held, and which of them get a slot."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.webhook.errors import ConfigurationError, InvalidValueError, PluginFailedError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import (
    Allow,
    Code,
    Context,
    Permit,
    Result,
    Wait,
    skip,
    success,
)
from holdfast.webhook.framework.profiles import Profile, Profiles
from holdfast.webhook.framework.runner import Runner, unobserved
from holdfast.webhook.model import durations, pace
from holdfast.webhook.model.annotations import NEVER_MS, RELEASED_ANNOTATION, Due
from holdfast.webhook.model.edits import AddGate, RemoveLabel, SetLabel
from holdfast.webhook.model.kubevirt import CONTROLLER_ACCOUNT, MIGRATION_JOB, VMI
from holdfast.webhook.model.objects import Condition, ObjectKey, Pod, PodStatus
from holdfast.webhook.plugins.holding import BOUND
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import KEY, NamedPace, PaceArgs
from holdfast.webhook.plugins.pace.group import PaceGroup
from holdfast.webhook.plugins.pace.groups import PacedPod, PaceGroups
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.plugins.pace.slots import GATE
from holdfast.webhook.runtime import pipelines
from tests.support.builders import CREATED_MS, make_pod, make_profiles, read_pod, read_review
from tests.support.scripted import Holding, pipeline_of
from tests.support.vm_builders import owner_of

OWNER = owner_of("ReplicaSet", "web", "rs-1", api_version="apps/v1")

GRAMMAR = [
    ("4", "4"),
    ("1", "1"),
    ("10000", "10000"),
    ("10/1m", "10/1m"),
    ("1/90", "1/1m30s"),
    ("1/500ms", "1/500ms"),
    ("4,10/1m", "4,10/1m"),
    ("4, 10/1m", "4,10/1m"),
    ("4,  1/90", "4,1/1m30s"),
    ("007", "7"),
    ("", None),
    ("0", None),
    ("10001", None),
    ("-1", None),
    ("1.5", None),
    ("4,", None),
    ("4, ", None),
    ("4 ,10/1m", None),
    (",4", None),
    ("4,5", None),
    ("4/", None),
    ("/1m", None),
    ("1/0s", None),
    ("1/25h", None),
    ("1/1m,4", None),
    ("4 ", None),
    ("٤", None),
    ("4\n", None),
    ("9" * 1_000_000, None),
    (f"4,{' ' * 100}10/1m", None),
]


@pytest.mark.parametrize(("text", "expected"), GRAMMAR, ids=lambda value: str(value)[:20])
def test_grammar(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(InvalidValueError) as caught:
            pace.parse(text)
        assert len(str(caught.value)) < 400
    else:
        assert str(pace.parse(text)) == expected
        assert pace.parse(expected) == pace.parse(text)


def test_equal_values_are_parsed_once() -> None:
    groups = PaceGroups(lambda: CREATED_MS)
    first, second = (groups.find(read_pod({KEY: "4,10/1m"}, uid=uid)) for uid in "ab")
    assert first.limits is second.limits


@pytest.mark.parametrize("period", ["m", "1d", "0s", "25h"])
def test_message_quotes_an_invalid_period(period: str) -> None:
    message = f'the period "{period}" must be a duration of 1ms to 24h, such as "10s" or "1m"'
    with pytest.raises(InvalidValueError, match=f'invalid value "4/{period}": {message}'):
        pace.parse(f"4/{period}")


# --- admission ---------------------------------------------------------------------------------

JVM = NamedPace(name="jvm", max_starting=4)


def plugin_of(*paces: NamedPace, handle: Handle | None = None) -> Pace:
    return Pace(PaceArgs(paces=paces), handle)


def call(point: str, annotation: str | None, **fields: Any) -> Result:
    annotations = {} if annotation is None else {KEY: annotation}
    review = read_review(make_pod(annotations, **{"owners": [OWNER], **fields}))
    result: Result = getattr(plugin_of(JVM), point)(review.pod, Context(review, "*", CREATED_MS))
    return result


def test_pod_with_a_pace_gets_gate_and_label() -> None:
    assert call("mutate", None) == skip()
    assert call("mutate", "jvm") == success(AddGate(GATE), SetLabel(KEY, "jvm"))
    owned = [call("mutate", text).edits[1] for text in ("4", "5")]
    free = [call("mutate", text, owners=[]).edits[1] for text in ("4", "04", "5")]
    assert owned[0] == owned[1] not in free
    assert free[0] == free[1] != free[2]
    assert call("mutate", "jvm", node="n1").edits == ()


def test_forged_label_is_removed_from_pods_that_are_not_held() -> None:
    """Cover a pod that is already bound to a node, and a migration target."""
    labels = {KEY: "jvm", MIGRATION_JOB: "job"}
    bound = call("mutate", "jvm", node="n1", labels=labels)
    assert bound == success(RemoveLabel(KEY), warnings=[BOUND])
    assert call("mutate", "jvm", labels=labels).edits == (AddGate(GATE), SetLabel(KEY, "jvm"))
    target = read_review(
        make_pod({KEY: "jvm"}, labels=labels, owners=[owner_of(VMI, "vm", "u")]),
        userInfo={"username": CONTROLLER_ACCOUNT},
    )
    verdict = pipeline_of(plugin_of(JVM)).mutate(target, now_ms=CREATED_MS)
    assert verdict.edits == [RemoveLabel(KEY)]


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_unknown_pace_is_rejected_with_the_configured_names(point: str) -> None:
    result = call(point, "jwm", gates=[GATE])

    assert result.code is Code.REJECT
    assert result.reason.startswith(
        'annotation holdfast.dev/pace: there is no pace "jwm"; configured: jvm; or use a number'
    )


def test_new_pod_without_its_gate_is_rejected() -> None:
    assert call("validate", "4", gates=[GATE], labels={KEY: "x"}) == success()
    assert "is missing although" in call("validate", "4").reason
    assert "label holdfast.dev/pace is missing" in call("validate", "4", gates=[GATE]).reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "paces[0]: it limits nothing: set maxStarting"),
        ({"name": "4"}, "paces[0].name: must start with a letter"),
        ({"max_starting": 0}, "numbers must be 1 to 10000"),
        ({"rate": "10"}, "paces[0]: invalid value"),
        ({"max_starting": 4, "timeout": "soon"}, "paces[0]: invalid value"),
    ],
)
def test_invalid_arguments(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("[", r"\[").replace(".", r"\.")):
        plugin_of(NamedPace(**{"name": "x", **fields}))


def test_duplicate_pace_name_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="two have the same name"):
        plugin_of(JVM, JVM)


# --- slots -------------------------------------------------------------------------------------


class Cluster:
    """Held pods and a controller that releases them, on a simulated millisecond clock.

    Pods become ready some time after their release. The watch reports changes with a lag, and the
    controller's clock is up to `uncertain` ms behind.
    """

    def __init__(self, *paces: NamedPace, seed: int = 0, uncertain: int = 5) -> None:
        self.random = random.Random(seed)
        self.paces = paces
        self.uncertain = uncertain
        self.now = CREATED_MS
        self.term = 0
        self.attempts = self.reports = True
        """Whether the controller attempts releases, and whether its watch reports changes."""
        self.becomes_ready: Callable[[str], bool] = lambda _uid: True
        """Whether a released pod becomes ready."""
        self.pods: dict[str, Pod] = {}
        self.released: list[tuple[int, str]] = []
        self.ready: dict[str, int] = {}
        self.events: list[str] = []
        self.stopped: list[Any] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.start()

    def start(self) -> None:
        """Replace the controller with a new one, which knows only the stored pods."""
        self._epoch = getattr(self, "_epoch", 0) + 1
        handle = Handle()
        handle.connect(
            term=lambda: self.term,
            waiting=self,
            follow=self.follow,
            bounds_ms=lambda: (self.now - self.uncertain, self.now + self.uncertain),
            record_event=self.record_event,
        )
        self.plugin = plugin_of(*self.paces, handle=handle)
        profiles = Profiles([Profile("*", [self.plugin])])
        self.decider = ReleaseDecider(profiles, Runner(lambda: 0.0, unobserved))
        self._due: dict[str, int] = {}
        for uid in self.held:
            self.observe(uid)

    # --- holdfast.webhook.framework.handle ---

    def __iter__(self) -> Any:
        raise AssertionError

    def get(self, key: ObjectKey) -> None:
        raise AssertionError(key)

    def allow(self, key: ObjectKey, plugin: str) -> None:
        raise AssertionError(key, plugin)

    def record_event(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        assert warning
        self.events.append(f"{pod.metadata.name}: {reason}: {note}")

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        """Schedule another attempt to release a pod."""
        epoch = self._epoch
        at_ms = max(self.now, at_ms + self.uncertain) + self.random.randint(0, 3)
        self.at(at_ms, lambda: self.attempt(key[1]) if epoch == self._epoch else None)

    def follow(
        self, path: str, kind: Any, handler: Any, *, label_selector: str = "", **_: Any
    ) -> Any:
        assert (path, kind, label_selector) == ("/api/v1/pods", PacedPod, KEY)
        self.at(self.now + 20, self._in_epoch(lambda: handler.on_sync(self.stored())))
        return lambda: self.stopped.append(handler)

    def _in_epoch(self, action: Callable[[], None]) -> Callable[[], None]:
        epoch = self._epoch
        return lambda: action() if epoch == self._epoch else None

    # --- pods ---

    @property
    def held(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.gates]

    def create(self, uid: str, text: str, priority: int = 0, owner: str = "rs-1") -> None:
        owners = [_owned(owner)] if owner else []
        document = make_pod({KEY: text}, gates=[GATE], name=uid, uid=uid, owners=owners)
        document["spec"]["priority"] = priority
        self.pods[uid] = Pod.of(document)
        self.observe(uid)
        self.report(uid)

    def change(self, uid: str, text: str) -> None:
        """Change the pace of a held pod."""
        document = make_pod({KEY: text}, gates=[GATE], name=uid, uid=uid, owners=[_owned("rs-1")])
        self.pods[uid] = Pod.of(document)
        self.observe(uid)

    def observe(self, uid: str) -> None:
        """Schedule a pod for its due time, as the watch of held pods does."""
        due = self.decider.due(self.pods[uid])
        if due.at_ms < NEVER_MS:
            self.recheck(("default", uid), due.at_ms)

    def attempt(self, uid: str) -> None:
        if not self.attempts:
            return
        pod = self.pods.get(uid)
        if pod is None or not pod.gates:
            return
        now = self.now - self.uncertain
        due: Due | None = self.decider.permit(pod, now)
        if due is not None and due.at_ms <= now:
            due = self.decider.reserve(pod, now)
        if due is not None:
            if due.at_ms < NEVER_MS:
                self.recheck(pod.key, due.at_ms)
            return
        self.released.append((self.now, uid))
        instant = durations.canonical_instant(now)
        document = make_pod(
            {**pod.annotations, RELEASED_ANNOTATION: instant},
            name=uid,
            uid=uid,
            owners=[_owned(one.uid) for one in pod.metadata.owner_references or ()],
        )
        self.pods[uid] = Pod.of(document)
        self.decider.forget(uid)
        self.report(uid)
        at_ms = self.now + self.random.randint(1_000, 5_000)
        if self.becomes_ready(uid):
            self.at(at_ms, lambda: self.make_ready(uid))

    def make_ready(self, uid: str) -> None:
        if uid in self.pods:
            self.ready[uid] = self.now
            self.report(uid)

    def delete(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.decider.forget(uid)
        gone = _paced(pod, ready=False)
        self.at(self.now + 5, self._in_epoch(lambda: self.plugin.slots.on_delete(gone)))

    def report(self, uid: str) -> None:
        """Have the watch of paced pods report a pod after a lag, in its state at that time."""
        if not self.reports:
            return

        def deliver() -> None:
            if uid in self.pods:
                self.plugin.slots.on_update(_paced(self.pods[uid], ready=uid in self.ready))

        self.at(self.now + self.random.randint(1, 30), self._in_epoch(deliver))

    def stored(self) -> list[PacedPod]:
        return [_paced(pod, ready=uid in self.ready) for uid, pod in self.pods.items()]

    # --- time ---

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_ms, self._number, action))

    def run(self, milliseconds: int = 10_000_000) -> None:
        """Run scheduled actions until none is left or the time is up."""
        end = self.now + milliseconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if milliseconds < 10_000_000:
            self.now = end

    # --- measurements ---

    def most_starting(self) -> int:
        """Return the largest number of pods that were starting at the same time."""
        changes = [(at, 1) for at, _ in self.released]
        changes += [(self.ready[uid], -1) for _, uid in self.released if uid in self.ready]
        most = count = 0
        for _, change in sorted(changes):
            count += change
            most = max(most, count)
        return most

    def shortest_interval(self, releases: int) -> int:
        """Return the shortest time between a release and the one `releases` later."""
        times = [at for at, _ in self.released]
        return min(b - a for a, b in zip(times, times[releases:], strict=False))


def _owned(uid: str) -> Any:
    return owner_of("ReplicaSet", "web", uid, api_version="apps/v1")


def _paced(pod: Pod, *, ready: bool) -> PacedPod:
    status = PodStatus(conditions=[Condition("Ready", "True" if ready else "False")])
    return PacedPod(pod.metadata, pod.spec, status)


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

    limits = JVM_LIMITS if text == "jvm" else pace.parse(text)
    assert len(cluster.released) == len(cluster.pods) == 60
    if limits.starting is not None:
        assert cluster.most_starting() <= limits.starting
    if limits.releases is not None:
        assert cluster.shortest_interval(limits.releases) >= limits.period_ms


JVM_LIMITS = pace.parse("4")


def test_slots_are_busy_while_pods_wait() -> None:
    cluster = Cluster()
    for number in range(200):
        cluster.create(f"p{number}", "4")
    cluster.run()

    (first, _), (last, _) = cluster.released[0], cluster.released[-4]
    busy = sum(min(cluster.ready[uid], last) - at for at, uid in cluster.released if at < last)
    assert busy / (4 * (last - first)) > 0.95


def test_releases_keep_up_with_the_rate() -> None:
    cluster = Cluster()
    for number in range(100):
        cluster.create(f"p{number}", "1/1s")
    cluster.run()

    assert cluster.shortest_interval(1) >= 1_000
    assert cluster.released[-1][0] - cluster.released[0][0] < 99 * 1_100


def test_release_delayed_by_a_webhook_counts_from_its_end() -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1/10s")
    cluster.run(100)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    recorded = durations.canonical_instant(cluster.now - 5)
    cluster.attempts = True
    cluster.run(30_000)
    written = {KEY: "1/10s", RELEASED_ANNOTATION: recorded}
    cluster.pods["a"] = read_pod(written, name="a", uid="a", owners=[_owned("rs-1")])
    cluster.released.append((cluster.now, "a"))
    cluster.report("a")
    cluster.run(60_000)

    assert [uid for _, uid in cluster.released] == ["a", "b"]
    assert 10_000 <= cluster.shortest_interval(1) < 10_100


def test_only_the_first_pod_in_the_queue_gets_a_due_time() -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b", "c"):
        cluster.create(uid, "1/1s")
    cluster.run(100)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.plugin.slots.on_update(_paced(read_released("a"), ready=False))
    first = [cluster.plugin.permit(cluster.pods["b"], cluster.now - 5) for _ in range(3)]
    due = cluster.decider.reserve(cluster.pods["b"], cluster.now - 5)

    assert due is not None
    assert first == [Wait(due.at_ms, "at most 1 in 1s")] * 3
    assert 1_000 <= due.at_ms - cluster.now < 1_100
    assert cluster.plugin.permit(cluster.pods["c"], cluster.now - 5) == Wait(
        reason="at most 1 in 1s"
    )


@pytest.mark.parametrize(
    ("pace", "is_open"),
    [pytest.param("1", True, id="starting"), pytest.param("1/1m", False, id="rate")],
)
def test_only_a_rate_gives_a_definite_due_time(pace: str, is_open: bool) -> None:
    cluster = Cluster()
    for uid in ("a", "b"):
        cluster.create(uid, pace)
        cluster.run(50)
    due = cluster.decider.reserve(cluster.pods["b"], cluster.now)

    assert due is not None
    assert due.open_ended == is_open


def read_released(uid: str) -> Pod:
    return read_pod({KEY: "1/1s"}, name=uid, uid=uid, owners=[_owned("rs-1")])


def test_paces_of_different_owners_are_independent() -> None:
    cluster = Cluster()
    for owner, text in (("a", "1"), ("b", "2")):
        for number in range(3):
            cluster.create(f"{owner}-{number}", text, owner=owner)
    cluster.run(500)

    assert Counter(uid[0] for _, uid in cluster.released) == {"a": 1, "b": 2}
    assert cluster.plugin.slots.counts() == {"inline": (3, 3)}


def test_paces_of_pods_without_an_owner_are_independent() -> None:
    cluster = Cluster()
    for text in ("1", "2"):
        for number in range(3):
            cluster.create(f"{text}-{number}", text, owner="")
    cluster.run(500)

    assert Counter(uid[0] for _, uid in cluster.released) == {"1": 1, "2": 2}


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


SLOW = NamedPace(name="slow", rate="1/1h", scope="owner")


@pytest.mark.parametrize("text", ["4", "slow"])
@pytest.mark.parametrize("labels", [None, {KEY: "x"}], ids=["unlabelled", "labelled"])
@pytest.mark.parametrize("uid", ["", "rs-1"], ids=["without owner", "owned"])
def test_forged_owner_does_not_join_a_group_of_another_namespace(
    uid: str, labels: dict[str, str] | None, text: str
) -> None:
    def pod(namespace: str, owner: str) -> Pod:
        owners = [_owned(owner)] if owner else []
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
    found = [
        groups.find(read_pod({KEY: text}, labels=labels, owners=owners)).group
        for owners in ([_owned("rs-1")], [_owned("forged")], [])
    ]
    assert all(one is found[0] for one in found)


def test_group_key_is_short_even_for_a_megabyte_uid() -> None:
    owner = _owned("x" * 1_000_000)
    found = PaceGroups(lambda: CREATED_MS).find(read_pod({KEY: "1/24h"}, owners=[owner]))
    assert len("".join(found.group_key)) < 100


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
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
        cluster.run(50)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now) is None
    assert cluster.decider.reserve(cluster.pods["b"], cluster.now) is not None

    cluster.decider.unreserve(cluster.pods["a"])
    assert cluster.decider.reserve(cluster.pods["b"], cluster.now) is None


def test_failed_retry_keeps_the_slot_of_an_unanswered_release() -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
        cluster.run(50)
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
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
        cluster.run(50)
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
    released = make_pod({KEY: "1"}, name="a", uid="a", owners=[_owned("rs-1")])
    cluster.pods["a"] = Pod.of(released)
    cluster.decider.forget("a")  # the former leader has released it

    cluster.run(5)
    cluster.term, cluster.attempts, cluster.reports = 1, True, True
    for uid in ("first", "b"):
        cluster.attempt(uid)
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]
    assert len(cluster.stopped) == 1
    cluster.stopped[0].on_delete(_paced(cluster.pods["a"], ready=False))  # no longer watched
    cluster.stopped[0].on_sync([])
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]
    cluster.make_ready("a")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["first", "b"]


def test_slot_reserved_in_an_earlier_term_is_rechecked() -> None:
    """The release of `a` got no response, and then another leader released `b`."""
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
    cluster.run(100)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.pods["b"] = Pod.of(make_pod({KEY: "1"}, name="b", uid="b", owners=[_owned("rs-1")]))
    cluster.decider.forget("b")
    cluster.term, cluster.attempts = 1, True
    cluster.attempt("a")
    cluster.run(500)
    assert cluster.released == []

    cluster.make_ready("b")
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["a"]


def restored(cluster: Cluster, text: str, *, still_starting: bool = False) -> list[str]:
    """Release pods, then restore an etcd backup in which all of them are held."""
    uids = ["a", "b", "c"]
    for uid in uids:
        cluster.create(uid, text)
    cluster.run(100 if still_starting else 20_000)
    cluster._queue.clear()
    cluster.released.clear()
    cluster.ready.clear()
    for uid in uids:
        cluster.pods[uid] = Pod.of(
            make_pod({KEY: text}, gates=[GATE], name=uid, uid=uid, owners=[_owned("rs-1")])
        )
    return uids


@pytest.mark.parametrize("still_starting", [False, True], ids=["ready", "starting"])
@pytest.mark.parametrize("first", ["watch of paced pods", "watch of held pods", "new term"])
@pytest.mark.parametrize("text", ["2", "2/10s"])
def test_pods_restored_from_a_backup_wait_for_slots_again(
    text: str, first: str, *, still_starting: bool
) -> None:
    cluster = Cluster()
    uids = restored(cluster, text, still_starting=still_starting)
    cluster.term += first == "new term"
    for uid in uids:
        if first == "watch of paced pods":
            cluster.plugin.slots.on_update(_paced(cluster.pods[uid], ready=False))
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
    cluster.pods["a"] = Pod.of(make_pod({KEY: "1"}, name="a", uid="a", owners=[_owned("rs-1")]))
    cluster.decider.forget("a")
    cluster.plugin.slots.on_update(_paced(held, ready=False))
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
    cluster = Cluster()
    for uid in ("first", "again"):
        cluster.create(uid, text)
        cluster.run(100)
    cluster.decider.forget("again")
    cluster.observe("again")
    cluster.run(500)
    assert [uid for _, uid in cluster.released] == ["first"]

    cluster.run(20_000)
    (first, _), (again, _) = cluster.released
    if text == "1":
        assert 0 < again - cluster.ready["first"] < 100
    else:
        assert 10_000 <= again - first < 10_100


def test_slot_of_a_pod_deleted_before_a_new_term_is_free() -> None:
    """Its release got no response, and no watch reports its deletion."""
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    cluster.create("a", "1")
    cluster.run(100)
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
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
        cluster.run(100)
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
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "2")
        cluster.run(100)
        assert cluster.decider.reserve(cluster.pods[uid], cluster.now - 5) is None
    cluster.run(301_000)
    cluster.observe("a")
    cluster.term, cluster.attempts = 1, True
    cluster.attempt("a")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["a"]


TWO_PROFILES = """
profiles:
- pluginConfig: [{name: pace, args: {paces: [{name: jvm, maxStarting: 1}]}}]
- schedulerName: other
  pluginConfig: [{name: pace, args: {paces: [{name: jvm, maxStarting: 1}, {name: b, rate: 1/1m}]}}]
"""


def test_profiles_share_the_slots_of_a_pace() -> None:
    profiles = make_profiles(TWO_PROFILES)
    one, other = (each for each in profiles.plugins if isinstance(each, Pace))
    assert one.slots is other.slots
    assert pipelines.count_paces(profiles) == {"jvm": (0, 0), "b": (0, 0)}

    cluster = Cluster(JVM_OF_ONE)
    second = plugin_of(JVM_OF_ONE, handle=cluster.plugin.handle)
    cluster.create("a", "jvm")
    cluster.run(500)
    cluster.create("b", "jvm")
    assert isinstance(second.permit(cluster.pods["b"], cluster.now - 5), Wait)


JVM_OF_ONE = NamedPace(name="jvm", max_starting=1)


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
            owner = _owned(f"{period}-{now}-{number}")
            start_once(groups, now, f"1/{period}", owners=[owner])

    release(1_500, "24h")
    assert (len(groups), groups._groups) == (1_500, {})
    owner = _owned(f"24h-{now}-7")
    again = groups.find(read_pod({KEY: "1/24h"}, owners=[owner]))
    again.group.wait("v", ((0, 0, 0), ("default", "v"), again.limits))
    assert list(again.group.calls(now)) == [(("default", "v"), now + 86_400_000)]

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
    for text, namespace, kept in (
        ("1/1m", "other", True),
        ("2/24h", "evil", True),
        ("1/86300s", "evil", False),
    ):
        group = groups.find(read_pod({KEY: text}, namespace=namespace)).group
        assert bool(group.releases) is kept


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
    late = group.overdue(500)
    assert late == sorted(late, key=lambda uid: ends[int(uid[1:])])
    assert {*late} == {f"p{n}" for n, end in enumerate(ends) if end <= 500 and n != 7}


def test_sync_settles_each_group_once_after_its_pods() -> None:
    cluster = Cluster()
    for number in range(20):
        cluster.create(f"p{number}", "20", owner=f"rs-{number % 2}")
    cluster.run(300)
    slots, settled = cluster.plugin.slots, list[PaceGroup]()
    settle = slots._settle

    def count(group: PaceGroup, now_ms: int, found: Any) -> None:
        settled.append(group)
        settle(group, now_ms, found)

    slots._settle = count  # type: ignore[method-assign]
    assert slots.watch is not None
    slots.watch.on_sync(cluster.stored())
    assert len(settled) == 20 + 2


def test_leader_crash_between_reserve_and_patch_leaks_no_slot() -> None:
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    cluster.create("a", "1")
    cluster.run(100)
    assert cluster.decider.reserve(cluster.pods["a"], cluster.now - 5) is None
    cluster.attempts = True
    cluster.create("b", "1")
    cluster.start()
    cluster.run()
    assert [uid for _, uid in cluster.released] == ["a", "b"]
    assert cluster.most_starting() == 1


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


def test_forged_later_release_time_does_not_extend_the_timeout() -> None:
    cluster = Cluster()
    cluster.becomes_ready = lambda _uid: False
    cluster.create("stuck", "1")
    cluster.run(100)
    forged = {KEY: "1", RELEASED_ANNOTATION: "9999-01-01T00:00:00Z"}
    for uid in ("stuck", "never held"):
        pod = Pod.of(make_pod(forged, name=uid, uid=uid, owners=[_owned("rs-1")]))
        cluster.plugin.slots.on_update(_paced(pod, ready=False))
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
    forged = {KEY: "1", RELEASED_ANNOTATION: durations.canonical_instant(CREATED_MS)}
    pod = Pod.of(make_pod(forged, name="starting", uid="starting", owners=[_owned("rs-1")]))
    cluster.plugin.slots.on_update(_paced(pod, ready=False))
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
        ended = PacedPod(pod.metadata, pod.spec, PodStatus(phase="Failed"))
        if not is_first:
            cluster.decider.forget(pod.metadata.uid)
        cluster.plugin.slots.on_update(ended)
        cluster.decider.forget(pod.metadata.uid)
    for uid in ("a", "b", "c"):
        cluster.create(uid, text)
    cluster.run(500)

    assert sorted(uid for _, uid in cluster.released) == ["a", "b", "first"]


def test_pod_keeps_no_slot_if_another_plugin_fails() -> None:
    def fail(_pod: Pod, _now_ms: int) -> Permit:
        raise KeyError("x")

    cluster = Cluster()
    profiles = Profiles([Profile("*", [Holding(fail), cluster.plugin])])
    cluster.decider = ReleaseDecider(profiles, Runner(lambda: 0.0, unobserved))
    both = Pod.of(
        make_pod({KEY: "1"}, gates=[GATE, Holding.gate], uid="a", owners=[_owned("rs-1")])
    )
    cluster.pods["a"] = both
    cluster.plugin.slots.take(both, cluster.now)
    cluster.run(50)
    with pytest.raises(PluginFailedError):
        cluster.decider.permit(both, cluster.now)
    cluster.create("b", "1")
    cluster.run(500)

    assert [uid for _, uid in cluster.released] == ["b"]


def test_changed_pace_moves_a_waiting_pod_to_another_queue() -> None:
    cluster = Cluster()
    for uid in ("first", "second"):
        cluster.create(uid, "1")
    cluster.run(500)
    assert len(cluster.released) == 1
    (waiting,) = cluster.held
    cluster.change(waiting, "9")
    cluster.run(100)

    assert len(cluster.released) == 2


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
        pod = make_pod({KEY: "1"}, name="first", uid="first", owners=[_owned("rs-1")])
        cluster.pods["first"] = Pod.of(pod)
        cluster.report("first")
    else:
        cluster.change("first", "1")
    cluster.run(1_000)

    assert sorted(uid for _, uid in cluster.released) == ["first", "second"]


def test_pod_that_loses_its_pace_is_released_at_once() -> None:
    removed = "annotation holdfast.dev/pace was removed: released without a pace"
    assert plugin_of().permit(read_pod(gates=[GATE]), CREATED_MS) == Allow(removed)
    cluster = Cluster()
    for uid in ("first", "second", "third"):
        cluster.create(uid, "1")
        cluster.run(100)
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
    cluster = Cluster()
    cluster.attempts = False
    cluster.now += 10
    for uid in ("a", "b"):
        cluster.create(uid, "1")
        cluster.run(100)
    cluster.attempts = True
    pod = make_pod(annotations, gates=[GATE], name="a", uid="a", owners=[_owned("rs-1")])
    cluster.plugin.permit(Pod.of(pod), CREATED_MS)
    cluster.run(100)
    assert [uid for _, uid in cluster.released] == ["b"]


def test_pod_with_an_invalid_pace_stays_held() -> None:
    cluster = Cluster()
    pod = Pod.of(make_pod({KEY: "no"}, gates=[GATE]))
    answer = cluster.plugin.permit(pod, CREATED_MS)

    assert isinstance(answer, Wait)
    assert answer.problem.endswith(": held until the annotation is corrected")
    assert isinstance(cluster.plugin.reserve(pod, CREATED_MS), Wait)


def test_limits_are_the_reason_outside_the_controller() -> None:
    pod = Pod.of(make_pod({KEY: "4,10/1m"}, gates=[GATE]))
    reason = "at most 4 starting, at most 10 in 1m"
    assert plugin_of().permit(pod, CREATED_MS) == Wait(reason=reason)
