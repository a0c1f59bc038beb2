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


def noted(api: FakeApi) -> PendingRelease:
    found = pending_release(Pod.of(api.pods[KEY]), DECIDER)
    assert found is not None
    return found


def waiting(**fields: Any) -> FakeApi:
    return FakeApi(held({"delay": "15", HELD_ANNOTATION: "delay=15s"}, **fields))


def seen() -> tuple[FakeApi, PendingRelease]:
    api = waiting()
    return api, noted(api)


def release(api: FakeApi, known: PendingRelease | None = None) -> Attempt:
    return Releaser(api, DECIDER, now_ms).release(KEY, known or noted(api))


def test_release_takes_our_gate_off() -> None:
    api, known = seen()

    assert Attempt(Outcome.RELEASED, known, notes=[]) == release(api, known)
    assert api.gates(KEY) == []
    assert api.requests == [("PATCH", "/api/v1/namespaces/default/pods/web-0")]


@dataclass
class Begun:
    """Takes patches, whose responses the test makes up."""

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
def test_patch_is_sent_without_waiting(error: ClusterError | None, outcome: Outcome | None) -> None:
    (api, known), begun, ends = seen(), Begun(), list[Attempt | None]()
    releaser = Releaser(api, DECIDER, now_ms, begin=begun)

    assert releaser.begin(KEY, known, ends.append)
    path = "/api/v1/namespaces/default/pods/web-0"
    assert begun.patches == [(path, list(release_patch(known, now_ms())))]
    assert ends == []
    begun.on_end(error)
    assert [one and one.outcome for one in ends] == [outcome]
    assert api.requests == []


def test_release_that_may_block_is_not_begun() -> None:
    (api, known), begun, ends = seen(), Begun(), list[Attempt | None]()
    frozen = Releaser(api, DECIDER, now_ms, begin=begun, is_frozen=lambda _: True)
    assert not frozen.begin(KEY, known, ends.append)
    releaser = Releaser(api, DECIDER, now_ms, begin=begun)
    assert not releaser.begin(KEY, known._replace(recheck=True), ends.append)
    begun.has_connection = False
    assert not releaser.begin(KEY, known, ends.append)
    assert begun.patches == []
    assert ends == []


def test_release_leaves_the_gates_of_others() -> None:
    api = waiting(gates=["a.io/b", GATE, "c.io/d", "holdfast.dev/x", "e.io/f"])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d", "e.io/f"]


def test_release_of_very_many_gates_is_a_short_patch() -> None:
    """The API server rejects a JSON Patch of more than 10,000 operations."""
    ours = [f"holdfast.dev/{number}" for number in range(6_000)]
    api = waiting(gates=["a.io/b", *ours[:3_000], "c.io/d", *ours[3_000:]])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d"]
    assert len(json.loads(api.bodies[-1])) < 10


def test_names_are_escaped_in_the_path() -> None:
    api, known = seen()

    assert Outcome.GONE is Releaser(api, DECIDER, now_ms).release(("a/b", "../x"), known).outcome
    assert {path for _, path in api.requests} == {"/api/v1/namespaces/a%2Fb/pods/..%2Fx"}


def test_patch_tests_all_that_it_relies_on() -> None:
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
        pytest.param(make_pod({"delay": "15"}, gates=["a.io/b"]), None, id="another's gate"),
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
            id="our gate",
        ),
        pytest.param(
            held({"delay": "15"} | {f"k{i}": "" for i in range(5_000)}, uid="u-1"),
            PendingRelease(CREATED_MS + 15 * SECOND, "u-1", "7", (GATE,), rank=CREATED_MS // 1_000),
            id="more annotations than the policies let the controller change",
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
            id="a gate of ours that no plugin knows",
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
            id="a gate without annotations",
        ),
    ],
)
def test_held_pod(pod: Any, expected: PendingRelease | None) -> None:
    assert expected == pending_release(Pod.of(pod), DECIDER)


# --- each way to fail --------------------------------------------------------------------------


def test_deleted_pod_is_gone() -> None:
    api, known = seen()
    api.delete(KEY)

    assert Attempt(Outcome.GONE) == release(api, known)


def test_pod_is_not_gone_because_a_webhook_does_not_find_something() -> None:
    api = waiting()
    refusal = status_error(404, reason="NotFound")
    api.before("PATCH", raising(refusal))

    attempt = release(api)
    assert (attempt.outcome, attempt.reason) == (Outcome.RETRY, str(refusal))
    assert attempt.held is not None


def test_pod_that_is_deleted_while_it_is_read_again_is_gone() -> None:
    api = waiting()
    api.before("PATCH", raising(status_error(409)))
    api.before("GET", lambda: api.delete(KEY))

    assert Attempt(Outcome.GONE) == release(api)


def test_gate_that_is_gone_already_is_gone() -> None:
    api, known = seen()
    api.put_pod(make_pod({"delay": "15"}))

    assert Attempt(Outcome.GONE) == release(api, known)


@pytest.mark.parametrize(
    "annotations",
    [{"other": "1"}, {"delay": "5"}, {"delay": None}, {"delay": "soon"}],
    ids=["another's annotation", "shorter", "removed", "unreadable, the hint decides"],
)
def test_changed_pod_that_is_due_still_is_released_at_once(annotations: dict[str, Any]) -> None:
    api, known = seen()
    api.annotate(KEY, **annotations)

    now = noted(api)

    assert Attempt(Outcome.RELEASED, now, notes=[]) == release(api, known)
    assert (api.count("PATCH"), api.count("GET")) == (2, 1)


def test_pod_that_may_go_only_later_is_left_alone() -> None:
    api, known = seen()
    api.annotate(KEY, delay="1h")

    attempt = release(api, known)
    assert Attempt(Outcome.CHANGED, noted(api)) == attempt
    assert attempt.held is not None
    assert attempt.held.due_ms == CREATED_MS + HOUR
    assert api.gates(KEY) == [GATE]


@pytest.mark.parametrize("delay", ["1", "15", "1h"], ids=["earlier", "same", "later"])
def test_new_pod_of_the_same_name_is_never_released_for_the_old_one(delay: str) -> None:
    api, known = seen()
    api.put_pod(held({"delay": delay}, uid="another"))

    assert Attempt(Outcome.CHANGED, noted(api)) == release(api, known)
    assert api.gates(KEY) == [GATE]


def test_gates_that_were_reordered_are_found() -> None:
    api = waiting(gates=[GATE, "a.io/b"])
    known = noted(api)
    api.put_pod(held({"delay": "15"}, gates=["a.io/b", GATE]))

    assert Outcome.RELEASED is release(api, known).outcome
    assert api.gates(KEY) == ["a.io/b"]


def test_pod_that_keeps_changing_is_tried_three_times() -> None:
    api = waiting()
    api.before("PATCH", *[lambda: api.annotate(KEY, noise=str(api.count("PATCH")))] * 4)
    attempt = release(api)

    assert Outcome.RETRY is attempt.outcome
    assert attempt.reason == "the pod changed during 3 patches in a row"
    assert (api.count("PATCH"), api.count("GET")) == (3, 3)
    assert noted(api) == attempt.held


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_refusal_by_somebody_elses_webhook_is_tried_again_later(status: int) -> None:
    api = waiting()
    api.before("PATCH", raising(status_error(status, retry_after=3.0)))

    expected = Attempt(Outcome.RETRY, noted(api), f"HTTP {status}: scripted", 3.0)
    assert expected == release(api)
    assert (api.count("PATCH"), api.count("GET")) == (1, 1)


def test_pod_without_room_for_the_time_of_its_release_is_released_all_the_same() -> None:
    api = waiting()
    api.annotate(KEY, filled="x" * (ANNOTATION_BYTES - 60))

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == []


def test_pod_that_a_pace_counts_by_that_time_is_not_released_without_it() -> None:
    api = waiting(gates=[GATE, PACE])
    api.annotate(KEY, filled="x" * (ANNOTATION_BYTES - 60))

    found = Releaser(api, decider_of(make_delay()), now_ms).release(KEY, noted(api))
    assert (found.outcome, found.reason) == (Outcome.RETRY, "HTTP 422: annotations: Too long")


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        pytest.param(status_error(429, retry_after=7.0), 7.0, id="429 with Retry-After"),
        pytest.param(status_error(429), None, id="429"),
        pytest.param(status_error(500), None, id="500"),
        pytest.param(status_error(503, retry_after=1.0), 1.0, id="503"),
        pytest.param(status_error(401), None, id="401"),
        pytest.param(status_error(404), None, id="404 without Kubernetes' own reason"),
        pytest.param(unreachable(), None, id="unreachable"),
    ],
)
@pytest.mark.parametrize("method", ["PATCH", "GET"])
def test_other_failures_are_tried_again_later(
    method: str, error: Exception, retry_after: float | None
) -> None:
    api = waiting()
    api.before(method, raising(error))
    if method == "GET":
        api.before("PATCH", raising(status_error(409)))

    assert Attempt(Outcome.RETRY, None, str(error), retry_after) == release(api)
    assert api.gates(KEY) == [GATE]


def test_answer_that_is_no_pod_is_tried_again_later() -> None:
    api, known = seen()
    api.before("PATCH", raising(status_error(409)))
    api.pods[KEY]["metadata"]["name"] = 5

    assert Outcome.RETRY is release(api, known).outcome


def test_lost_answer_of_a_release_that_was_done() -> None:
    api, known = seen()
    api.after("PATCH", raising(unreachable()))

    assert Outcome.RETRY is release(api, known).outcome
    assert api.gates(KEY) == []
    assert Attempt(Outcome.GONE) == release(api, known)


@pytest.mark.parametrize(
    ("status", "message", "left"),
    [
        pytest.param(409, "scripted", 1, id="refused"),
        pytest.param(429, "scripted", 1, id="429"),
        pytest.param(502, "Bad Gateway", 0, id="a proxy"),
        pytest.param(503, "upstream connect error", 0, id="a proxy's 503"),
        pytest.param(500, "Internal error occurred: failed calling webhook", 1, id="a webhook"),
        pytest.param(500, "etcdserver: leader changed", 0, id="a new leader of etcd"),
        pytest.param(504, "Timeout: request did not complete", 0, id="late"),
        pytest.param(None, "", 0, id="no answer"),
    ],
)
def test_pod_that_may_have_been_released_keeps_its_slot(
    status: int | None, message: str, left: int
) -> None:
    slots = Slots()
    api = FakeApi(held(gates=[Slots.gate]))
    error = unreachable() if status is None else ApiStatusError(message, status=status)
    api.before("PATCH", raising(error))

    assert Outcome.RETRY is attempt(api, decider_of(slots)).outcome
    assert slots.free == left


def test_pod_keeps_no_slot_if_the_api_server_shuts_down() -> None:
    slots = Slots()
    api = FakeApi(held(gates=[Slots.gate]))
    api.before("PATCH", raising(status_error(503, reason="ServiceUnavailable")))

    assert Outcome.RETRY is attempt(api, decider_of(slots)).outcome
    assert slots.free == 1


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
def test_pod_that_was_released_without_an_answer_keeps_its_slot(is_read: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    known = rechecked(api, decider)
    api.after("PATCH", raising(unreachable()))
    assert Outcome.RETRY is attempt(api, decider, known).outcome

    if not is_read:
        api.before("GET", raising(unreachable()))
    outcome = Outcome.GONE if is_read else Outcome.RETRY
    assert outcome is attempt(api, decider, known).outcome
    assert (api.gates(KEY), slots.free) == ([], 0)


@pytest.mark.parametrize("ends", ["lead", "thaw"])
@pytest.mark.parametrize("when", ["read", "asked", "refused"])
def test_release_is_not_written_once_it_may_not_be(when: str, ends: str) -> None:
    slots, may_go = Slots(), [True]

    def answer(pod: Pod) -> Result:
        if when == "asked":
            may_go.clear()
        return as_noted(pod)

    decider = decider_of(slots, Tightening(answer))
    api = FakeApi(held(gates=[Slots.gate]))
    known = rechecked(api, decider)._replace(copy=b"")
    if when == "read":
        api.before("GET", may_go.clear)
    elif when == "refused":
        api.before("PATCH", raising(status_error(422)))
        api.before("GET", lambda: None, may_go.clear)
    releaser = Releaser(
        api,
        decider,
        now_ms,
        leading=lambda: ends == "thaw" or bool(may_go),
        is_frozen=lambda _: ends == "thaw" and not may_go,
    )

    found = releaser.release(KEY, known)
    assert (found.outcome, slots.free) == (Outcome.CHANGED, 1)
    assert (api.count("PATCH"), api.gates(KEY)) == (int(when == "refused"), [Slots.gate])


@pytest.mark.parametrize("is_new", [False, True], ids=["deleted", "a new pod of that name"])
def test_pod_that_is_gone_keeps_no_slot(*, is_new: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    known = rechecked(api, decider)
    api.delete(KEY)
    if is_new:
        api.put_pod(make_pod(uid="another"))

    assert Attempt(Outcome.GONE) == attempt(api, decider, known)
    assert slots.free == 1


# --- plugins that have a say at release --------------------------------------------------------


def tightening(answer: Callable[[Pod], Result], *more: Plugin) -> ReleaseDecider:
    return decider_of(make_delay(), *more, Tightening(answer))


def rechecked(api: FakeApi, decider: ReleaseDecider) -> PendingRelease:
    found = pending_release(Pod.of(api.pods[KEY]), decider)
    assert found is not None
    assert found.recheck
    return found


def asking() -> tuple[FakeApi, ReleaseDecider, PendingRelease]:
    api, decider = waiting(), tightening(as_delayed)
    return api, decider, rechecked(api, decider)


def attempt(api: FakeApi, decider: ReleaseDecider, known: PendingRelease | None = None) -> Attempt:
    return Releaser(api, decider, now_ms).release(KEY, known or rechecked(api, decider))


def annotated(api: FakeApi) -> dict[str, str]:
    found: dict[str, str] = api.pods[KEY]["metadata"]["annotations"]
    return found


def as_noted(_pod: Pod) -> Result:
    return success(SetAnnotation("a", "b"))


def as_delayed(pod: Pod) -> Result:
    """Write down what the pod's delay is, so that it shows which pod was asked about."""
    return success(SetAnnotation("seen", pod.annotations["delay"]), warnings=["mind"])


@pytest.mark.parametrize(
    ("has_copy", "requests"), [(True, ["PATCH"]), (False, ["GET", "PATCH"])], ids=str
)
def test_edits_are_written_in_the_patch_that_takes_the_gate_off(
    has_copy: bool, requests: list[str]
) -> None:
    api, decider, known = asking()
    tried = known if has_copy else known._replace(copy=b"")

    assert Attempt(Outcome.RELEASED, known, notes=["mind"]) == attempt(api, decider, tried)
    assert api.gates(KEY) == []
    assert annotated(api)["seen"] == "15"
    assert [method for method, _ in api.requests] == requests


def test_nothing_to_tighten() -> None:
    api, decider = waiting(), tightening(lambda _: skip())

    assert list(attempt(api, decider).notes) == []
    assert len(api.bodies) == 1
    assert release_patch(rechecked(waiting(), decider), now_ms()) == json.loads(api.bodies[0])


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_pod_goes_although_what_was_to_be_added_is_refused(status: int) -> None:
    api, decider = waiting(), tightening(as_delayed)
    api.before("PATCH", raising(status_error(status)))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (
        Outcome.RELEASED,
        [f"{PROBLEM}HTTP {status}: scripted"],
    )
    assert api.gates(KEY) == []
    assert "seen" not in annotated(api)


def test_release_that_is_refused_as_well_is_tried_again_later() -> None:
    api, decider, known = asking()
    api.before("PATCH", *[raising(status_error(422, retry_after=3.0))] * 2)

    assert Attempt(Outcome.RETRY, known, "HTTP 422: scripted", 3.0) == attempt(api, decider)
    assert api.gates(KEY) == [GATE]


FULL = "released without placed: the pod's annotations leave no room"


@pytest.mark.parametrize(
    ("filled", "patches", "notes"),
    [
        pytest.param(ANNOTATION_BYTES // 2, 1, [], id="room"),
        pytest.param(ANNOTATION_BYTES - 150, 1, [FULL], id="room for the time"),
        pytest.param(ANNOTATION_BYTES - 60, 2, [FULL], id="no room"),
    ],
)
def test_pod_without_room_for_an_annotation_gets_the_other_edits(
    filled: int, patches: int, notes: list[str]
) -> None:
    api = waiting()
    api.annotate(KEY, filled="x" * filled)
    edits = SelectNodes("pool", "tenants"), SetAnnotation("placed", "x" * 100)

    found = attempt(api, tightening(lambda _: success(*edits)))
    assert (found.outcome, found.notes) == (Outcome.RELEASED, notes)
    assert api.pods[KEY]["spec"]["nodeSelector"] == {"pool": "tenants"}
    assert api.count("PATCH") == patches


def test_refused_pod_that_may_not_start_any_more_returns_its_slot() -> None:
    slots, answers = Slots(), list[Permit]([Wait(now_ms() + HOUR), Allow()])
    holding = HoldingToo(lambda _pod, _now_ms: answers.pop() if len(answers) > 1 else answers[0])
    decider = decider_of(slots, holding, Tightening(as_noted))
    api = FakeApi(held(gates=[Slots.gate, HoldingToo.gate]))
    known = PendingRelease(0, UID, "", (), recheck=True)
    api.before("PATCH", raising(status_error(422)))

    found = attempt(api, decider, known)
    assert (found.outcome, found.reason) == (Outcome.RETRY, "HTTP 422: scripted")
    assert (api.count("PATCH"), slots.free) == (1, 1)


def test_refused_pod_keeps_its_slot_for_another_patch() -> None:
    slots = Slots()
    decider = decider_of(slots, Tightening(as_noted))
    api, free = FakeApi(held(gates=[Slots.gate])), list[int]()
    api.before("PATCH", raising(status_error(422)), lambda: free.append(slots.free))
    api.before("GET", lambda: free.append(slots.free))

    assert Outcome.RELEASED is attempt(api, decider).outcome
    assert free == [0, 0]


def test_what_was_refused_once_is_not_added_when_the_pod_changes() -> None:
    api, decider = waiting(), tightening(as_delayed)
    api.before("PATCH", raising(status_error(422)), lambda: api.annotate(KEY, noise="1"))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, [f"{PROBLEM}HTTP 422: scripted"])
    assert "seen" not in annotated(api)
    assert api.count("PATCH") == 3


def test_edits_are_made_anew_for_a_pod_that_changed_in_between() -> None:
    api, decider = waiting(), tightening(as_delayed)
    api.before("PATCH", lambda: api.annotate(KEY, delay="14"))

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, ["mind"])
    assert found.held is not None
    assert found.held.due_ms == CREATED_MS + 14 * SECOND
    assert annotated(api)["seen"] == "14"


def test_pod_that_is_to_be_asked_about_since_it_changed_in_between() -> None:
    class Choosy(Tightening):
        def concerns(self, pod: Pod) -> bool:
            return "space" in pod.annotations

    api, decider = waiting(), decider_of(make_delay(), Choosy(as_delayed))
    known = pending_release(Pod.of(api.pods[KEY]), decider)
    assert known is not None
    assert not known.recheck
    api.before("PATCH", lambda: api.annotate(KEY, space="1"))

    found = attempt(api, decider, known)
    assert (found.outcome, found.notes) == (Outcome.RELEASED, ["mind"])
    assert annotated(api)["seen"] == "15"


def test_pod_that_changed_before_it_was_asked_about() -> None:
    api, decider, known = asking()
    api.annotate(KEY, delay="5")

    assert Outcome.RELEASED is attempt(api, decider, known).outcome
    assert annotated(api)["seen"] == "5"
    assert api.count("PATCH") == 2  # the first one tests the version that was seen


@pytest.mark.parametrize("when", ["before", "in between"])
def test_pod_that_is_due_later_after_all_is_left_alone(when: str) -> None:
    api, decider, known = asking()
    if when == "before":
        api.annotate(KEY, delay="1h")
    else:
        api.before("PATCH", lambda: api.annotate(KEY, delay="1h"))

    found = attempt(api, decider, known)
    assert Attempt(Outcome.CHANGED, rechecked(api, decider)) == found
    assert api.gates(KEY) == [GATE]
    assert "seen" not in annotated(api)


def test_pod_that_is_gone_before_it_is_asked_about() -> None:
    api, decider, known = asking()
    api.delete(KEY)

    assert Attempt(Outcome.GONE) == attempt(api, decider, known)


def test_pod_that_is_another_now_is_not_asked_about() -> None:
    api, decider, known = asking()
    api.put_pod(held({"delay": "1"}, uid="another"))

    assert Attempt(Outcome.CHANGED, rechecked(api, decider)) == attempt(api, decider, known)


def test_plugin_that_fails_keeps_no_pod() -> None:
    def fail(_pod: Pod) -> Result:
        raise KeyError("x")

    api, decider = waiting(), tightening(fail)

    found = attempt(api, decider)
    assert (found.outcome, found.notes) == (
        Outcome.RELEASED,
        ["plugin 'tightening' failed in release: KeyError: 'x'"],
    )


NO_TEXT: Any = KeyError("x")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        pytest.param(success(warnings=[NO_TEXT]), "warning", id="a warning"),
        pytest.param(reject(NO_TEXT), "reason", id="a refusal's reason"),
    ],
)
def test_plugin_that_answers_what_is_no_text_keeps_no_pod(answer: Result, what: str) -> None:
    api, decider = waiting(), tightening(lambda _: answer)

    found = attempt(api, decider)
    why = f"TypeError: it returned the {what} KeyError; use text"
    assert Outcome.RELEASED is found.outcome
    assert found.notes == [f"plugin 'tightening' failed in release: {why}"]


def test_edits_of_which_no_patch_can_be_made_keep_no_pod() -> None:
    nonsense: Any = 5
    api = waiting()
    decider = tightening(lambda _: success(SetAnnotation(nonsense, "1"), warnings=["mind"]))

    found = attempt(api, decider)
    assert Outcome.RELEASED is found.outcome
    mind, problem = found.notes
    assert mind == "mind"
    assert problem.startswith(f"{PROBLEM}AttributeError: ")
    assert api.gates(KEY) == []
