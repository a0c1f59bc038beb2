"""Places of held pods in line for their pace."""

from typing import Any

import msgspec
import pytest

from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.report import held_pods, pace_places
from holdfast.webhook.report.pace_places import PaceLines
from tests.support.builders import CREATED_MS, GATE, SECOND, held, instant, make_decider, make_pod
from tests.support.vm_builders import owner_of

PACE = "holdfast.dev/pace"
NOW_MS = CREATED_MS + 20 * SECOND
JVM = """
profiles:
- pluginConfig:
  - name: pace
    args: {paces: [{name: jvm, maxStarting: 2}, {name: own, maxStarting: 2, scope: owner}]}
"""
DECIDER = make_decider(JVM)


def paced(name: str, value: str = "jvm", **fields: Any) -> PacedPod:
    """Make a pod that was created at `waits` if it is held, or released at `released`."""
    phase, waits = fields.pop("phase", "Pending"), fields.pop("waits", None)
    gates = fields.pop("gates", [PACE] if waits is not None else [])
    annotations = {PACE: value, **fields.pop("extra", {})}
    if (released := fields.pop("released", None)) is not None:
        annotations["holdfast.dev/released"] = instant(CREATED_MS + released * SECOND)
    source = make_pod(annotations, name=name, uid=name, gates=gates, **fields)
    source["metadata"]["creationTimestamp"] = instant(CREATED_MS + (waits or 0) * SECOND)
    status: dict[str, Any] = {"phase": phase}
    if phase == "Running":
        status["conditions"] = [{"type": "Ready", "status": "True"}]
    return msgspec.convert({**source, "status": status}, PacedPod)


def lines(**fields: Any) -> PaceLines:
    return PaceLines(DECIDER, NOW_MS, fields.get("is_frozen", lambda _: False))


STARTING = [
    paced("starts", released=1),
    paced("starts-too", released=2),
    paced("ready", phase="Running"),
    paced("another", "own", released=1),
]


def test_places_follow_due_time_and_count_starting_pods() -> None:
    places = lines().places([paced("b", waits=5), paced("a", waits=3), *STARTING], "")
    assert {name: str(place) for (_, name), place in places.items()} == {
        "a": "pace jvm: 2 of 2 starting, 1st in line",
        "b": "pace jvm: 2 of 2 starting, 2nd in line",
    }
    held_pod = held_pods.described(paced("b", waits=5), DECIDER, place=places["default", "b"])
    assert held_pods.left(held_pod, NOW_MS) == "2nd in line"
    assert held_pod.remark == "pace jvm: 2 of 2 starting, 2nd in line"
    assert held_pods.document(held_pod, NOW_MS)["placeInLine"] == 2


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            paced("a", waits=1, gates=[PACE, GATE], extra={"delay": "1h"}),
            "pace jvm: 2 of 2 starting",
            id="a delay",
        ),
        pytest.param(
            paced("a", waits=1, gates=[PACE, GATE], extra={"delay": "5s"}),
            "pace jvm: 2 of 2 starting, 1st in line",
            id="an elapsed delay",
        ),
        pytest.param(
            paced("a", "3,10/1m", waits=1),
            "pace: 0 of 3 starting, at most 10 in 1m, 1st in line",
            id="inline",
        ),
        pytest.param(paced("a", "5/1m", waits=1), "pace: at most 5 in 1m, 1st in line", id="rate"),
        pytest.param(paced("a", "none", waits=1), "", id="unknown pace"),
    ],
)
def test_place_of_a_pod(pod: PacedPod, expected: str) -> None:
    places = lines().places([pod, *STARTING], "")
    assert "".join(map(str, places.values())) == expected


def test_pods_past_the_start_timeout_do_not_count() -> None:
    later_lines = PaceLines(DECIDER, CREATED_MS + 302 * SECOND, lambda _: False)
    (place,) = later_lines.places([paced("a", waits=3), STARTING[0]], "").values()
    assert place.starting == 0


def test_pods_in_a_frozen_namespace_have_no_place() -> None:
    (place,) = lines(is_frozen=lambda _: True).places([paced("a", waits=1)], "").values()
    assert place.number == 0


def test_each_owner_has_its_own_line() -> None:
    owners = [[owner_of("ReplicaSet", name, name)] for name in ("web", "db")]
    pods = [paced(str(number), "own", waits=1, owners=owner) for number, owner in enumerate(owners)]
    assert [place.number for place in lines().places(pods, "").values()] == [1, 1]


def test_namespaces_to_read() -> None:
    assert lines().scopes([paced("a", waits=1)]) == {""}
    assert lines().scopes([paced("a", "2", waits=1)]) == {"default"}
    assert lines().scopes([paced("a"), paced("b", "x", waits=1)]) == set()
    assert lines().scopes([paced("a", gates=[GATE]), PacedPod.of(held({"delay": "15"}))]) == set()
    assert lines().places([paced("a", waits=1), *STARTING], "default") == {}


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (12, "12th"), (21, "21st")]
)
def test_ordinal(number: int, text: str) -> None:
    assert pace_places.ordinal(number) == text
