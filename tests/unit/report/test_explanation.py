"""What `holdfast explain` reports, given the facts about a pod."""

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
from tests.unit.report.explained import explained

VMI_OWNER = [owner_of(kubevirt.VMI, "vm", "u")]
PACE = "holdfast.dev/pace"


def state(report: dict[str, str]) -> str:
    return report["Pod default"]


def test_pod_not_sent_to_holdfast() -> None:
    report = explained(make_pod({"delay": "15"}), unserved="its namespace is not selected")
    decision = "pods like this one are not sent to Holdfast: its namespace is not selected"
    assert report["Decision"] == decision
    advice = "to have such pods held, ask an admin of Holdfast: its namespace is not selected"
    assert advice in report["What to do"]
    assert advice not in explained(make_pod(), unserved="why")["What to do"]


def test_held_pod() -> None:
    report = explained(held({"delay": "15", "holdfast.dev/held": "delay=15s"}))
    assert state(report) == "is held until 2026-03-01T12:00:15Z (10s left)"
    assert 'delay: "15": 15s from creation' in report["Annotations"]
    assert "created at 2026-03-01T12:00:00Z, 5s ago" in report["Annotations"]
    assert "selected by schedulerName" in report["Decision"]
    assert "delay: adds scheduling gate holdfast.dev/delay (delay=15s)" in report["Decision"]
    assert "placement" not in report["Decision"]
    assert report["Gates"] == "holdfast.dev/delay: Holdfast's, for delay=15s"
    assert report["What to do"] == "wait, or release it now: holdfast release web-0 -n default"
    assert "Nodes" not in report


def test_pod_in_a_frozen_namespace() -> None:
    report = explained(held({"delay": "15"}), freeze=Freeze("default", "incident 42"))
    assert state(report) == "is held: namespace default is frozen: incident 42"
    assert report["What to do"].startswith("end the freeze: holdfast thaw -n default\nwait, or rel")

    freeze = Freeze("holdfast-system", "x", CREATED_MS + 60 * SECOND, everywhere=True)
    report = explained(held({"delay": "15"}), freeze=freeze)
    assert state(report) == "is held until 2026-03-01T12:01:00Z (55s left)"
    assert "all namespaces are frozen until 2026-03-01T12:01:00Z: x" in report["Annotations"]
    assert "holdfast thaw --all" in report["What to do"]

    report = explained(held({"delay": "2m"}), freeze=freeze)
    assert "frozen" not in str(report)
    assert "thaw" not in report["What to do"]


def test_pod_with_delay_and_pace() -> None:
    report = explained(held({"delay": "15", "holdfast.dev/pace": "2"}, gates=[GATE, PACE]))
    expected = "is held: delay until 2026-03-01T12:00:15Z; pace: at most 2 starting"
    assert state(report) == expected


def test_released_pod() -> None:
    annotations = {"holdfast.dev/released": "2026-03-01T12:00:15Z"}
    report = explained(make_pod({"delay": "15", **annotations}, node="n1"), phase="Running")
    released = "Holdfast released it at 2026-03-01T12:00:15Z"
    assert state(report) == f"is not held: it is on n1, Running; {released}"
    assert "none of them counts any longer: the pod has been released" in report["Annotations"]

    annotations["holdfast.dev/approved-by"] = "jane"
    assert "jane" not in state(explained(make_pod(annotations)))  # it never requested an approval
    annotations["holdfast.dev/approval"] = "release 2.4"
    assert state(explained(make_pod(annotations))).endswith(f"; {released}, approved by jane")


def test_overdue_pod() -> None:
    report = explained(held({"delay": "15"}), now_ms=CREATED_MS + 60 * SECOND)
    assert state(report).endswith("is still held, 45s after its due time 2026-03-01T12:00:15Z")
    assert report["What to do"].startswith("no controller releases it; run holdfast doctor")
    report = explained(held({"delay": "15"}), now_ms=CREATED_MS + 16 * SECOND)
    assert "doctor" not in report["What to do"]  # the release may be in flight


def test_meaning_of_delay_from_not_before_and_jitter() -> None:
    requested = {
        "delay": "15",
        "holdfast.dev/delay-from": "owner",
        "holdfast.dev/not-before": "2026-03-01T13:00:00+01:00",
        "holdfast.dev/jitter": "10s",
    }
    report = explained(held(requested))["Annotations"]
    assert 'delay: "15": 15s from the creation of its revision' in report
    assert 'holdfast.dev/delay-from: "owner": the creation that the delay counts from' in report
    assert "not before 2026-03-01T12:00:00Z" in report
    assert "up to 10s; " in report


def test_invalid_annotation_is_quoted_and_explained() -> None:
    report = explained(held({"delay": "so\non", "holdfast.dev/held": "delay=15s"}))
    assert '"so\\non": invalid: invalid value "so\\non"' in report["Annotations"]
    assert "using annotation holdfast.dev/held instead" in report["Annotations"]
    assert "delay: rejected: annotation delay" in report["Decision"]


def test_foreign_gate_remains_after_release() -> None:
    report = explained(held({"delay": "15"}, gates=[GATE, "example.com/quota"]))
    assert "example.com/quota: another component's; Holdfast never removes it" in report["Gates"]
    cure = "after that, the component that added example.com/quota must remove it"
    assert cure in report["What to do"]


def test_pod_with_only_a_foreign_gate() -> None:
    report = explained(make_pod({"delay": "15"}, gates=["example.com/quota"]))
    other_gates = "other scheduling gates: example.com/quota"
    assert state(report) == f"is not held by Holdfast, but by {other_gates}"
    assert report["What to do"] == "the component that added example.com/quota must remove it"


def test_gate_of_a_plugin_that_is_not_installed() -> None:
    report = explained(held({}, gates=["holdfast.dev/remote"]))
    assert state(report) == "is held until a plugin releases it: holdfast.dev/remote"
    assert "from plugin 'remote', which is not installed here" in report["Gates"]
    assert report["What to do"].startswith("ask the operator of that plugin")


def test_unschedulable_pod() -> None:
    message = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"status": "False", "reason": "Unschedulable", "message": message}
    report = explained(make_pod({}), scheduled=condition)
    assert state(report) == "is not held: the scheduler has not found a node for it yet"
    assert report["Nodes"] == f"scheduler: Unschedulable: {message}"
    assert report["What to do"].startswith("fix what the scheduler reports")
    condition["reason"] = "SchedulingGated"
    assert "Nodes" not in explained(held({"delay": "15"}), scheduled=condition)


def scheduled_at(second: int) -> dict[str, str]:
    return {"status": "True", "lastTransitionTime": f"2026-03-01T12:00:{second:02}Z"}


@pytest.mark.parametrize(
    ("annotations", "facts", "early"),
    [
        pytest.param({}, {}, True, id="not due yet"),
        pytest.param({}, {"now_ms": CREATED_MS + 20 * SECOND}, False, id="due"),
        pytest.param({}, {"scheduled": scheduled_at(4)}, True, id="scheduled early"),
        pytest.param({}, {"scheduled": scheduled_at(16)}, False, id="scheduled on time"),
        pytest.param({"released": "2026-03-01T12:00:03Z"}, {}, False, id="released by Holdfast"),
        pytest.param({"held": None}, {}, False, id="never held"),
    ],
)
def test_delay_gate_removed_early_by_another_client(
    annotations: dict[str, str | None], facts: dict[str, Any], *, early: bool
) -> None:
    values = {"held": "delay=15s", **annotations}
    prefixed = {f"holdfast.dev/{key}": value for key, value in values.items() if value}
    report = explained(make_pod({"delay": "15", **prefixed}), **facts)
    due = "holdfast.dev/delay: removed by someone else before the due time 2026-03-01T12:00:15Z"
    assert report.get("Gates") == (f"{due}; the guard would prevent it" if early else None)


MONDAY = {"window": "Mon 10:00-11:00"}


@pytest.mark.parametrize(
    ("annotations", "owners", "when"),
    [
        pytest.param(MONDAY, [], "the due time 2026-03-02T10:00:00Z", id="a window"),
        pytest.param({"approval": "migration"}, [], "it was due", id="an approval"),
        pytest.param({"approval": "x", "allowed": "approval"}, [], "", id="approved"),
        pytest.param({"approval": "x", "held": ""}, [], "", id="never held"),
        pytest.param({"after": "job/x"}, [], "it was due", id="after"),
        pytest.param(MONDAY, VMI_OWNER, "", id="KubeVirt pod"),
    ],
)
def test_other_gates_removed_early_by_another_client(
    annotations: dict[str, str], owners: list[dict[str, Any]], when: str
) -> None:
    labels = {HELD_LABEL: "true"} if annotations.get("held") is None else {}
    prefixed = {f"holdfast.dev/{key}": value for key, value in annotations.items() if value}
    pod = make_pod({"holdfast.dev/profile": "*", **prefixed}, labels=labels, owners=owners)
    removal = f"{next(iter(prefixed))}: removed by someone else before {when}"
    assert explained(pod).get("Gates", "") == (when and f"{removal}; the guard would prevent it")


CORDONED = NodeState("n", "it is cordoned")


@pytest.mark.parametrize(
    ("nodes", "cure"),
    [
        pytest.param([CORDONED], True, id="its only node"),
        pytest.param([CORDONED, NodeState("m")], False, id="one of two"),
        pytest.param([CORDONED, NodeState("m", "x", excluded=True)], False, id="one excluded"),
        pytest.param([CORDONED, NodeState("m", "x", unchecked=True)], False, id="one unchecked"),
    ],
)
def test_cordoned_node_of_a_pinned_pod(nodes: list[NodeState], cure: bool) -> None:
    report = explained(held({"delay": "15"}), nodes=nodes)
    assert "must run on n: it is cordoned" in report["Nodes"]
    assert cure == ("after that, make n" in report["What to do"])


def test_running_pod() -> None:
    report = explained(make_pod({"delay": "15"}, node="node-1"), phase="Running")
    assert state(report) == "is not held: it is on node-1, Running"
    assert report["What to do"] == "nothing: Holdfast does not hold it"
    waits = explained(make_pod({"delay": "15"}, node="node-1"))["What to do"]
    assert waits.startswith("Holdfast does not hold it; check its Events")


def test_pod_without_hold_annotations_that_failed_before_it_was_scheduled() -> None:
    report = explained(make_pod({}), phase="Failed")
    assert state(report) == "is not held: Failed"
    assert "no annotation asks for a hold" in report["Annotations"]


def test_pod_without_a_profile() -> None:
    decider = make_decider("profiles: [{schedulerName: batch}]")
    pod = msgspec.convert(make_pod({}), PodWithStatus)
    result = trace.mutate(decider.profiles, read_review(make_pod({})), now_ms=CREATED_MS)
    sections = explanation.explain(PodFacts(pod, CREATED_MS, result), decider)
    (lines,) = [section.lines for section in sections if section.title == "Decision"]
    assert lines == ['no profile serves schedulerName "default-scheduler"']


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        pytest.param("", "has no recorded node yet", id="defaults"),
        pytest.param(
            "profiles: [{pluginConfig: [{name: sticky, args: {nodeAnnotation: other/node}}]}]",
            "returns to node-2",
            id="configured annotation",
        ),
    ],
)
def test_vm_record_is_read_from_the_configured_annotation(yaml: str, expected: str) -> None:
    api = FakeApi()
    api.put(kubevirt.vmi_path("default", "vm"), make_vmi())
    api.put(kubevirt.vm_path("default", "vm"), make_vm({"other/node": "node-2"}))
    pod = msgspec.convert(make_launcher(), PodWithStatus)
    assert f"VirtualMachine vm: {expected}" in [*explain._vm(api, pod, make_decider(yaml))]


def test_each_gate_names_its_hold() -> None:
    requested = {"delay": "15", "holdfast.dev/approval": "2.4", "holdfast.dev/after": "job/x"}
    gates = [GATE, "holdfast.dev/approval", "holdfast.dev/after"]
    assert explained(held(requested, gates=gates))["Gates"].splitlines() == [
        "holdfast.dev/delay: Holdfast's, for delay=15s",
        "holdfast.dev/approval: Holdfast's, for approval=2.4",
        "holdfast.dev/after: Holdfast's, for after=job/x",
    ]


def test_annotations_of_every_hold_and_mistyped_keys() -> None:
    requested = {"window": "Mon 00:00-01:00 Europe/Berlin", "pace": "2", "apprval": "x"}
    keys = {f"holdfast.dev/{key}": value for key, value in requested.items()}
    gates = ["holdfast.dev/window", PACE]
    local, cure = "(Mon 00:00 Europe/Berlin)", "did you mean holdfast.dev/approval?"
    assert explained(held(keys, gates=gates))["Annotations"].splitlines()[1:4] == [
        f'holdfast.dev/window: "{requested["window"]}": opens at 2026-03-01T23:00:00Z {local}',
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
def test_approval_state_and_advice(marks: dict[str, str], meaning: str, advice: str) -> None:
    annotations = {**APPROVAL, **{f"holdfast.dev/{key}": value for key, value in marks.items()}}
    report = explained(held(annotations, gates=[GATE, "holdfast.dev/approval"]))
    assert f'holdfast.dev/approval: "2.4"{meaning}\n' in report["Annotations"] + "\n"
    assert report["What to do"] == advice


@pytest.mark.parametrize(
    ("gates", "labels"),
    [
        pytest.param([], {}, id="created without a hold"),
        pytest.param([GATE], {HELD_LABEL: "true"}, id="held for another reason"),
    ],
)
def test_annotation_added_after_creation_has_no_effect(
    gates: list[str], labels: dict[str, str]
) -> None:
    annotations = {"holdfast.dev/profile": "*", "holdfast.dev/approval": "x", PACE: "2"}
    report = explained(make_pod(annotations, gates=gates, labels=labels))
    assert "removed by someone else" not in report.get("Gates", "")
    for key, value in (("holdfast.dev/approval", "x"), (PACE, "2")):
        effect = f"no effect: gate {key}, which is added at creation, is missing"
        assert f'{key}: "{value}": {effect}' in report["Annotations"]
