"""What `holdfast explain` says, from facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.objects import ObjectApi
from tests.unit.builders import CREATED_MS, GATE, SECOND, held, make_pipeline, make_pod, read_review
from tests.unit.vm_builders import make_launcher, make_vm, make_vmi
from webhook import explanation, trace, vms
from webhook.commands import explain
from webhook.explanation import Facts
from webhook.inspection import NodeState, PodWithStatus

PIPELINE = make_pipeline()
NOW_MS = CREATED_MS + 5 * SECOND


def explained(
    source: dict[str, Any],
    *,
    now_ms: int = NOW_MS,
    nodes: Sequence[NodeState] = (),
    vm: Sequence[str] = (),
    condition: tuple[str, str] | None = None,
    phase: str = "Pending",
) -> dict[str, str]:
    status: dict[str, Any] = {"phase": phase}
    if condition:
        reason, message = condition
        told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        status["conditions"] = [told]
    pod = msgspec.convert({**source, "status": status}, PodWithStatus)
    seen = trace.mutate(PIPELINE, read_review(source), now_ms=now_ms)
    facts = Facts(pod, now_ms, seen, nodes, vm)
    sections = explanation.explain(facts, PIPELINE)
    assert all(line.isprintable() for section in sections for line in section.lines)
    return {section.title.partition("/")[0]: "\n".join(section.lines) for section in sections}


def state(told: dict[str, str]) -> str:
    return told["Pod default"]


def test_a_held_pod() -> None:
    told = explained(held({"delay": "15", "holdfast.dev/held": "delay=15s"}))
    assert state(told) == "is held until 2026-03-01T12:00:15Z: 10s more"
    assert 'delay: "15": 15s from its creation' in told["What it asks"]
    assert "created at 2026-03-01T12:00:00Z, 5s ago" in told["What it asks"]
    assert "by its schedulerName" in told["Who decided"]
    assert "delay: holds it by the gate holdfast.dev/delay; notes delay=15s" in told["Who decided"]
    assert "placement: does not concern it" in told["Who decided"]
    assert told["Gates"] == "holdfast.dev/delay: Holdfast's, for delay=15s"
    assert told["What to do"] == "wait, or release it now: holdfast release web-0 -n default"
    assert "Nodes" not in told


def test_an_overdue_pod() -> None:
    told = explained(held({"delay": "15"}), now_ms=CREATED_MS + 60 * SECOND)
    assert state(told).endswith("though its time came at 2026-03-01T12:00:15Z, 45s ago")
    assert told["What to do"].startswith("no controller releases it: holdfast doctor says why")


def test_nobody_is_alarmed_about_a_release_that_is_under_way() -> None:
    told = explained(held({"delay": "15"}), now_ms=CREATED_MS + 16 * SECOND)
    assert "doctor" not in told["What to do"]


def test_a_time_and_a_share_of_jitter() -> None:
    asked = {"holdfast.dev/not-before": "2026-03-01T13:00:00+01:00", "holdfast.dev/jitter": "10s"}
    told = explained(held(asked))["What it asks"]
    assert "not before 2026-03-01T12:00:00Z" in told
    assert "a share of 10s; this pod's is " in told


def test_what_cannot_be_read_is_named_and_told() -> None:
    told = explained(held({"delay": "so\non", "holdfast.dev/held": "delay=15s"}))
    assert '"so\\non": cannot be followed: "so\\non" is no duration' in told["What it asks"]
    assert "annotation holdfast.dev/held decides instead" in told["What it asks"]
    assert "delay: refuses it: annotation delay" in told["Who decided"]


def test_somebody_elses_gate_outlasts_ours() -> None:
    told = explained(held({"delay": "15"}, gates=[GATE, "example.com/quota"]))
    assert "example.com/quota: somebody else's; Holdfast never takes it off" in told["Gates"]
    cure = "it waits on after that: whoever added example.com/quota has to take it off"
    assert cure in told["What to do"]


def test_only_somebody_elses_gate_is_left() -> None:
    told = explained(make_pod({"delay": "15"}, gates=["example.com/quota"]))
    assert state(told) == "is not held by Holdfast; others' gates hold it: example.com/quota"
    assert told["What to do"] == "whoever added example.com/quota has to take it off"


def test_a_gate_of_a_plugin_that_is_not_here() -> None:
    told = explained(held({}, gates=["holdfast.dev/approval"]))
    assert state(told) == "is held until a plugin lets it go: holdfast.dev/approval"
    assert "its plugin 'approval', which is not installed here" in told["Gates"]
    assert told["What to do"].startswith("ask whoever runs that plugin")


def test_a_pod_that_no_node_takes() -> None:
    message = "0/3 nodes are available: 3 Insufficient cpu."
    told = explained(make_pod({}), condition=("Unschedulable", message))
    assert state(told) == "is not held: the scheduler has not found a node for it yet"
    assert told["Nodes"] == f"the scheduler says: Unschedulable: {message}"
    assert told["What to do"].startswith("mend what the scheduler says")


def test_the_gate_itself_is_no_news_of_the_scheduler() -> None:
    told = explained(held({"delay": "15"}), condition=("SchedulingGated", "x"))
    assert "Nodes" not in told


@pytest.mark.parametrize(
    ("nodes", "cure"),
    [
        pytest.param([NodeState("n", "it is cordoned")], True, id="its only node"),
        pytest.param([NodeState("n", "it is cordoned"), NodeState("m")], False, id="one of two"),
    ],
)
def test_a_pinned_node_that_is_cordoned(nodes: list[NodeState], cure: bool) -> None:
    told = explained(held({"delay": "15"}), nodes=nodes)
    assert "it has to run on n: it is cordoned" in told["Nodes"]
    assert cure == ("it waits on after that: make n take pods again" in told["What to do"])


def test_a_pod_that_runs() -> None:
    told = explained(make_pod({"delay": "15"}, node="node-1"), phase="Running")
    assert state(told) == "is not held: it is on node-1, Running"
    assert told["What to do"].startswith("nothing of Holdfast's")


def test_a_pod_that_ended_before_it_had_a_node() -> None:
    assert state(explained(make_pod({}), phase="Failed")) == "is not held: Failed"


def test_a_pod_of_a_vm() -> None:
    assert explained(make_pod({}), vm=["comes back to node-1"])["VM"] == "comes back to node-1"


def test_a_pod_that_asks_nothing() -> None:
    assert "no annotation asks for a delay" in explained(make_pod({}))["What it asks"]


def test_a_pod_without_profile() -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: batch}]")
    pod = msgspec.convert(make_pod({}), PodWithStatus)
    seen = trace.mutate(pipeline, read_review(make_pod({})), now_ms=NOW_MS)
    sections = explanation.explain(Facts(pod, NOW_MS, seen), pipeline)
    (told,) = [section.lines for section in sections if section.title == "Who decided"]
    assert told == ['no profile serves schedulerName "default-scheduler"']


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        pytest.param("", "has no node recorded yet", id="by the defaults"),
        pytest.param(
            "profiles: [{pluginConfig: [{name: sticky, args: {nodeAnnotation: other/node}}]}]",
            "comes back to node-2",
            id="by the configuration",
        ),
    ],
)
def test_a_vms_record_is_read_where_the_configuration_has_it(yaml: str, told: str) -> None:
    api = ObjectApi()
    api.put(vms.vmi_path("default", "vm"), make_vmi())
    api.put(vms.vm_path("default", "vm"), make_vm({"other/node": "node-2"}))
    pod = msgspec.convert(make_launcher(), PodWithStatus)
    assert f"VirtualMachine vm: {told}" in [*explain._vm(api, pod, make_pipeline(yaml))]
