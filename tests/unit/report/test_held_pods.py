from dataclasses import replace
from typing import Any

import pytest

from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.report import held_pods
from tests.support.builders import CREATED_MS, GATE, HOUR, SECOND, held, make_decider
from tests.support.scripted import Holding, decider_of, never
from tests.support.vm_builders import owner_of

HINT = HELD_ANNOTATION
APPROVAL = "holdfast.dev/approval"


def described(annotations: dict[str, str] | None = None, **fields: Any) -> held_pods.HeldPodSummary:
    return held_pods.described(Pod.of(held(annotations, **fields)), make_decider())


@pytest.mark.parametrize(
    ("annotations", "gates", "expected"),
    [
        pytest.param({"delay": "15"}, [GATE], "delay=15s", id="configured key"),
        pytest.param({"holdfast.dev/delay": "15"}, [GATE], "delay=15s", id="default key"),
        pytest.param(
            {"delay": "20", HINT: "delay=15s"}, [GATE], "delay=20s", id="changed after admission"
        ),
        pytest.param(
            {"wait": "9s", HINT: "wait=9s"}, [GATE], "wait=9s", id="key known only from the hint"
        ),
        pytest.param(
            {"delay": "x", HINT: "delay=15s"}, [GATE], '"delay=15s"', id="hint for an invalid value"
        ),
        pytest.param({"delay": "x"}, [GATE], "an invalid request", id="invalid value"),
        pytest.param({}, [GATE], "nothing", id="no request"),
        pytest.param(
            {"delay": "15"}, [GATE, "holdfast.dev/remote"], "delay=15s, remote", id="two gates"
        ),
        pytest.param({}, ["a.b/c", "holdfast.dev/remote"], "remote", id="gate of a plugin"),
    ],
)
def test_held_by(annotations: dict[str, str], gates: list[str], expected: str) -> None:
    assert described(annotations, gates=gates).held_by == expected


def test_due_time_and_time_left() -> None:
    held_pod = described({"delay": "1h"})
    assert held_pod.due_ms == CREATED_MS + HOUR
    assert held_pods.left(held_pod, CREATED_MS + SECOND) == "59m59s"
    assert held_pods.left(held_pod, CREATED_MS + HOUR + 90 * SECOND) == "overdue 1m30s"
    assert not held_pod.is_overdue(CREATED_MS + HOUR - 1)
    assert held_pod.is_overdue(CREATED_MS + HOUR)


def test_gate_of_a_plugin_that_is_not_installed_has_no_due_time() -> None:
    held_pod = described({"delay": "15"}, gates=[GATE, "holdfast.dev/remote"])
    assert held_pod.due_ms is None
    assert held_pods.left(held_pod, CREATED_MS) == "unknown"
    assert held_pod.remark == ""


def test_installed_plugin_may_have_no_due_time() -> None:
    decider = decider_of(Holding(never))
    pod = Pod.of(held({}, gates=[Holding.gate]))
    assert held_pods.unknown_gates(pod, decider) == []
    assert held_pods.described(pod, decider).due_ms is None


@pytest.mark.parametrize(
    ("requested", "waits"),
    [
        ({"holdfast.dev/pace": "2"}, "pace: at most 2 starting"),
        ({"holdfast.dev/after": "job/none"}, "after: waits for (state unknown) job/none:Complete"),
        ({"holdfast.dev/approval": "2.4"}, "approval: 2.4"),
    ],
    ids=["pace", "after", "approval"],
)
def test_earliest_due_time_of_a_pod_with_delay_and_event(
    requested: dict[str, str], waits: str
) -> None:
    held_pod = described({"delay": "15", **requested}, gates=[GATE, *requested])
    now_ms = CREATED_MS + 2 * SECOND
    assert held_pods.left(held_pod, now_ms) == ">=13s"
    row = held_pods.row(held_pod, now_ms, wide=True)
    assert row[-4] == ">=2026-03-01T12:00:15Z"
    assert row[-1] == f"delay until 2026-03-01T12:00:15Z; {waits}"
    later_row = held_pods.row(held_pod, now_ms + HOUR, wide=True)
    assert (later_row[1], later_row[-4], later_row[-1]) == ("unknown", "-", waits)


def test_unreadable_owner_gives_the_latest_due_time() -> None:
    owner = owner_of("ReplicaSet", "web", "u", api_version="apps/v1")
    held_pod = described({"delay": "15", "holdfast.dev/delay-from": "owner"}, owners=[owner])
    assert held_pods.left(held_pod, CREATED_MS) == "<=15s"
    assert held_pod.remark.startswith("delay: at the latest: the delay counts from ReplicaSet web")


def test_pods_are_sorted_by_due_time_with_unknown_last() -> None:
    pods = [
        held({"delay": "2h"}, name="late"),
        held({}, name="unknown", gates=["holdfast.dev/remote"]),
        held({"delay": "1h"}, name="early"),
        held({"delay": "1h"}, name="not-ours", gates=["example.com/gate"]),
    ]
    result = held_pods.held_pods(map(Pod.of, pods), make_decider())
    assert [held_pod.name for held_pod in result] == ["early", "late", "unknown"]


def test_row_and_document() -> None:
    other = owner_of("ReplicaSet", "x", "u", controller=False)
    owners = [other, owner_of("ReplicaSet", "web", "u")]
    held_pod = described({"delay": "15", "holdfast.dev/profile": "*"}, owners=owners)
    now_ms = CREATED_MS + 5 * SECOND
    assert held_pods.row(held_pod, now_ms) == ["web-0", "10s", "5s", "ReplicaSet/web", "delay=15s"]
    row = held_pods.row(held_pod, now_ms, wide=True)
    assert row[-4:] == ["2026-03-01T12:00:15Z", GATE, "*", "-"]
    created = "2026-03-01T12:00:00Z"
    assert held_pods.document(held_pod, now_ms) == {
        "metadata": {"namespace": "default", "name": "web-0", "creationTimestamp": created},
        "heldBy": "delay=15s",
        "gates": [GATE],
        "due": "2026-03-01T12:00:15Z",
        "secondsLeft": 10.0,
        "earliestDue": "2026-03-01T12:00:15Z",
        "leastSecondsLeft": 10.0,
        "placeInLine": None,
        "owner": "ReplicaSet/web",
        "profile": "*",
        "remark": None,
    }


def test_ended_hold() -> None:
    held_pod = replace(described({"delay": "15"}), ended="released")
    assert held_pods.row(held_pod, CREATED_MS + HOUR)[1] == "released"
    assert held_pods.document(held_pod, CREATED_MS)["ended"] == "released"
    assert not held_pod.is_overdue(CREATED_MS + HOUR)


def test_pod_in_a_frozen_namespace_is_due_when_the_freeze_ends() -> None:
    pod, other_pod = (Pod.of(held({"delay": "15"}, namespace=name)) for name in ("shop", "other"))
    end_ms = CREATED_MS + HOUR
    freezes = {"shop": Freeze("shop", "incident 42", end_ms)}
    (first, last) = held_pods.held_pods([pod, other_pod], make_decider(), freezes.get)
    assert (first.namespace, first.held_by) == ("other", "delay=15s")
    assert (last.due_ms, last.held_by) == (end_ms, "delay=15s, freeze=incident 42")
    assert last.remark == "namespace shop is frozen until 2026-03-01T13:00:00Z: incident 42"
    assert not last.is_overdue(end_ms - 1)


def test_freeze_that_ends_before_the_due_time_is_not_shown() -> None:
    freeze = Freeze("default", "x", CREATED_MS + 1_000)
    held_pod = held_pods.described(Pod.of(held({"delay": "15"})), make_decider(), freeze)
    assert (held_pod.held_by, held_pod.due_ms) == ("delay=15s", CREATED_MS + 15_000)


def test_freeze_is_a_lower_bound_for_an_unknown_due_time() -> None:
    pod = Pod.of(held({"delay": "15", APPROVAL: "2.4"}, gates=[GATE, APPROVAL]))
    remark = "namespace default is frozen until 2026-03-01T13:00:00Z: x"
    held_pod = held_pods.described(pod, make_decider(), Freeze("default", "x", CREATED_MS + HOUR))
    assert (held_pod.held_by, held_pod.due_ms) == ("delay=15s, approval=2.4, freeze=x", None)
    assert held_pods.left(held_pod, CREATED_MS) == ">=1h"
    assert held_pod.remark_at(CREATED_MS) == f"{remark}; approval: 2.4"
    brief_freeze = Freeze("default", "x", CREATED_MS + 5_000)
    held_pod = held_pods.described(pod, make_decider(), brief_freeze)
    assert held_pods.left(held_pod, CREATED_MS) == ">=15s"


def test_lower_bound_determines_order_and_document_fields() -> None:
    requested = {"holdfast.dev/approval": "2.4"}
    gates = [GATE, *requested]
    bounded = Pod.of(held({"delay": "48s", **requested}, name="bounded", gates=gates))
    later = Pod.of(held({"delay": "61h"}, name="later"))
    first, last = held_pods.held_pods([later, bounded], make_decider())
    assert (first.name, last.name) == ("bounded", "later")
    fields = held_pods.document(first, CREATED_MS)
    assert (fields["due"], fields["secondsLeft"]) == (None, None)
    assert (fields["earliestDue"], fields["leastSecondsLeft"]) == ("2026-03-01T12:00:48Z", 48.0)


def test_long_text_is_truncated_only_in_the_narrow_table() -> None:
    reason = "schema change of release 2.4, as agreed with the team"
    held_pod = described({"delay": "15", "holdfast.dev/approval": reason}, gates=[GATE, APPROVAL])
    row = held_pods.row(held_pod, CREATED_MS)
    assert row[4] == "delay=15s, approval=schema change of release 2.4,…"
    row = held_pods.row(held_pod, CREATED_MS, wide=True)
    assert row[4] == f"delay=15s, approval={reason}"
