"""Pods in a frozen namespace are not released until the freeze ends."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.webhook.controller.freeze_watch import UNREADABLE_SECONDS, FreezeWatch
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, HOUR, SECOND, held, instant, make_decider
from tests.unit.controller.world import World, namespace

SHOP, OTHER = ("shop", "web"), ("other", "web")


def delayed_pod(key: tuple[str, str], delay: str = "10", **fields: Any) -> dict[str, Any]:
    namespace_name, name = key
    return held({"delay": delay}, namespace=namespace_name, name=name, uid="-".join(key), **fields)


def gates(world: World) -> dict[tuple[str, str], int]:
    return {key: len(world.api.gates(key)) for key in world.api.pods}


def two_namespaces(**freezes: str) -> World:
    """Return a world with one overdue pod in each of two namespaces."""
    world = World(delayed_pod(SHOP), delayed_pod(OTHER))
    world.freeze(**freezes)
    world.run(20)
    return world


def set_freeze(world: World, name: str, reason: str | None, until: str | None = None) -> None:
    world.controller.freeze_watch.on_update(namespace(name, reason, until))
    world.settle()


def test_only_pods_in_frozen_namespace_stay_held() -> None:
    world = two_namespaces(shop="incident 42")
    assert gates(world) == {SHOP: 1, OTHER: 0}
    assert world.metric("freezes") == 1
    world.run(HOUR / SECOND)
    assert gates(world)[SHOP] == 1

    set_freeze(world, "shop", None)
    assert gates(world)[SHOP] == 0
    assert world.metric("freezes") == 0


def test_deleted_namespace_is_not_frozen() -> None:
    world = two_namespaces(shop="x")
    world.controller.freeze_watch.on_delete(namespace("shop", "x"))
    world.settle()
    assert gates(world)[SHOP] == 0


def test_freeze_ends_by_the_server_clock() -> None:
    world = two_namespaces(shop="x")
    set_freeze(world, "shop", "x", instant(CREATED_MS + 60 * SECOND))
    world.run(39)
    assert gates(world)[SHOP] == 1
    world.run(1)
    assert gates(world)[SHOP] == 0
    assert world.metric("freezes") == 0


def test_freeze_of_holdfast_namespace_stops_all_releases() -> None:
    world = World(delayed_pod(SHOP), delayed_pod(OTHER))
    world.controller.freeze_watch.on_sync([namespace(OWN_NAMESPACE, "upgrade")])
    world.run(20)
    assert gates(world) == {SHOP: 1, OTHER: 1}
    note = "held by holdfast.dev/delay: all namespaces are frozen: upgrade"
    assert world.recorder.notes("Held")[-2:] == [note, note]
    world.freeze(shop="x")
    world.settle()
    assert gates(world) == {SHOP: 1, OTHER: 0}


def test_event_for_due_pod_has_freeze_reason_and_end() -> None:
    world = World(delayed_pod(SHOP))
    set_freeze(world, "shop", "incident 42", instant(CREATED_MS + HOUR))
    end_text = "until 2026-03-01T12:00:10Z"
    assert world.recorder.notes("Held") == [f"held {end_text} by holdfast.dev/delay"]
    world.run(10)
    end_text = "until 2026-03-01T13:00:00Z"
    reason = f"namespace shop is frozen {end_text}: incident 42"
    assert world.recorder.notes("Held")[1:] == [f"held by holdfast.dev/delay: {reason}"]


def test_invalid_freeze_end_holds_pods_and_warns() -> None:
    world = World(delayed_pod(SHOP))
    set_freeze(world, "shop", "x", "soon")
    world.run(20)
    event = world.recorder.events[-1]
    assert event.warning
    assert event.note.startswith("held by holdfast.dev/delay: namespace shop is frozen: x; it does")
    assert gates(world)[SHOP] == 1


def test_frozen_pods_have_no_due_time_and_are_neither_overdue_nor_late() -> None:
    world = two_namespaces(shop="x")
    due = world.controller.get(SHOP)
    assert due is not None
    assert (due.at_ms, due.reason) == (NEVER_MS, "namespace shop is frozen: x")
    assert world.metric("overdue_pods") == 0
    world.metrics.exposition()
    assert world.metric("holds", plugin="delay", reason="freeze") == 1
    before = world.metric("release_lateness_seconds_sum") or 0.0
    world.advance(100)
    set_freeze(world, "shop", None)
    assert (world.metric("release_lateness_seconds_sum") or 0.0) - before < 1


def test_freeze_during_release_attempt_holds_pod() -> None:
    world = World(delayed_pod(SHOP))
    world.advance(20)
    world.dispatch()
    assert world.pool.jobs
    world.freeze(shop="x")
    world.settle()
    assert gates(world)[SHOP] == 1
    set_freeze(world, "shop", None)
    assert gates(world)[SHOP] == 0


# --- before freezes are known ------------------------------------------------------------------


def test_nothing_is_released_before_namespaces_are_listed() -> None:
    world = World(delayed_pod(SHOP), synced=False)
    world.controller.on_sync([])
    assert not world.controller.synced
    world.deliver(SHOP)
    world.run(20)
    assert gates(world)[SHOP] == 1
    assert str(world.metric("freezes")) == "nan"
    world.freeze()
    world.settle()
    assert gates(world)[SHOP] == 0


def test_freezes_take_effect_before_they_are_known() -> None:
    states: list[tuple[bool, int]] = []

    def changed() -> None:
        states.append((watch.known, len(watch.freezes.active(0))))

    watch = FreezeWatch(OWN_NAMESPACE, changed, now=lambda: 0.0, now_ms=lambda: 0)
    watch.on_sync([namespace("shop", "x")])
    assert states == [(False, 1), (True, 1)]


def test_freezes_are_ignored_if_permission_stays_missing(caplog: pytest.LogCaptureFixture) -> None:
    world = World(delayed_pod(SHOP), synced=False)
    world.controller.on_sync([])
    world.deliver(SHOP)
    world.advance(20)
    report_unreadable = world.controller.freeze_watch.on_unreadable
    report_unreadable("HTTP 403")
    world.advance(UNREADABLE_SECONDS - 1)
    report_unreadable("HTTP 403")
    world.settle()
    assert gates(world)[SHOP] == 1

    world.run(1)
    assert gates(world)[SHOP] == 1  # only a response counts
    report_unreadable("HTTP 403")
    world.settle()
    assert gates(world)[SHOP] == 0
    assert "freezes are ignored" in caplog.text
    assert world.controller.freeze_watch.unreadable == "HTTP 403"
    world.freeze()
    assert world.controller.freeze_watch.unreadable == ""


def test_known_freeze_survives_loss_of_permission() -> None:
    world = two_namespaces(shop="x")
    for _ in range(3):
        world.controller.freeze_watch.on_unreadable("HTTP 403")
        world.advance(UNREADABLE_SECONDS)
    world.settle()
    assert gates(world)[SHOP] == 1
    assert world.controller.freeze_watch.unreadable == ""


# --- paces -------------------------------------------------------------------------------------

PACE = "holdfast.dev/pace"
CONFIG = """
profiles:
- schedulerName: "*"
  plugins: {disabled: [{name: sticky}]}
  pluginConfig:
  - name: pace
    args: {paces: [{name: one, maxStarting: 1}]}
"""


def paced_pod(key: tuple[str, str]) -> dict[str, Any]:
    namespace_name, name = key
    pod = held({PACE: "one"}, namespace=namespace_name, name=name, uid="-".join(key), gates=[PACE])
    pod["metadata"]["labels"] = {PACE: "one"}
    pod["spec"]["priority"] = int(key == SHOP)
    return pod


def paced_world(*pods: dict[str, Any]) -> World:
    """Return a world with pods that share a slot, before they are listed."""
    handle = Handle()
    decider: ReleaseDecider = make_decider(CONFIG, handle=handle)
    world = World(*pods, decider=decider, synced=False)
    world.connect(handle)
    return world


def test_frozen_pod_takes_no_slot() -> None:
    world = paced_world(paced_pod(SHOP), paced_pod(OTHER))
    world.freeze(shop="x")
    world.list_pods()
    world.run(1)
    assert gates(world) == {SHOP: 1, OTHER: 0}


@pytest.mark.parametrize("how", ["event", "list"])
def test_frozen_pod_reported_again_takes_no_slot(how: str) -> None:
    world = paced_world(paced_pod(SHOP))
    world.freeze(shop="x")
    world.list_pods()
    world.run(1)
    if how == "event":
        world.deliver(SHOP)
    else:
        world.list_pods()
    world.api.put_pod(paced_pod(OTHER))
    world.deliver(OTHER)
    world.run(1)
    assert gates(world) == {SHOP: 1, OTHER: 0}

    world.freeze()
    world.controller.on_delete(Pod.of(world.api.pods[OTHER]))
    world.run(301)
    assert gates(world) == {SHOP: 0, OTHER: 0}
