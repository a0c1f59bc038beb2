"""What `holdfast explain` says, from facts."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.webhook.cli import explain
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import HELD_LABEL
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.report import explanation, trace
from holdfast.webhook.report.next_steps import PodFacts
from holdfast.webhook.report.pod_status import NodeState, PodWithStatus
from tests.support.builders import (
    CREATED_MS,
    GATE,
    SECOND,
    held,
    make_decider,
    make_pod,
    read_review,
)
from tests.support.fakes import FakeApi
from tests.support.vm_builders import make_launcher, make_vm, make_vmi, owner_of

DECIDER = make_decider()
VMI_OWNER = [owner_of(kubevirt.VMI, "vm", "u")]
PACE = "holdfast.dev/pace"
NOW_MS = CREATED_MS + 5 * SECOND


def explained(
    source: dict[str, Any],
    *,
    now_ms: int = NOW_MS,
    nodes: Sequence[NodeState] = (),
    vm: Sequence[str] = (),
    freeze: Freeze | None = None,
    condition: tuple[str, str] | None = None,
    scheduled: str = "",
    phase: str = "Pending",
    unserved: str = "",
) -> dict[str, str]:
    status: dict[str, Any] = {"phase": phase}
    if condition:
        reason, message = condition
        told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        status["conditions"] = [told]
    if scheduled:
        told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}
        status["conditions"] = [told]
    pod = msgspec.convert({**source, "status": status}, PodWithStatus)
    seen = trace.mutate(DECIDER.profiles, read_review(source), now_ms=now_ms)
    facts = PodFacts(pod, now_ms, seen, nodes, vm, freeze, unserved=unserved)
    sections = explanation.explain(facts, DECIDER)
    assert all(line.isprintable() for section in sections for line in section.lines)
    return {section.title.partition("/")[0]: "\n".join(section.lines) for section in sections}


def state(told: dict[str, str]) -> str:
    return told["Pod default"]


def test_a_pod_that_is_not_sent_to_holdfast() -> None:
    told = explained(make_pod({"delay": "15"}), unserved="its namespace is not selected")
    decision = "pods like this one are not sent to Holdfast: its namespace is not selected"
    assert told["Decision"] == decision
    advice = "to have such pods held, ask an admin of Holdfast: its namespace is not selected"
    assert advice in told["What to do"]
    assert advice not in explained(make_pod(), unserved="why")["What to do"]


def test_a_held_pod() -> None:
    told = explained(held({"delay": "15", "holdfast.dev/held": "delay=15s"}))
    assert state(told) == "is held until 2026-03-01T12:00:15Z (10s left)"
    assert 'delay: "15": 15s from creation' in told["Annotations"]
    assert "created at 2026-03-01T12:00:00Z, 5s ago" in told["Annotations"]
    assert "selected by schedulerName" in told["Decision"]
    assert "delay: adds scheduling gate holdfast.dev/delay (delay=15s)" in told["Decision"]
    assert "placement" not in told["Decision"]
    assert told["Gates"] == "holdfast.dev/delay: Holdfast's, for delay=15s"
    assert told["What to do"] == "wait, or release it now: holdfast release web-0 -n default"
    assert "Nodes" not in told


def test_a_pod_in_a_frozen_namespace() -> None:
    told = explained(held({"delay": "15"}), freeze=Freeze("default", "incident 42"))
    assert state(told) == "is held: namespace default is frozen: incident 42"
    assert told["What to do"].startswith("end the freeze: holdfast thaw -n default\nwait, or rel")

    ends = Freeze("holdfast-system", "x", CREATED_MS + 60 * SECOND, everywhere=True)
    told = explained(held({"delay": "15"}), freeze=ends)
    assert state(told) == "is held until 2026-03-01T12:01:00Z (55s left)"
    assert "all namespaces are frozen until 2026-03-01T12:01:00Z: x" in told["Annotations"]
    assert "holdfast thaw --all" in told["What to do"]

    told = explained(held({"delay": "2m"}), freeze=ends)
    assert "frozen" not in str(told)
    assert "thaw" not in told["What to do"]


def test_a_delay_and_a_pace() -> None:
    told = explained(held({"delay": "15", "holdfast.dev/pace": "2"}, gates=[GATE, PACE]))
    expected = "is held: delay until 2026-03-01T12:00:15Z; pace: at most 2 starting"
    assert state(told) == expected


def test_a_released_pod() -> None:
    marks = {"holdfast.dev/released": "2026-03-01T12:00:15Z"}
    told = explained(make_pod({"delay": "15", **marks}, node="n1"), phase="Running")
    released = "Holdfast released it at 2026-03-01T12:00:15Z"
    assert state(told) == f"is not held: it is on n1, Running; {released}"
    assert "none of them counts any longer: the pod has been released" in told["Annotations"]

    marks["holdfast.dev/approved-by"] = "jane"
    assert "jane" not in state(explained(make_pod(marks)))  # it never asked for an approval
    marks["holdfast.dev/approval"] = "release 2.4"
    assert state(explained(make_pod(marks))).endswith(f"; {released}, approved by jane")


def test_a_delay_that_counts_from_the_owner() -> None:
    told = explained(held({"delay": "15", "holdfast.dev/delay-from": "owner"}))["Annotations"]
    assert 'delay: "15": 15s from the creation of its revision' in told
    assert 'holdfast.dev/delay-from: "owner": the creation that the delay counts from' in told


def test_an_overdue_pod() -> None:
    told = explained(held({"delay": "15"}), now_ms=CREATED_MS + 60 * SECOND)
    assert state(told).endswith("is still held, 45s after its due time 2026-03-01T12:00:15Z")
    assert told["What to do"].startswith("no controller releases it; run holdfast doctor")


def test_nobody_is_alarmed_about_a_release_that_is_under_way() -> None:
    told = explained(held({"delay": "15"}), now_ms=CREATED_MS + 16 * SECOND)
    assert "doctor" not in told["What to do"]


def test_a_time_and_a_share_of_jitter() -> None:
    asked = {"holdfast.dev/not-before": "2026-03-01T13:00:00+01:00", "holdfast.dev/jitter": "10s"}
    told = explained(held(asked))["Annotations"]
    assert "not before 2026-03-01T12:00:00Z" in told
    assert "up to 10s; " in told


def test_what_cannot_be_read_is_named_and_told() -> None:
    told = explained(held({"delay": "so\non", "holdfast.dev/held": "delay=15s"}))
    assert '"so\\non": invalid: invalid value "so\\non"' in told["Annotations"]
    assert "using annotation holdfast.dev/held instead" in told["Annotations"]
    assert "delay: rejected: annotation delay" in told["Decision"]


def test_somebody_elses_gate_outlasts_ours() -> None:
    told = explained(held({"delay": "15"}, gates=[GATE, "example.com/quota"]))
    assert "example.com/quota: another component's; Holdfast never removes it" in told["Gates"]
    cure = "after that, the component that added example.com/quota must remove it"
    assert cure in told["What to do"]


def test_only_somebody_elses_gate_is_left() -> None:
    told = explained(make_pod({"delay": "15"}, gates=["example.com/quota"]))
    assert (
        state(told) == "is not held by Holdfast, but by other scheduling gates: example.com/quota"
    )
    assert told["What to do"] == "the component that added example.com/quota must remove it"


def test_a_gate_of_a_plugin_that_is_not_here() -> None:
    told = explained(held({}, gates=["holdfast.dev/remote"]))
    assert state(told) == "is held until a plugin releases it: holdfast.dev/remote"
    assert "from plugin 'remote', which is not installed here" in told["Gates"]
    assert told["What to do"].startswith("ask the operator of that plugin")


def test_a_pod_that_no_node_takes() -> None:
    message = "0/3 nodes are available: 3 Insufficient cpu."
    told = explained(make_pod({}), condition=("Unschedulable", message))
    assert state(told) == "is not held: the scheduler has not found a node for it yet"
    assert told["Nodes"] == f"scheduler: Unschedulable: {message}"
    assert told["What to do"].startswith("fix what the scheduler reports")


def test_the_gate_itself_is_no_news_of_the_scheduler() -> None:
    told = explained(held({"delay": "15"}), condition=("SchedulingGated", "x"))
    assert "Nodes" not in told


@pytest.mark.parametrize(
    ("annotations", "facts", "early"),
    [
        pytest.param({}, {}, True, id="not due yet"),
        pytest.param({}, {"now_ms": CREATED_MS + 20 * SECOND}, False, id="due"),
        pytest.param({}, {"scheduled": "2026-03-01T12:00:04Z"}, True, id="scheduled early"),
        pytest.param({}, {"scheduled": "2026-03-01T12:00:16Z"}, False, id="scheduled on time"),
        pytest.param({"released": "2026-03-01T12:00:03Z"}, {}, False, id="released by Holdfast"),
        pytest.param({"held": None}, {}, False, id="never held"),
    ],
)
def test_a_gate_that_someone_else_removed_early(
    annotations: dict[str, str | None], facts: dict[str, Any], *, early: bool
) -> None:
    written = {"held": "delay=15s", **annotations}
    ours = {f"holdfast.dev/{key}": text for key, text in written.items() if text}
    told = explained(make_pod({"delay": "15", **ours}), **{"now_ms": NOW_MS, **facts})
    due = "holdfast.dev/delay: removed by someone else before the due time 2026-03-01T12:00:15Z"
    assert told.get("Gates") == (f"{due}; the guard would prevent it" if early else None)


@pytest.mark.parametrize(
    ("annotations", "owners", "told"),
    [
        pytest.param(
            {"window": "Mon 10:00-11:00"},
            [],
            "holdfast.dev/window: removed by someone else before the due time 2026-03-02T10:00:00Z",
            id="a window",
        ),
        pytest.param(
            {"approval": "migration"},
            [],
            "holdfast.dev/approval: removed by someone else before it was due",
            id="an approval",
        ),
        pytest.param({"approval": "x", "allowed": "approval"}, [], "", id="approved"),
        pytest.param({"approval": "x", "held": ""}, [], "", id="never held"),
        pytest.param(
            {"after": "job/x"},
            [],
            "holdfast.dev/after: removed by someone else before it was due",
            id="other objects",
        ),
        pytest.param({"window": "Mon 10:00-11:00"}, VMI_OWNER, "", id="a pod of KubeVirt's"),
    ],
)
def test_a_gate_of_another_plugin_that_someone_else_removed_early(
    annotations: dict[str, str], owners: list[dict[str, Any]], told: str
) -> None:
    labels = {HELD_LABEL: "true"} if annotations.get("held") is None else {}
    ours = {f"holdfast.dev/{key}": text for key, text in annotations.items() if text}
    pod = make_pod({"holdfast.dev/profile": "*", **ours}, labels=labels, owners=owners)
    assert explained(pod).get("Gates", "") == (told and f"{told}; the guard would prevent it")


@pytest.mark.parametrize(
    ("nodes", "cure"),
    [
        pytest.param([NodeState("n", "it is cordoned")], True, id="its only node"),
        pytest.param([NodeState("n", "it is cordoned"), NodeState("m")], False, id="one of two"),
        pytest.param(
            [NodeState("n", "it is cordoned"), NodeState("m", "x", excluded=True)],
            False,
            id="one that the pod excludes",
        ),
        pytest.param(
            [NodeState("n", "it is cordoned"), NodeState("others", "x", unchecked=True)],
            False,
            id="others that were not checked",
        ),
    ],
)
def test_a_pinned_node_that_is_cordoned(nodes: list[NodeState], cure: bool) -> None:
    told = explained(held({"delay": "15"}), nodes=nodes)
    assert "must run on n: it is cordoned" in told["Nodes"]
    assert cure == ("after that, make n" in told["What to do"])


def test_a_pod_that_runs() -> None:
    told = explained(make_pod({"delay": "15"}, node="node-1"), phase="Running")
    assert state(told) == "is not held: it is on node-1, Running"
    assert told["What to do"] == "nothing: Holdfast does not hold it"
    waits = explained(make_pod({"delay": "15"}, node="node-1"))["What to do"]
    assert waits.startswith("Holdfast does not hold it; check its Events")


def test_a_pod_that_ended_before_it_had_a_node() -> None:
    assert state(explained(make_pod({}), phase="Failed")) == "is not held: Failed"


def test_a_pod_that_asks_nothing() -> None:
    assert "no annotation asks for a hold" in explained(make_pod({}))["Annotations"]


def test_a_pod_without_profile() -> None:
    decider = make_decider("profiles: [{schedulerName: batch}]")
    pod = msgspec.convert(make_pod({}), PodWithStatus)
    seen = trace.mutate(decider.profiles, read_review(make_pod({})), now_ms=NOW_MS)
    sections = explanation.explain(PodFacts(pod, NOW_MS, seen), decider)
    (told,) = [section.lines for section in sections if section.title == "Decision"]
    assert told == ['no profile serves schedulerName "default-scheduler"']


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        pytest.param("", "has no recorded node yet", id="by the defaults"),
        pytest.param(
            "profiles: [{pluginConfig: [{name: sticky, args: {nodeAnnotation: other/node}}]}]",
            "returns to node-2",
            id="by the configuration",
        ),
    ],
)
def test_a_vms_record_is_read_where_the_configuration_has_it(yaml: str, told: str) -> None:
    api = FakeApi()
    api.put(kubevirt.vmi_path("default", "vm"), make_vmi())
    api.put(kubevirt.vm_path("default", "vm"), make_vm({"other/node": "node-2"}))
    pod = msgspec.convert(make_launcher(), PodWithStatus)
    assert f"VirtualMachine vm: {told}" in [*explain._vm(api, pod, make_decider(yaml))]


def test_each_gate_has_its_own_hold() -> None:
    asks = {"delay": "15", "holdfast.dev/approval": "2.4", "holdfast.dev/after": "job/x"}
    gates = [GATE, "holdfast.dev/approval", "holdfast.dev/after"]
    assert explained(held(asks, gates=gates))["Gates"].splitlines() == [
        "holdfast.dev/delay: Holdfast's, for delay=15s",
        "holdfast.dev/approval: Holdfast's, for approval=2.4",
        "holdfast.dev/after: Holdfast's, for after=job/x",
    ]


def test_annotations_of_every_hold_and_mistyped_keys() -> None:
    asks = {"window": "Mon 00:00-01:00 Europe/Berlin", "pace": "2", "apprval": "x"}
    keys = {f"holdfast.dev/{key}": text for key, text in asks.items()}
    gates = ["holdfast.dev/window", PACE]
    local, cure = "(Mon 00:00 Europe/Berlin)", "did you mean holdfast.dev/approval?"
    assert explained(held(keys, gates=gates))["Annotations"].splitlines()[1:4] == [
        f'holdfast.dev/window: "{asks["window"]}": opens at 2026-03-01T23:00:00Z {local}',
        'holdfast.dev/pace: "2"',
        f'unknown annotation "holdfast.dev/apprval" has no effect: {cure}',
    ]


APPROVAL = {"delay": "15", "holdfast.dev/approval": "2.4"}


@pytest.mark.parametrize(
    ("marks", "meaning", "advice"),
    [
        pytest.param(
            {},
            "",
            "ask for its approval: holdfast approve web-0 -n default",
            id="waits for an approval",
        ),
        pytest.param(
            {"approved-by": "jane"},
            ": approved by jane",
            "wait, or release it now: holdfast release web-0 -n default",
            id="approved, and waits for its delay",
        ),
        pytest.param(
            {"denied-by": "joe", "denied-reason": "not today"},
            ": denied by joe: not today",
            "it was denied by joe: not today; if it is not needed, delete it: kubectl delete pod "
            "web-0 -n default",
            id="denied",
        ),
    ],
)
def test_approval_and_what_to_do(marks: dict[str, str], meaning: str, advice: str) -> None:
    annotations = {**APPROVAL, **{f"holdfast.dev/{key}": text for key, text in marks.items()}}
    told = explained(held(annotations, gates=[GATE, "holdfast.dev/approval"]))
    assert f'holdfast.dev/approval: "2.4"{meaning}\n' in told["Annotations"] + "\n"
    assert told["What to do"] == advice


@pytest.mark.parametrize(
    ("gates", "labels"),
    [
        pytest.param([], {}, id="created without a hold"),
        pytest.param([GATE], {HELD_LABEL: "true"}, id="held for another"),
    ],
)
def test_key_that_was_added_to_a_pod_that_exists(gates: list[str], labels: dict[str, str]) -> None:
    added = {"holdfast.dev/profile": "*", "holdfast.dev/approval": "x", PACE: "2"}
    told = explained(make_pod(added, gates=gates, labels=labels))
    assert "removed by someone else" not in told.get("Gates", "")
    for key, value in (("holdfast.dev/approval", "x"), (PACE, "2")):
        effect = f"no effect: gate {key}, which is added at creation, is missing"
        assert f'{key}: "{value}": {effect}' in told["Annotations"]
