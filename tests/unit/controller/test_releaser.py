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
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, GATE, SECOND, held
from tests.support.fakes import status_error, unreachable
from tests.unit.controller.releases import (
    DECIDER,
    KEY,
    api_with_held_pod,
    api_with_pending,
    now_ms,
    release,
)

STAMP = "/metadata/annotations/holdfast.dev~1released"


def test_release_removes_holdfast_gate() -> None:
    api, pending = api_with_pending()

    assert Attempt(Outcome.RELEASED, pending, notes=[]) == release(api, pending)
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
    (api, pending), sender, results = api_with_pending(), AsyncPatches(), list[Attempt | None]()
    releaser = Releaser(api, DECIDER, now_ms, begin=sender)

    assert releaser.begin(KEY, pending, results.append)
    path = "/api/v1/namespaces/default/pods/web-0"
    assert sender.patches == [(path, list(release_patch(pending, now_ms())))]
    assert results == []
    sender.on_end(error)
    assert [result and result.outcome for result in results] == [outcome]
    assert api.requests == []


def test_begin_declines_releases_that_may_block() -> None:
    (api, pending), sender, results = api_with_pending(), AsyncPatches(), list[Attempt | None]()
    frozen = Releaser(api, DECIDER, now_ms, begin=sender, is_frozen=lambda _: True)
    assert not frozen.begin(KEY, pending, results.append)
    releaser = Releaser(api, DECIDER, now_ms, begin=sender)
    assert not releaser.begin(KEY, pending._replace(recheck=True), results.append)
    sender.has_connection = False
    assert not releaser.begin(KEY, pending, results.append)
    assert sender.patches == []
    assert results == []


def test_release_keeps_foreign_gates() -> None:
    api = api_with_held_pod(gates=["a.io/b", GATE, "c.io/d", "holdfast.dev/x", "e.io/f"])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d", "e.io/f"]


def test_patch_for_many_gates_is_short() -> None:
    """The API server rejects a JSON Patch of more than 10,000 operations."""
    own_gates = [f"holdfast.dev/{number}" for number in range(6_000)]
    api = api_with_held_pod(gates=["a.io/b", *own_gates[:3_000], "c.io/d", *own_gates[3_000:]])

    assert Outcome.RELEASED is release(api).outcome
    assert api.gates(KEY) == ["a.io/b", "c.io/d"]
    assert len(json.loads(api.bodies[-1])) < 10


def test_names_are_escaped_in_the_path() -> None:
    api, pending = api_with_pending()

    assert Outcome.GONE is Releaser(api, DECIDER, now_ms).release(("a/b", "../x"), pending).outcome
    assert {path for _, path in api.requests} == {"/api/v1/namespaces/a%2Fb/pods/..%2Fx"}


def test_patch_tests_its_preconditions() -> None:
    pending = PendingRelease(0, "u-1", "42", ("a.io/b", GATE, "c.io/d", "holdfast.dev/x"))

    assert release_patch(pending, now_ms()) == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "42"},
        {"op": "test", "path": "/spec/schedulingGates/3", "value": {"name": "holdfast.dev/x"}},
        {"op": "remove", "path": "/spec/schedulingGates/3"},
        {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": GATE}},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    stamp = {"op": "add", "path": STAMP, "value": "2026-03-01T12:00:15Z"}
    assert release_patch(pending._replace(annotated=True), now_ms())[-1] == stamp
    label = {"op": "remove", "path": "/metadata/labels/holdfast.dev~1held"}
    assert release_patch(pending._replace(labelled=True), now_ms())[-1] == label


HELD = PendingRelease(
    CREATED_MS + 15 * SECOND, "u-1", "3", (GATE,), rank=CREATED_MS // 1_000, annotated=True
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"gates": []}, None, id="no gate"),
        pytest.param({"gates": ["a.io/b"]}, None, id="foreign gate"),
        pytest.param({}, HELD, id="own gate"),
        pytest.param(
            {"annotations": {"delay": "15"} | {f"k{i}": "" for i in range(5_000)}},
            HELD._replace(annotated=False),
            id="more annotations than the policies allow",
        ),
        pytest.param(
            {"gates": ["holdfast.dev/old", "a.io/b"]},
            HELD._replace(gates=("holdfast.dev/old", "")),
            id="own gate without a plugin",
        ),
        pytest.param(
            {"annotations": None},
            HELD._replace(
                due_ms=CREATED_MS,
                problem="no annotation asks for a hold: released at once",
                annotated=False,
            ),
            id="gate without annotations",
        ),
    ],
)
def test_pending_release(fields: dict[str, Any], expected: PendingRelease | None) -> None:
    defaults: dict[str, Any] = {"annotations": {"delay": "15"}, "uid": "u-1", "version": "3"}
    assert expected == pending_release(Pod.of(held(**defaults | fields)), DECIDER)
