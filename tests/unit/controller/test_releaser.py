from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.webhook.controller.pending import PendingRelease, pending_release
from holdfast.webhook.controller.releaser import (
    RELEASE_TIMEOUT,
    Attempt,
    Outcome,
    Releaser,
    release_patch,
)
from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import (
    Allow,
    Permit,
    Plugin,
    Result,
    Wait,
    reject,
    skip,
    success,
)
from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.edits import SelectNodes, SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.pace.args import KEY as PACE
from tests.support.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    SECOND,
    UID,
    held,
    make_decider,
    make_delay,
    make_pod,
)
from tests.support.fakes import ANNOTATION_BYTES, FakeApi, raising, status_error, unreachable
from tests.support.scripted import HoldingToo, Slots, Tightening, decider_of

KEY = ("default", "web-0")
DECIDER = make_decider()
STAMP = "/metadata/annotations/holdfast.dev~1released"
PROBLEM = "released without what was to be added: "


def now_ms() -> int:
    return CREATED_MS + 15 * SECOND


def pending_of(api: FakeApi) -> PendingRelease:
    pending = pending_release(Pod.of(api.pods[KEY]), DECIDER)
    assert pending is not None
    return pending


def api_with_held_pod(**fields: Any) -> FakeApi:
    return FakeApi(held({"delay": "15", HELD_ANNOTATION: "delay=15s"}, **fields))


def api_with_pending() -> tuple[FakeApi, PendingRelease]:
    api = api_with_held_pod()
    return api, pending_of(api)


def release(api: FakeApi, known: PendingRelease | None = None) -> Attempt:
    return Releaser(api, DECIDER, now_ms).release(KEY, known or pending_of(api))


def test_release_removes_holdfast_gate() -> None:
    api, known = api_with_pending()

    assert Attempt(Outcome.RELEASED, known, notes=[]) == release(api, known)
    assert api.gates(KEY) == []
    assert api.requests == [("PATCH", "/api/v1/namespaces/default/pods/web-0")]


@dataclass
class AsyncPatches:
    """Records patches; the test supplies their responses."""

    patches: list[tuple[str, Any]] = field(default_factory=list)
    has_connection: bool = True
    on_end: Callable[[ClusterError | None], None] = lambda _: None

    def __call__(self, path: str, body: bytes, *, timeout: float, on_end: Any) -> bool:
        assert timeout == RELEASE_TIMEOUT
        if self.has_connection:
            self.patches.append((path, json.loads(body)))
            self.on_end = on_end
        return self.has_connection


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(None, Outcome.RELEASED, id="released"),
        pytest.param(status_error(422), None, id="changed or rejected"),
        pytest.param(status_error(404), None, id="gone"),
        pytest.param(status_error(401), None, id="token expired"),
        pytest.param(status_error(429), Outcome.RETRY, id="too many requests"),
        pytest.param(unreachable(), Outcome.RETRY, id="unreachable"),
    ],
)
def test_begin_sends_patch_without_blocking(
    error: ClusterError | None, outcome: Outcome | None
) -> None:
    (api, known), sender, results = api_with_pending(), AsyncPatches(), list[Attempt | None]()
    releaser = Releaser(api, DECIDER, now_ms, begin=sender)

    assert releaser.begin(KEY, known, results.append)
    path = "/api/v1/namespaces/default/pods/web-0"
    assert sender.patches == [(path, list(release_patch(known, now_ms())))]
    assert results == []
    sender.on_end(error)
    assert [one and one.outcome for one in results] == [outcome]
    assert api.requests == []


def test_begin_declines_releases_that_may_block() -> None:
    (api, known), sender, results = api_with_pending(), AsyncPatches(), list[Attempt | None]()
    frozen = Releaser(api, DECIDER, now_ms, begin=sender, is_frozen=lambda _: True)
    assert not frozen.begin(KEY, known, results.append)
    releaser = Releaser(api, DECIDER, now_ms, begin=sender)
    assert not releaser.begin(KEY, known._replace(recheck=True), results.append)
    sender.has_connection = False
    assert not releaser.begin(KEY, known, results.append)
    assert sender.patches == []
    assert results == []


def test_release_keeps_foreign_gates() -> None:
    api = api_with_held_pod(gates=["a.io/b", GATE, "c.io/d", "holdfast.dev/x", "e.io/f"])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d", "e.io/f"]


def test_patch_for_many_gates_is_short() -> None:
    """The API server rejects a JSON Patch of more than 10,000 operations."""
    ours = [f"holdfast.dev/{number}" for number in range(6_000)]
    api = api_with_held_pod(gates=["a.io/b", *ours[:3_000], "c.io/d", *ours[3_000:]])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d"]
    assert len(json.loads(api.bodies[-1])) < 10


def test_names_are_escaped_in_the_path() -> None:
    api, known = api_with_pending()

    assert Outcome.GONE is Releaser(api, DECIDER, now_ms).release(("a/b", "../x"), known).outcome
    assert {path for _, path in api.requests} == {"/api/v1/namespaces/a%2Fb/pods/..%2Fx"}


def test_patch_tests_its_preconditions() -> None:
    known = PendingRelease(0, "u-1", "42", ("a.io/b", GATE, "c.io/d", "holdfast.dev/x"))

    assert release_patch(known, now_ms()) == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "42"},
        {"op": "test", "path": "/spec/schedulingGates/3", "value": {"name": "holdfast.dev/x"}},
        {"op": "remove", "path": "/spec/schedulingGates/3"},
        {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": GATE}},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    stamp = {"op": "add", "path": STAMP, "value": "2026-03-01T12:00:15Z"}
    assert release_patch(known._replace(annotated=True), now_ms())[-1] == stamp
    label = {"op": "remove", "path": "/metadata/labels/holdfast.dev~1held"}
    assert release_patch(known._replace(labelled=True), now_ms())[-1] == label


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod({"delay": "15"}), None, id="no gate"),
        pytest.param(make_pod({"delay": "15"}, gates=["a.io/b"]), None, id="foreign gate"),
        pytest.param(
            held({"delay": "15"}, uid="u-1", version="3"),
            PendingRelease(
                CREATED_MS + 15 * SECOND,
                "u-1",
                "3",
                (GATE,),
                rank=CREATED_MS // 1_000,
                annotated=True,
            ),
            id="own gate",
        ),
        pytest.param(
            held({"delay": "15"} | {f"k{i}": "" for i in range(5_000)}, uid="u-1"),
            PendingRelease(CREATED_MS + 15 * SECOND, "u-1", "7", (GATE,), rank=CREATED_MS // 1_000),
            id="more annotations than the policies allow",
        ),
        pytest.param(
            held({"delay": "15"}, uid="u", gates=["holdfast.dev/old", "a.io/b"]),
            PendingRelease(
                CREATED_MS + 15 * SECOND,
                "u",
                "7",
                ("holdfast.dev/old", ""),
                rank=CREATED_MS // 1_000,
                annotated=True,
            ),
            id="own gate without a plugin",
        ),
        pytest.param(
            held(uid="u"),
            PendingRelease(
                CREATED_MS,
                "u",
                "7",
                (GATE,),
                "no annotation asks for a hold: released at once",
                rank=CREATED_MS // 1_000,
            ),
            id="gate without annotations",
        ),
    ],
)
def test_pending_release(pod: Any, expected: PendingRelease | None) -> None:
    assert expected == pending_release(Pod.of(pod), DECIDER)


# --- failures ----------------------------------------------------------------------------------


def test_deleted_pod_is_gone() -> None:
    api, known = api_with_pending()
    api.delete(KEY)

    assert Attempt(Outcome.GONE) == release(api, known)


def test_webhook_404_does_not_mean_pod_is_gone() -> None:
    api = api_with_held_pod()
    rejection = status_error(404, reason="NotFound")
    api.before("PATCH", raising(rejection))

    attempt = release(api)
    assert (attempt.outcome, attempt.reason) == (Outcome.RETRY, str(rejection))
    assert attempt.held is not None


def test_pod_deleted_during_reread_is_gone() -> None:
    api = api_with_held_pod()
    api.before("PATCH", raising(status_error(409)))
    api.before("GET", lambda: api.delete(KEY))

    assert Attempt(Outcome.GONE) == release(api)


def test_pod_without_gate_counts_as_gone() -> None:
    api, known = api_with_pending()
    api.put_pod(make_pod({"delay": "15"}))

    assert Attempt(Outcome.GONE) == release(api, known)


@pytest.mark.parametrize(
    "annotations",
    [{"other": "1"}, {"delay": "5"}, {"delay": None}, {"delay": "soon"}],
    ids=["foreign annotation", "shorter", "removed", "invalid, held annotation decides"],
)
def test_changed_pod_still_due_is_released_at_once(annotations: dict[str, Any]) -> None:
    api, known = api_with_pending()
    api.annotate(KEY, **annotations)

    now = pending_of(api)

    assert Attempt(Outcome.RELEASED, now, notes=[]) == release(api, known)
    assert (api.count("PATCH"), api.count("GET")) == (2, 1)


def test_postponed_pod_is_not_released() -> None:
    api, known = api_with_pending()
    api.annotate(KEY, delay="1h")

    attempt = release(api, known)
    assert Attempt(Outcome.CHANGED, pending_of(api)) == attempt
    assert attempt.held is not None
    assert attempt.held.due_ms == CREATED_MS + HOUR
    assert api.gates(KEY) == [GATE]


@pytest.mark.parametrize("delay", ["1", "15", "1h"], ids=["earlier", "same", "later"])
def test_recreated_pod_is_not_released_by_stale_attempt(delay: str) -> None:
    api, known = api_with_pending()
    api.put_pod(held({"delay": delay}, uid="another"))

    assert Attempt(Outcome.CHANGED, pending_of(api)) == release(api, known)
    assert api.gates(KEY) == [GATE]


def test_reordered_gates_are_found() -> None:
    api = api_with_held_pod(gates=[GATE, "a.io/b"])
    known = pending_of(api)
    api.put_pod(held({"delay": "15"}, gates=["a.io/b", GATE]))

    assert Outcome.RELEASED is release(api, known).outcome
    assert api.gates(KEY) == ["a.io/b"]


def test_pod_that_keeps_changing_is_tried_three_times() -> None:
    api = api_with_held_pod()
    api.before("PATCH", *[lambda: api.annotate(KEY, noise=str(api.count("PATCH")))] * 4)
    attempt = release(api)

    assert Outcome.RETRY is attempt.outcome
    assert attempt.reason == "the pod changed during 3 patches in a row"
    assert (api.count("PATCH"), api.count("GET")) == (3, 3)
    assert pending_of(api) == attempt.held


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_webhook_rejection_is_retried_later(status: int) -> None:
    api = api_with_held_pod()
    api.before("PATCH", raising(status_error(status, retry_after=3.0)))

    expected = Attempt(Outcome.RETRY, pending_of(api), f"HTTP {status}: scripted", 3.0)
    assert expected == release(api)
    assert (api.count("PATCH"), api.count("GET")) == (1, 1)


def test_pod_without_room_for_released_annotation_is_released() -> None:
    api = api_with_held_pod()
    api.annotate(KEY, filled="x" * (ANNOTATION_BYTES - 60))

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == []


def test_paced_pod_is_not_released_without_released_annotation() -> None:
    api = api_with_held_pod(gates=[GATE, PACE])
    api.annotate(KEY, filled="x" * (ANNOTATION_BYTES - 60))

    found = Releaser(api, decider_of(make_delay()), now_ms).release(KEY, pending_of(api))
    assert (found.outcome, found.reason) == (Outcome.RETRY, "HTTP 422: annotations: Too long")


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        pytest.param(status_error(429, retry_after=7.0), 7.0, id="429 with Retry-After"),
        pytest.param(status_error(429), None, id="429"),
        pytest.param(status_error(500), None, id="500"),
        pytest.param(status_error(503, retry_after=1.0), 1.0, id="503"),
        pytest.param(status_error(401), None, id="401"),
        pytest.param(status_error(404), None, id="404 without a reason"),
        pytest.param(unreachable(), None, id="unreachable"),
    ],
)
@pytest.mark.parametrize("method", ["PATCH", "GET"])
def test_other_failures_are_retried_later(
    method: str, error: Exception, retry_after: float | None
) -> None:
    api = api_with_held_pod()
    api.before(method, raising(error))
    if method == "GET":
        api.before("PATCH", raising(status_error(409)))

    assert Attempt(Outcome.RETRY, None, str(error), retry_after) == release(api)
    assert api.gates(KEY) == [GATE]


def test_invalid_pod_response_is_retried_later() -> None:
    api, known = api_with_pending()
    api.before("PATCH", raising(status_error(409)))
    api.pods[KEY]["metadata"]["name"] = 5

    assert Outcome.RETRY is release(api, known).outcome


def test_retry_after_lost_response_finds_pod_gone() -> None:
    api, known = api_with_pending()
    api.after("PATCH", raising(unreachable()))

    assert Outcome.RETRY is release(api, known).outcome
    assert api.gates(KEY) == []
    assert Attempt(Outcome.GONE) == release(api, known)


@pytest.mark.parametrize(
    ("status", "message", "left"),
    [
        pytest.param(409, "scripted", 1, id="rejected"),
        pytest.param(429, "scripted", 1, id="429"),
        pytest.param(502, "Bad Gateway", 0, id="proxy"),
        pytest.param(503, "upstream connect error", 0, id="proxy 503"),
        pytest.param(500, "Internal error occurred: failed calling webhook", 1, id="webhook"),
        pytest.param(500, "etcdserver: leader changed", 0, id="etcd leader change"),
        pytest.param(504, "Timeout: request did not complete", 0, id="timeout"),
        pytest.param(None, "", 0, id="no response"),
    ],
)
def test_failed_release_keeps_slot_only_if_outcome_is_unknown(
    status: int | None, message: str, left: int
) -> None:
    slots = Slots()
    api = FakeApi(held(gates=[Slots.gate]))
    error = unreachable() if status is None else ApiStatusError(message, status=status)
    api.before("PATCH", raising(error))

    assert Outcome.RETRY is attempt(api, decider_of(slots)).outcome
    assert slots.free == left


def test_pod_returns_its_slot_if_api_server_shuts_down() -> None:
    slots = Slots()
    api = FakeApi(held(gates=[Slots.gate]))
    api.before("PATCH", raising(status_error(503, reason="ServiceUnavailable")))

    assert Outcome.RETRY is attempt(api, decider_of(slots)).outcome
    assert slots.free == 1


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
def test_pod_released_with_lost_response_keeps_its_slot(is_read: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    known = pending_with_recheck(api, decider)
    api.after("PATCH", raising(unreachable()))
    assert Outcome.RETRY is attempt(api, decider, known).outcome

    if not is_read:
        api.before("GET", raising(unreachable()))
    outcome = Outcome.GONE if is_read else Outcome.RETRY
    assert outcome is attempt(api, decider, known).outcome
    assert (api.gates(KEY), slots.free) == ([], 0)


@pytest.mark.parametrize("cause", ["lost_lead", "freeze"])
@pytest.mark.parametrize("when", ["read", "plugin_call", "rejected"])
def test_release_is_aborted_by_lost_leadership_or_freeze(when: str, cause: str) -> None:
    slots, allowed = Slots(), [True]

    def at_release(pod: Pod) -> Result:
        if when == "plugin_call":
            allowed.clear()
        return add_annotation(pod)

    decider = decider_of(slots, Tightening(at_release))
    api = FakeApi(held(gates=[Slots.gate]))
    known = pending_with_recheck(api, decider)._replace(copy=b"")
    if when == "read":
        api.before("GET", allowed.clear)
    elif when == "rejected":
        api.before("PATCH", raising(status_error(422)))
        api.before("GET", lambda: None, allowed.clear)
    releaser = Releaser(
        api,
        decider,
        now_ms,
        leading=lambda: cause == "freeze" or bool(allowed),
        is_frozen=lambda _: cause == "freeze" and not allowed,
    )

    found = releaser.release(KEY, known)
    assert (found.outcome, slots.free) == (Outcome.CHANGED, 1)
    assert (api.count("PATCH"), api.gates(KEY)) == (int(when == "rejected"), [Slots.gate])


@pytest.mark.parametrize("is_new", [False, True], ids=["deleted", "recreated"])
def test_gone_pod_returns_its_slot(*, is_new: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    known = pending_with_recheck(api, decider)
    api.delete(KEY)
    if is_new:
        api.put_pod(make_pod(uid="another"))

    assert Attempt(Outcome.GONE) == attempt(api, decider, known)
    assert slots.free == 1


# --- plugins at release ------------------------------------------------------------------------


def decider_with(answer: Callable[[Pod], Result], *more: Plugin) -> ReleaseDecider:
    return decider_of(make_delay(), *more, Tightening(answer))


def pending_with_recheck(api: FakeApi, decider: ReleaseDecider) -> PendingRelease:
    pending = pending_release(Pod.of(api.pods[KEY]), decider)
    assert pending is not None
    assert pending.recheck
    return pending


def api_with_recheck() -> tuple[FakeApi, ReleaseDecider, PendingRelease]:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    return api, decider, pending_with_recheck(api, decider)


def attempt(api: FakeApi, decider: ReleaseDecider, known: PendingRelease | None = None) -> Attempt:
    return Releaser(api, decider, now_ms).release(KEY, known or pending_with_recheck(api, decider))


def annotations_of(api: FakeApi) -> dict[str, str]:
    annotations: dict[str, str] = api.pods[KEY]["metadata"]["annotations"]
    return annotations


def add_annotation(_pod: Pod) -> Result:
    return success(SetAnnotation("a", "b"))


def annotate_delay(pod: Pod) -> Result:
    """Record the pod's delay, which shows the version of the pod that was passed."""
    return success(SetAnnotation("seen", pod.annotations["delay"]), warnings=["mind"])


@pytest.mark.parametrize(
    ("has_copy", "requests"), [(True, ["PATCH"]), (False, ["GET", "PATCH"])], ids=str
)
def test_edits_are_part_of_the_release_patch(has_copy: bool, requests: list[str]) -> None:
    api, decider, known = api_with_recheck()
    tried = known if has_copy else known._replace(copy=b"")

    assert Attempt(Outcome.RELEASED, known, notes=["mind"]) == attempt(api, decider, tried)
    assert api.gates(KEY) == []
    assert annotations_of(api)["seen"] == "15"
    assert [method for method, _ in api.requests] == requests


def test_skipping_plugin_adds_nothing_to_patch() -> None:
    api, decider = api_with_held_pod(), decider_with(lambda _: skip())

    assert list(attempt(api, decider).notes) == []
    assert len(api.bodies) == 1
    assert release_patch(
        pending_with_recheck(api_with_held_pod(), decider), now_ms()
    ) == json.loads(api.bodies[0])


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_pod_is_released_without_rejected_edits(status: int) -> None:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    api.before("PATCH", raising(status_error(status)))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (
        Outcome.RELEASED,
        [f"{PROBLEM}HTTP {status}: scripted"],
    )
    assert api.gates(KEY) == []
    assert "seen" not in annotations_of(api)


def test_release_rejected_without_edits_is_retried_later() -> None:
    api, decider, known = api_with_recheck()
    api.before("PATCH", *[raising(status_error(422, retry_after=3.0))] * 2)

    assert Attempt(Outcome.RETRY, known, "HTTP 422: scripted", 3.0) == attempt(api, decider)
    assert api.gates(KEY) == [GATE]


FULL = "released without placed: the pod's annotations leave no room"


@pytest.mark.parametrize(
    ("filled", "patches", "notes"),
    [
        pytest.param(ANNOTATION_BYTES // 2, 1, [], id="room for all"),
        pytest.param(ANNOTATION_BYTES - 150, 1, [FULL], id="room for the timestamp"),
        pytest.param(ANNOTATION_BYTES - 60, 2, [FULL], id="no room"),
    ],
)
def test_pod_without_annotation_room_gets_other_edits(
    filled: int, patches: int, notes: list[str]
) -> None:
    api = api_with_held_pod()
    api.annotate(KEY, filled="x" * filled)
    edits = SelectNodes("pool", "tenants"), SetAnnotation("placed", "x" * 100)

    found = attempt(api, decider_with(lambda _: success(*edits)))
    assert (found.outcome, found.notes) == (Outcome.RELEASED, notes)
    assert api.pods[KEY]["spec"]["nodeSelector"] == {"pool": "tenants"}
    assert api.count("PATCH") == patches


def test_rejected_pod_no_longer_allowed_returns_its_slot() -> None:
    slots, answers = Slots(), list[Permit]([Wait(now_ms() + HOUR), Allow()])
    holding = HoldingToo(lambda _pod, _now_ms: answers.pop() if len(answers) > 1 else answers[0])
    decider = decider_of(slots, holding, Tightening(add_annotation))
    api = FakeApi(held(gates=[Slots.gate, HoldingToo.gate]))
    known = PendingRelease(0, UID, "", (), recheck=True)
    api.before("PATCH", raising(status_error(422)))

    found = attempt(api, decider, known)
    assert (found.outcome, found.reason) == (Outcome.RETRY, "HTTP 422: scripted")
    assert (api.count("PATCH"), slots.free) == (1, 1)


def test_rejected_pod_keeps_its_slot_for_second_patch() -> None:
    slots = Slots()
    decider = decider_of(slots, Tightening(add_annotation))
    api, free = FakeApi(held(gates=[Slots.gate])), list[int]()
    api.before("PATCH", raising(status_error(422)), lambda: free.append(slots.free))
    api.before("GET", lambda: free.append(slots.free))

    assert Outcome.RELEASED is attempt(api, decider).outcome
    assert free == [0, 0]


def test_rejected_edits_are_not_retried_when_pod_changes() -> None:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    api.before("PATCH", raising(status_error(422)), lambda: api.annotate(KEY, noise="1"))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, [f"{PROBLEM}HTTP 422: scripted"])
    assert "seen" not in annotations_of(api)
    assert api.count("PATCH") == 3


def test_edits_are_recomputed_for_changed_pod() -> None:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    api.before("PATCH", lambda: api.annotate(KEY, delay="14"))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, ["mind"])
    assert found.held is not None
    assert found.held.due_ms == CREATED_MS + 14 * SECOND
    assert annotations_of(api)["seen"] == "14"


def test_plugin_runs_if_changed_pod_concerns_it() -> None:
    class Choosy(Tightening):
        def concerns(self, pod: Pod) -> bool:
            return "space" in pod.annotations

    api, decider = api_with_held_pod(), decider_of(make_delay(), Choosy(annotate_delay))
    known = pending_release(Pod.of(api.pods[KEY]), decider)
    assert known is not None
    assert not known.recheck
    api.before("PATCH", lambda: api.annotate(KEY, space="1"))

    found = attempt(api, decider, known)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, ["mind"])
    assert annotations_of(api)["seen"] == "15"


def test_edits_use_pod_changed_before_release() -> None:
    api, decider, known = api_with_recheck()
    api.annotate(KEY, delay="5")

    assert Outcome.RELEASED is attempt(api, decider, known).outcome
    assert annotations_of(api)["seen"] == "5"
    assert api.count("PATCH") == 2  # the first one tests the outdated version


@pytest.mark.parametrize("when", ["before", "during"])
def test_postponed_pod_gets_no_edits(when: str) -> None:
    api, decider, known = api_with_recheck()
    if when == "before":
        api.annotate(KEY, delay="1h")
    else:
        api.before("PATCH", lambda: api.annotate(KEY, delay="1h"))

    found = attempt(api, decider, known)
    assert Attempt(Outcome.CHANGED, pending_with_recheck(api, decider)) == found
    assert api.gates(KEY) == [GATE]
    assert "seen" not in annotations_of(api)


def test_pod_deleted_before_plugin_call_is_gone() -> None:
    api, decider, known = api_with_recheck()
    api.delete(KEY)

    assert Attempt(Outcome.GONE) == attempt(api, decider, known)


def test_recreated_pod_with_recheck_counts_as_changed() -> None:
    api, decider, known = api_with_recheck()
    api.put_pod(held({"delay": "1"}, uid="another"))

    assert Attempt(Outcome.CHANGED, pending_with_recheck(api, decider)) == attempt(
        api, decider, known
    )


def test_failing_plugin_does_not_block_release() -> None:
    def fail(_pod: Pod) -> Result:
        raise KeyError("x")

    api, decider = api_with_held_pod(), decider_with(fail)

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (
        Outcome.RELEASED,
        ["plugin 'tightening' failed in release: KeyError: 'x'"],
    )


NO_TEXT: Any = KeyError("x")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        pytest.param(success(warnings=[NO_TEXT]), "warning", id="warning"),
        pytest.param(reject(NO_TEXT), "reason", id="reject reason"),
    ],
)
def test_invalid_plugin_message_does_not_block_release(answer: Result, what: str) -> None:
    api, decider = api_with_held_pod(), decider_with(lambda _: answer)

    found = attempt(api, decider)
    why = f"TypeError: it returned the {what} KeyError; use text"
    assert Outcome.RELEASED is found.outcome
    assert found.notes == [f"plugin 'tightening' failed in release: {why}"]


def test_invalid_edits_do_not_block_release() -> None:
    nonsense: Any = 5
    api = api_with_held_pod()
    decider = decider_with(lambda _: success(SetAnnotation(nonsense, "1"), warnings=["mind"]))

    found = attempt(api, decider)
    assert Outcome.RELEASED is found.outcome
    mind, problem = found.notes
    assert mind == "mind"
    assert problem.startswith(f"{PROBLEM}AttributeError: ")
    assert api.gates(KEY) == []
