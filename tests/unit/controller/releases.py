"""Release one pod of a fake API server."""

from __future__ import annotations

from typing import Any

from holdfast.webhook.controller.pending import PendingRelease, pending_release
from holdfast.webhook.controller.releaser import Attempt, Releaser
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Result, success
from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, SECOND, held, make_decider
from tests.support.fakes import FakeApi

KEY = ("default", "web-0")
DECIDER = make_decider()


def now_ms() -> int:
    return CREATED_MS + 15 * SECOND


def pending_of(api: FakeApi, decider: ReleaseDecider = DECIDER) -> PendingRelease:
    pending = pending_release(Pod.of(api.pods[KEY]), decider)
    assert pending is not None
    return pending


def api_with_held_pod(**fields: Any) -> FakeApi:
    return FakeApi(held({"delay": "15", HELD_ANNOTATION: "delay=15s"}, **fields))


def api_with_pending() -> tuple[FakeApi, PendingRelease]:
    api = api_with_held_pod()
    return api, pending_of(api)


def release(api: FakeApi, pending: PendingRelease | None = None) -> Attempt:
    return Releaser(api, DECIDER, now_ms).release(KEY, pending or pending_of(api))


def pending_with_recheck(api: FakeApi, decider: ReleaseDecider) -> PendingRelease:
    pending = pending_of(api, decider)
    assert pending.recheck
    return pending


def attempt(api: FakeApi, decider: ReleaseDecider, entry: PendingRelease | None = None) -> Attempt:
    return Releaser(api, decider, now_ms).release(KEY, entry or pending_with_recheck(api, decider))


def add_annotation(_pod: Pod) -> Result:
    return success(SetAnnotation("a", "b"))
