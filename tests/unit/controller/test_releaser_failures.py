"""Releases that fail, and pods that change meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.webhook.controller.releaser import (
    Attempt,
    Outcome,
    Releaser,
)
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework.plugin import (
    Result,
)
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.pace.args import KEY as PACE
from tests.support.builders import GATE, held, make_delay, make_pod
from tests.support.fakes import ANNOTATION_BYTES, FakeApi, raising, status_error, unreachable
from tests.support.scripted import Slots, Tightening, decider_of
from tests.unit.controller.releases import (
    KEY,
    add_annotation,
    api_with_held_pod,
    api_with_pending,
    attempt,
    now_ms,
    pending_of,
    pending_with_recheck,
    release,
)


@pytest.mark.parametrize("exists", [False, True], ids=["deleted", "no gate"])
def test_pod_without_gate_counts_as_gone(*, exists: bool) -> None:
    api, pending = api_with_pending()
    if exists:
        api.put_pod(make_pod({"delay": "15"}))
    else:
        api.delete(KEY)

    assert Attempt(Outcome.GONE) == release(api, pending)


def test_webhook_404_does_not_mean_pod_is_gone() -> None:
    api = api_with_held_pod()
    error = status_error(404, reason="NotFound")
    api.before("PATCH", raising(error))

    attempt = release(api)
    assert (attempt.outcome, attempt.reason) == (Outcome.RETRY, str(error))
    assert attempt.held is not None


@pytest.mark.parametrize(
    "annotations",
    [{"other": "1"}, {"delay": "5"}, {"delay": None}, {"delay": "soon"}],
    ids=["foreign annotation", "shorter", "removed", "invalid, held annotation decides"],
)
def test_changed_pod_still_due_is_released_at_once(annotations: dict[str, Any]) -> None:
    api, pending = api_with_pending()
    api.annotate(KEY, **annotations)

    now = pending_of(api)

    assert Attempt(Outcome.RELEASED, now, notes=[]) == release(api, pending)
    assert (api.count("PATCH"), api.count("GET")) == (2, 1)


def test_recreated_pod_is_not_released_by_stale_attempt() -> None:
    api, pending = api_with_pending()
    api.put_pod(held({"delay": "1"}, uid="another"))

    assert Attempt(Outcome.CHANGED, pending_of(api)) == release(api, pending)
    assert api.gates(KEY) == [GATE]


def test_reordered_gates_are_found() -> None:
    api = api_with_held_pod(gates=[GATE, "a.io/b"])
    pending = pending_of(api)
    api.put_pod(held({"delay": "15"}, gates=["a.io/b", GATE]))

    assert Outcome.RELEASED is release(api, pending).outcome
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


def test_paced_pod_is_not_released_without_released_annotation() -> None:
    api = api_with_held_pod(gates=[GATE, PACE])
    api.annotate(KEY, filled="x" * (ANNOTATION_BYTES - 60))

    result = Releaser(api, decider_of(make_delay()), now_ms).release(KEY, pending_of(api))
    assert (result.outcome, result.reason) == (Outcome.RETRY, "HTTP 422: annotations: Too long")


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
    api, pending = api_with_pending()
    api.before("PATCH", raising(status_error(409)))
    api.pods[KEY]["metadata"]["name"] = 5

    assert Outcome.RETRY is release(api, pending).outcome


@pytest.mark.parametrize(
    ("error", "left"),
    [
        pytest.param(status_error(409), 1, id="rejected"),
        pytest.param(status_error(429), 1, id="429"),
        pytest.param(status_error(502), 0, id="proxy"),
        pytest.param(status_error(503), 0, id="proxy 503"),
        pytest.param(status_error(503, reason="ServiceUnavailable"), 1, id="shutdown"),
        pytest.param(
            ApiStatusError("Internal error occurred: failed calling webhook", status=500),
            1,
            id="webhook",
        ),
        pytest.param(status_error(500), 0, id="etcd leader change"),
        pytest.param(status_error(504), 0, id="timeout"),
        pytest.param(unreachable(), 0, id="no response"),
    ],
)
def test_failed_release_keeps_slot_only_if_outcome_is_unknown(error: Exception, left: int) -> None:
    slots = Slots()
    api = FakeApi(held(gates=[Slots.gate]))
    api.before("PATCH", raising(error))

    assert Outcome.RETRY is attempt(api, decider_of(slots)).outcome
    assert slots.free == left


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
def test_pod_released_with_lost_response_keeps_its_slot(is_read: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    pending = pending_with_recheck(api, decider)
    api.after("PATCH", raising(unreachable()))
    assert Outcome.RETRY is attempt(api, decider, pending).outcome

    if not is_read:
        api.before("GET", raising(unreachable()))
    outcome = Outcome.GONE if is_read else Outcome.RETRY
    assert outcome is attempt(api, decider, pending).outcome
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
    pending = pending_with_recheck(api, decider)._replace(copy=b"")
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

    result = releaser.release(KEY, pending)
    assert (result.outcome, slots.free) == (Outcome.CHANGED, 1)
    assert (api.count("PATCH"), api.gates(KEY)) == (int(when == "rejected"), [Slots.gate])


@pytest.mark.parametrize("is_new", [False, True], ids=["deleted", "recreated"])
def test_gone_pod_returns_its_slot(*, is_new: bool) -> None:
    slots = Slots()
    api, decider = FakeApi(held(gates=[Slots.gate])), decider_of(slots)
    pending = pending_with_recheck(api, decider)
    api.delete(KEY)
    if is_new:
        api.put_pod(make_pod(uid="another"))

    assert Attempt(Outcome.GONE) == attempt(api, decider, pending)
    assert slots.free == 1
