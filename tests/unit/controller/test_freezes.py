"""Nothing in a frozen namespace is released, and everything once it is thawed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.webhook.controller.freeze_watch import UNREADABLE_SECONDS, FreezeWatch
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.plugins.pace.groups import PacedPod
from tests.support.builders import CREATED_MS, HOUR, SECOND, held, instant, make_decider
from tests.unit.controller.test_controller import World, namespace

SHOP, OTHER = ("shop", "web"), ("other", "web")


def waiting(key: tuple[str, str], delay: str = "10", **fields: Any) -> dict[str, Any]:
    where, name = key
    return held({"delay": delay}, namespace=where, name=name, uid="-".join(key), **fields)


def gates(world: World) -> dict[tuple[str, str], int]:
    return {key: len(world.api.gates(key)) for key in world.api.pods}


def two(**freezes: str) -> World:
    """Give a controller of a pod in each of two namespaces, both due after 10 s."""
    world = World(waiting(SHOP), waiting(OTHER))
    world.freeze(**freezes)
    world.move(20)
    world.settle()
    return world


def change(world: World, name: str, reason: str | None, until: str | None = None) -> None:
    world.controller.freeze_watch.on_update(namespace(name, reason, until))
    world.settle()


def test_only_the_frozen_namespace_waits_until_it_is_thawed() -> None:
    world = two(shop="incident 42")
    assert gates(world) == {SHOP: 1, OTHER: 0}
    assert world.metric("freezes") == 1
    world.move(HOUR / SECOND)
    world.settle()
    assert gates(world)[SHOP] == 1

    change(world, "shop", None)
    assert gates(world)[SHOP] == 0
    assert world.metric("freezes") == 0


def test_deleted_namespace_is_not_frozen() -> None:
    world = two(shop="x")
    world.controller.freeze_watch.on_delete(namespace("shop", "x"))
    world.settle()
    assert gates(world)[SHOP] == 0


def test_freeze_ends_at_its_time_by_the_servers_clock() -> None:
    world = two(shop="x")
    change(world, "shop", "x", instant(CREATED_MS + 60 * SECOND))
    world.move(39)
    world.settle()
    assert gates(world)[SHOP] == 1
    world.move(1)
    world.settle()
    assert gates(world)[SHOP] == 0
    assert world.metric("freezes") == 0


def test_freeze_of_holdfasts_namespace_stops_everything() -> None:
    world = World(waiting(SHOP), waiting(OTHER))
    world.controller.freeze_watch.on_sync([namespace(OWN_NAMESPACE, "upgrade")])
    world.move(20)
    world.settle()
    assert gates(world) == {SHOP: 1, OTHER: 1}
    note = "held by holdfast.dev/delay: all namespaces are frozen: upgrade"
    assert world.told.notes("Held")[-2:] == [note, note]
    world.freeze(shop="x")
    world.settle()
    assert gates(world) == {SHOP: 1, OTHER: 0}


def test_due_pod_has_an_event_with_the_reason_and_the_end() -> None:
    world = World(waiting(SHOP))
    change(world, "shop", "incident 42", instant(CREATED_MS + HOUR))
    until = "until 2026-03-01T12:00:10Z"
    assert world.told.notes("Held") == [f"held {until} by holdfast.dev/delay"]
    world.move(10)
    world.settle()
    until = "until 2026-03-01T13:00:00Z"
    reason = f"namespace shop is frozen {until}: incident 42"
    assert world.told.notes("Held")[1:] == [f"held by holdfast.dev/delay: {reason}"]


def test_unreadable_end_keeps_pods_and_is_a_warning() -> None:
    world = World(waiting(SHOP))
    change(world, "shop", "x", "soon")
    world.move(20)
    world.settle()
    event = world.told.events[-1]
    assert event.warning
    assert event.note.startswith("held by holdfast.dev/delay: namespace shop is frozen: x; it does")
    assert gates(world)[SHOP] == 1


def test_frozen_pods_are_not_overdue_nor_late() -> None:
    world = two(shop="x")
    assert world.metric("overdue_pods") == 0
    world.metrics.exposition()
    assert world.metric("holds", plugin="delay", reason="freeze") == 1
    before = world.metric("release_lateness_seconds_sum") or 0.0
    world.move(100)
    change(world, "shop", None)
    assert (world.metric("release_lateness_seconds_sum") or 0.0) - before < 1


def test_pod_in_a_frozen_namespace_is_due_when_it_ends() -> None:
    world = two(shop="x")
    due = world.controller.get(SHOP)
    assert due is not None
    assert (due.at_ms, due.reason) == (NEVER_MS, "namespace shop is frozen: x")


def test_freeze_that_begins_during_an_attempt_counts() -> None:
    world = World(waiting(SHOP))
    world.move(20)
    world.turn()
    assert world.pool.jobs
    world.freeze(shop="x")
    world.settle()
    assert gates(world)[SHOP] == 1
    change(world, "shop", None)
    assert gates(world)[SHOP] == 0


# --- before freezes are known ------------------------------------------------------------------


def test_nothing_is_released_before_namespaces_were_listed() -> None:
    world = World(waiting(SHOP), synced=False)
    world.controller.on_sync([])
    assert not world.controller.synced
    world.tell(SHOP)
    world.move(20)
    world.settle()
    assert gates(world)[SHOP] == 1
    assert str(world.metric("freezes")) == "nan"
    world.freeze()
    world.settle()
    assert gates(world)[SHOP] == 0


def test_freezes_are_in_force_before_they_count_as_known() -> None:
    seen: list[tuple[bool, int]] = []

    def changed() -> None:
        seen.append((watch.known, len(watch.freezes.active(0))))

    watch = FreezeWatch(OWN_NAMESPACE, changed, now=lambda: 0.0, now_ms=lambda: 0)
    watch.on_sync([namespace("shop", "x")])
    assert seen == [(False, 1), (True, 1)]


def test_permission_that_stays_missing_holds_no_pods(caplog: pytest.LogCaptureFixture) -> None:
    world = World(waiting(SHOP), synced=False)
    world.controller.on_sync([])
    world.tell(SHOP)
    world.move(20)
    refuse = world.controller.freeze_watch.on_unreadable
    refuse("HTTP 403")
    world.move(UNREADABLE_SECONDS - 1)
    refuse("HTTP 403")
    world.settle()
    assert gates(world)[SHOP] == 1

    world.move(1)
    world.settle()
    assert gates(world)[SHOP] == 1  # only an answer counts
    refuse("HTTP 403")
    world.settle()
    assert gates(world)[SHOP] == 0
    assert "freezes are ignored" in caplog.text
    assert world.controller.freeze_watch.unreadable == "HTTP 403"
    world.freeze()
    assert world.controller.freeze_watch.unreadable == ""


def test_known_freeze_stays_in_force_without_the_permission() -> None:
    world = two(shop="x")
    for _ in range(3):
        world.controller.freeze_watch.on_unreadable("HTTP 403")
        world.move(UNREADABLE_SECONDS)
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


def paced(key: tuple[str, str]) -> dict[str, Any]:
    where, name = key
    found = held({PACE: "one"}, namespace=where, name=name, uid="-".join(key), gates=[PACE])
    found["metadata"]["labels"] = {PACE: "one"}
    found["spec"]["priority"] = int(key == SHOP)
    return found


def paced_world(*pods: dict[str, Any]) -> World:
    """Give a controller of pods that share a slot, before it knows any of them."""
    handle = Handle()
    decider: ReleaseDecider = make_decider(CONFIG, handle=handle)
    world = World(*pods, decider=decider, synced=False)
    handle.connect(
        waiting=world.controller,
        record_event=world.controller.record_event,
        follow=partial(_listed, world),
        bounds_ms=world.controller.bounds_ms,
    )
    return world


def test_frozen_pods_leave_their_slot_to_others() -> None:
    world = paced_world(paced(SHOP), paced(OTHER))
    world.freeze(shop="x")
    world.controller.on_sync([_pod(world, SHOP), _pod(world, OTHER)])
    world.run(1)
    assert gates(world) == {SHOP: 1, OTHER: 0}


@pytest.mark.parametrize("how", ["event", "list"])
def test_frozen_pod_that_is_reported_again_takes_no_slot(how: str) -> None:
    world = paced_world(paced(SHOP))
    world.freeze(shop="x")
    world.controller.on_sync([_pod(world, SHOP)])
    world.run(1)
    if how == "event":
        world.tell(SHOP)
    else:
        world.controller.on_sync([_pod(world, SHOP)])
    world.api.put_pod(paced(OTHER))
    world.tell(OTHER)
    world.run(1)
    assert gates(world) == {SHOP: 1, OTHER: 0}

    world.freeze()
    world.controller.on_delete(_pod(world, OTHER))
    world.run(301)
    assert gates(world) == {SHOP: 0, OTHER: 0}


def _pod(world: World, key: tuple[str, str]) -> PacedPod:
    found = PacedPod.of(world.api.pods[key])
    assert isinstance(found, PacedPod)
    return found


def _listed(
    world: World, _path: str, _kind: type[Any], handler: Any, **_: Any
) -> Callable[[], None]:
    handler.on_sync([_pod(world, key) for key in world.api.pods])
    return lambda: None
