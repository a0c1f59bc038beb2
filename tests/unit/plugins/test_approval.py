"""The approval plugin: which pods are held, and how approvals and denials count."""

from typing import Any

import pytest

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.plugin import (
    Allow,
    Args,
    Code,
    Permit,
    Reject,
    Result,
    Wait,
    success,
)
from holdfast.webhook.model import reasons
from holdfast.webhook.model.annotations import DELAY_GATE, NEVER_MS
from holdfast.webhook.model.approvals import APPROVED_BY, DENIED_BY, DENIED_REASON, GATE, KEY, MARKS
from holdfast.webhook.model.edits import AddGate, RemoveAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.approval import Approval
from holdfast.webhook.report import held_pods
from tests.support import builders
from tests.support.builders import CREATED_MS, make_decider, make_pod, read_review
from tests.support.scripted import pipeline_of

GRAMMAR = [
    ("release 2.4", "release 2.4"),
    ("  release 2.4 ", "release 2.4"),
    ("Änderung №7 - geprüft?", "Änderung №7 - geprüft?"),
    ("x" * 200, "x" * 200),
    ("", None),
    ("   ", None),
    ("x" * 201, None),
    ("two\nlines", None),
    ("\x1b[31mred", None),
    ("\u202egnp", None),
    ("nul\x00", None),
    ("x" * 1_000_000, None),
]
HOSTILE = ("\x1b[31m" + "x" * 1_000_000, "\n", "\u202egnp")

plugin = Approval(Args())


@pytest.mark.parametrize(("text", "expected"), GRAMMAR, ids=lambda value: ascii(value)[:20])
def test_grammar(text: str, expected: str | None) -> None:
    if expected is not None:
        assert reasons.parse(text) == expected
        return
    with pytest.raises(InvalidValueError) as caught:
        reasons.parse(text)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def call(point: str, annotations: dict[str, str], operation: str = "CREATE", **pod: Any) -> Result:
    return builders.call(plugin, point, make_pod(annotations, **pod), operation=operation)


def test_pod_gets_the_gate_and_loses_copied_approvals() -> None:
    annotations = {KEY: "why", **dict.fromkeys(MARKS, "ann")}
    removals = [*map(RemoveAnnotation, MARKS)]
    for node, gates in (("", [AddGate(GATE)]), ("n1", [])):
        review = read_review(make_pod(annotations, node=node))
        edits = pipeline_of(plugin).mutate(review, now_ms=CREATED_MS).edits
        assert [
            edit for edit in edits if isinstance(edit, AddGate | RemoveAnnotation)
        ] == removals + gates


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_invalid_reason_is_rejected(point: str) -> None:
    result = call(point, {KEY: ""}, gates=[GATE])
    assert result.code is Code.REJECT
    problem = 'invalid value "": it is empty: write a reason'
    assert result.reason == f"annotation holdfast.dev/approval: {problem}"


def test_new_pod_needs_the_gate_and_may_not_be_approved() -> None:
    assert call("validate", {KEY: "why"}, gates=[GATE]) == success()
    assert "is missing although" in call("validate", {KEY: "why"}).reason
    annotations = {KEY: "why", APPROVED_BY: "ann"}
    assert "a new pod cannot have it" in call("validate", annotations, gates=[GATE]).reason
    assert call("validate", annotations, "UPDATE", gates=[GATE]) == success()


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, Wait(reason="why")),
        ({APPROVED_BY: "ann"}, Allow()),
        ({APPROVED_BY: ""}, Wait(reason="why")),
        ({DENIED_BY: "ann"}, Reject("denied by ann")),
        ({DENIED_BY: "ann", DENIED_REASON: "no"}, Reject("denied by ann: no")),
        ({DENIED_BY: "ann", APPROVED_BY: "bob"}, Reject("denied by ann")),
        ({DENIED_REASON: "no"}, Wait(reason="why")),
    ],
    ids=["pending", "approved", "empty approver", "denied", "with a reason", "both", "reason only"],
)
def test_permit(marks: dict[str, str], expected: Permit) -> None:
    assert plugin.permit(Pod.of(make_pod({KEY: "why", **marks})), 0) == expected


COUNTS = "also counts while pods are held: increase or remove it"


@pytest.mark.parametrize(
    ("kind", "spec", "warning"),
    [
        ("Job", {"activeDeadlineSeconds": 20}, f"spec.activeDeadlineSeconds=20 {COUNTS}"),
        ("Job", {}, ""),
        ("Deployment", {"progressDeadlineSeconds": 600}, ""),
        ("Deployment", {"progressDeadlineSeconds": 9}, f"spec.progressDeadlineSeconds=9 {COUNTS}"),
        (
            "Job",
            {"concurrencyPolicy": "Forbid"},
            "spec.concurrencyPolicy: Forbid: while the pods of a run are held, runs are skipped",
        ),
    ],
)
def test_workload_disrupted_by_a_long_hold_gets_a_warning(
    kind: str, spec: Any, warning: str
) -> None:
    workload = {"spec": {"template": {"metadata": {"annotations": {KEY: "why"}}}, **spec}}
    group = {"group": "apps" if kind == "Deployment" else "batch", "version": "v1", "kind": kind}
    result = builders.call(plugin, "validate", workload, kind=group)
    assert list(result.warnings) == ([f"holdfast: {warning}"] if warning else [])


def test_removed_annotation_is_reported_and_allows_the_pod() -> None:
    result = plugin.permit(Pod.of(make_pod({})), 0)

    assert isinstance(result, Allow)
    assert "was removed" in result.problem


@pytest.mark.parametrize("text", HOSTILE, ids=["long", "newline", "bidi"])
@pytest.mark.parametrize("key", [KEY, DENIED_BY, DENIED_REASON])
def test_hostile_annotation_is_quoted_in_the_reason(key: str, text: str) -> None:
    annotations = {KEY: "why", DENIED_BY: "ann", key: text}
    if key == KEY:
        del annotations[DENIED_BY]
    result = plugin.permit(Pod.of(make_pod(annotations)), 0)
    assert result.reason.isprintable()  # type: ignore[union-attr]
    assert len(result.reason) < 200  # type: ignore[union-attr]


def test_delay_and_approval_must_both_allow() -> None:
    decider = make_decider()

    def held(*marks: str) -> Pod:
        annotations = {"delay": "15", KEY: "why", **dict.fromkeys(marks, "ann")}
        return Pod.of(make_pod(annotations, gates=[DELAY_GATE, GATE]))

    waiting_due = decider.due(held())
    assert (waiting_due.at_ms, waiting_due.reason) == (NEVER_MS, "approval: why")
    assert decider.due(held(APPROVED_BY)).at_ms == CREATED_MS + 15_000
    denied_due = decider.due(held(DENIED_BY))
    assert (denied_due.at_ms, denied_due.problem) == (NEVER_MS, "approval: denied by ann")
    summary = held_pods.described(held(), decider)
    assert (summary.held_by, summary.remark) == ("delay=15s, approval=why", "approval: why")
