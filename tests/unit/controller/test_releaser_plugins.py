"""Plugins that add something to a pod at its release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.webhook.controller.pending import PendingRelease, pending_release
from holdfast.webhook.controller.releaser import (
    Attempt,
    Outcome,
    release_patch,
)
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Allow, Permit, Plugin, Result, Wait, skip, success
from holdfast.webhook.model.edits import SelectNodes, SetAnnotation
from holdfast.webhook.model.objects import Pod
from tests.support.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    SECOND,
    UID,
    held,
    make_delay,
)
from tests.support.fakes import ANNOTATION_BYTES, FakeApi, raising, status_error
from tests.support.scripted import HoldingToo, Slots, Tightening, decider_of
from tests.unit.controller.releases import (
    KEY,
    add_annotation,
    api_with_held_pod,
    attempt,
    now_ms,
    pending_with_recheck,
)

PROBLEM = "released without what was to be added: "


def decider_with(answer: Callable[[Pod], Result], *plugins: Plugin) -> ReleaseDecider:
    return decider_of(make_delay(), *plugins, Tightening(answer))


def api_with_recheck() -> tuple[FakeApi, ReleaseDecider, PendingRelease]:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    return api, decider, pending_with_recheck(api, decider)


def annotations_of(api: FakeApi) -> dict[str, str]:
    annotations: dict[str, str] = api.pods[KEY]["metadata"]["annotations"]
    return annotations


def annotate_delay(pod: Pod) -> Result:
    """Record the pod's delay, which shows the version of the pod that was passed."""
    return success(SetAnnotation("seen", pod.annotations["delay"]), warnings=["mind"])


@pytest.mark.parametrize(
    ("has_copy", "requests"), [(True, ["PATCH"]), (False, ["GET", "PATCH"])], ids=str
)
def test_edits_are_part_of_the_release_patch(has_copy: bool, requests: list[str]) -> None:
    api, decider, pending = api_with_recheck()
    current = pending if has_copy else pending._replace(copy=b"")

    assert Attempt(Outcome.RELEASED, pending, notes=["mind"]) == attempt(api, decider, current)
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


@pytest.mark.parametrize(
    ("status", "changes"), [(400, 0), (403, 0), (409, 0), (422, 0), (422, 1)], ids=str
)
def test_pod_is_released_without_rejected_edits(status: int, changes: int) -> None:
    """They are not retried even if the pod changes."""
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    change = [lambda: api.annotate(KEY, noise="1")] * changes
    api.before("PATCH", raising(status_error(status)), *change)

    result = attempt(api, decider)
    note = f"{PROBLEM}HTTP {status}: scripted"
    assert (result.outcome, result.notes) == (Outcome.RELEASED, [note])
    assert api.gates(KEY) == []
    assert "seen" not in annotations_of(api)
    assert api.count("PATCH") == 2 + changes


def test_release_rejected_without_edits_is_retried_later() -> None:
    api, decider, pending = api_with_recheck()
    api.before("PATCH", *[raising(status_error(422, retry_after=3.0))] * 2)

    assert Attempt(Outcome.RETRY, pending, "HTTP 422: scripted", 3.0) == attempt(api, decider)
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

    result = attempt(api, decider_with(lambda _: success(*edits)))
    assert (result.outcome, result.notes) == (Outcome.RELEASED, notes)
    assert api.pods[KEY]["spec"]["nodeSelector"] == {"pool": "tenants"}
    assert api.count("PATCH") == patches


def test_rejected_pod_no_longer_allowed_returns_its_slot() -> None:
    slots, results = Slots(), list[Permit]([Wait(now_ms() + HOUR), Allow()])
    holding = HoldingToo(lambda _pod, _now_ms: results.pop() if len(results) > 1 else results[0])
    decider = decider_of(slots, holding, Tightening(add_annotation))
    api = FakeApi(held(gates=[Slots.gate, HoldingToo.gate]))
    pending = PendingRelease(0, UID, "", (), recheck=True)
    api.before("PATCH", raising(status_error(422)))

    result = attempt(api, decider, pending)
    assert (result.outcome, result.reason) == (Outcome.RETRY, "HTTP 422: scripted")
    assert (api.count("PATCH"), slots.free) == (1, 1)


def test_rejected_pod_keeps_its_slot_for_second_patch() -> None:
    slots = Slots()
    decider = decider_of(slots, Tightening(add_annotation))
    api, free_slots = FakeApi(held(gates=[Slots.gate])), list[int]()
    api.before("PATCH", raising(status_error(422)), lambda: free_slots.append(slots.free))
    api.before("GET", lambda: free_slots.append(slots.free))

    assert Outcome.RELEASED is attempt(api, decider).outcome
    assert free_slots == [0, 0]


def test_edits_are_recomputed_for_changed_pod() -> None:
    api, decider = api_with_held_pod(), decider_with(annotate_delay)
    api.before("PATCH", lambda: api.annotate(KEY, delay="14"))

    result = attempt(api, decider)
    assert (result.outcome, result.notes) == (Outcome.RELEASED, ["mind"])
    assert result.held is not None
    assert result.held.due_ms == CREATED_MS + 14 * SECOND
    assert annotations_of(api)["seen"] == "14"
    assert api.count("PATCH") == 2  # the first one tests the outdated version


def test_plugin_runs_if_changed_pod_concerns_it() -> None:
    class Choosy(Tightening):
        def concerns(self, pod: Pod) -> bool:
            return "space" in pod.annotations

    api, decider = api_with_held_pod(), decider_of(make_delay(), Choosy(annotate_delay))
    pending = pending_release(Pod.of(api.pods[KEY]), decider)
    assert pending is not None
    assert not pending.recheck
    api.before("PATCH", lambda: api.annotate(KEY, space="1"))

    result = attempt(api, decider, pending)
    assert (result.outcome, result.notes) == (Outcome.RELEASED, ["mind"])
    assert annotations_of(api)["seen"] == "15"


def test_postponed_pod_is_not_released_and_gets_no_edits() -> None:
    api, decider, pending = api_with_recheck()
    api.before("PATCH", lambda: api.annotate(KEY, delay="1h"))

    result = attempt(api, decider, pending)
    assert Attempt(Outcome.CHANGED, pending_with_recheck(api, decider)) == result
    assert result.held is not None
    assert result.held.due_ms == CREATED_MS + HOUR
    assert api.gates(KEY) == [GATE]
    assert "seen" not in annotations_of(api)


def test_failing_plugin_does_not_block_release() -> None:
    def fail(_pod: Pod) -> Result:
        raise KeyError("x")

    api, decider = api_with_held_pod(), decider_with(fail)

    result = attempt(api, decider)
    note = "plugin 'tightening' failed in release: KeyError: 'x'"
    assert (result.outcome, result.notes) == (Outcome.RELEASED, [note])


def test_invalid_edits_do_not_block_release() -> None:
    key: Any = 5
    api = api_with_held_pod()
    decider = decider_with(lambda _: success(SetAnnotation(key, "1"), warnings=["mind"]))

    result = attempt(api, decider)
    assert Outcome.RELEASED is result.outcome
    warning, problem = result.notes
    assert warning == "mind"
    assert problem.startswith(f"{PROBLEM}AttributeError: ")
    assert api.gates(KEY) == []
