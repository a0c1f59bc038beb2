from __future__ import annotations

import pytest

from controlplane.errors import ControlPlaneError
from tests.e2e.world import World, created, gates, pod

GATE = "holdfast.dev/delay"


def test_a_delayed_pod_is_held_then_released_on_time_and_runs(world: World) -> None:
    (made,) = world.apply(pod("held", {"delay": "3"}))
    assert gates(made) == [GATE]
    assert made["metadata"]["annotations"]["holdfast.dev/held"] == "delay=3s"

    world.eventually(
        lambda: (
            world.get("pod", "held")["status"].get("conditions", [{}])[0].get("reason")
            == "SchedulingGated"
        )
    )
    world.eventually(lambda: world.get("pod", "held")["status"]["phase"] == "Running")
    assert world.releases()["held"] - created(made) >= 3


@pytest.mark.parametrize(
    "annotations",
    [{}, {"team": "a", "delayed": "15"}],
    ids=["without annotations", "with annotations of others"],
)
def test_a_pod_that_asks_for_nothing_never_reaches_the_webhook(
    world: World, annotations: dict[str, str]
) -> None:
    world.apply(pod("asks", {"delay": "0"}))
    before = world.reviews()
    world.apply(*(pod(f"quiet-{number}", annotations) for number in range(10)))
    world.kubectl("label", "pods", "--all", "touched=yes")
    assert world.reviews() == before

    world.apply(pod("asks-too", {"delay": "0"}))
    assert world.reviews() > before  # so that the count is known to count


def test_a_dry_run_shows_gate_and_hint_and_stores_nothing(world: World) -> None:
    (shown,) = world.apply(pod("dry", {"delay": "15"}), dry_run=True)
    assert gates(shown) == [GATE]
    assert shown["metadata"]["annotations"]["holdfast.dev/held"] == "delay=15s"
    with pytest.raises(ControlPlaneError, match="NotFound"):
        world.get("pod", "dry")


def test_a_value_that_cannot_be_followed_is_refused_where_the_user_looks(world: World) -> None:
    message = world.refusal(pod("wrong", {"delay": "soon"}))
    assert 'annotation delay: "soon" is no duration; write whole seconds such as 15' in message
    assert world.all("pods") == []


def test_gates_of_others_stay_and_keep_the_pod(world: World) -> None:
    world.apply(pod("two", {"delay": "1"}, schedulingGates=[{"name": "example.com/mine"}]))
    world.eventually(lambda: "two" in world.releases())
    assert gates(world.get("pod", "two")) == ["example.com/mine"]


def test_a_change_of_a_waiting_pod_is_followed(world: World) -> None:
    long = pod("shortened", {"delay": "1000"}), pod("removed", {"delay": "1000"})
    world.apply(*long)
    world.kubectl("annotate", "pod", "shortened", "delay=1", "--overwrite")
    world.kubectl("annotate", "pod", "removed", "delay-")
    world.eventually(lambda: world.releases().keys() == {"shortened", "removed"})


def test_a_waiting_pod_cannot_be_given_an_unreadable_value(world: World) -> None:
    world.apply(pod("waits", {"delay": "1000"}))
    with pytest.raises(ControlPlaneError, match='"soon" is no duration'):
        world.kubectl("annotate", "pod", "waits", "delay=soon", "--overwrite")
