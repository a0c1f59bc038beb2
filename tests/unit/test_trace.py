from __future__ import annotations

from typing import Any

import pytest

from tests.unit.builders import CREATED_MS, GATE, make_pipeline, make_pod, read_review
from tests.unit.scripted import Blocking, Scripted, answering, pipeline_of
from webhook import review, trace
from webhook.framework import Code, refuse
from webhook.review import Requirement


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(review.AddGate(GATE), f"holds it by the gate {GATE}", id="gate"),
        pytest.param(review.AddFinalizer("a/b"), "adds the finalizer a/b", id="finalizer"),
        pytest.param(
            review.SetAnnotation("holdfast.dev/held", "delay=1s"), "notes delay=1s", id="hint"
        ),
        pytest.param(review.SetAnnotation("a", "b"), "sets the annotation a: b", id="annotation"),
        pytest.param(review.RemoveAnnotation("a"), "", id="removed annotation"),
        pytest.param(review.SetSchedulerName("x"), "gives it to the scheduler x", id="scheduler"),
        pytest.param(
            review.RequireNodes((Requirement("a", "Exists"), Requirement("b", "In", ("c",)))),
            "requires nodes with a Exists and b In [c]",
            id="required",
        ),
        pytest.param(
            review.PreferNodes(7, (Requirement("a", "Exists"),)),
            "prefers nodes with a Exists (weight 7)",
            id="preferred",
        ),
        pytest.param(review.SelectNodes("a", "b"), "selects nodes with a=b", id="selector"),
        pytest.param(
            review.Tolerate("a", "Equal", "b"), "has it bear with the taint a=b", id="toleration"
        ),
    ],
)
def test_every_edit_has_words(edit: review.Edit, words: str) -> None:
    assert trace.edit_in_words(edit) == words


def traced(annotations: dict[str, str], **fields: Any) -> trace.Trace:
    review_of = read_review(make_pod(annotations, **fields))
    return trace.mutate(make_pipeline(), review_of, now_ms=CREATED_MS)


def test_every_plugin_is_asked_in_order() -> None:
    seen = traced({"delay": "15"})
    assert seen.profile == "*"
    assert [(step.plugin, step.code) for step in seen.steps] == [
        ("delay", Code.SUCCESS),
        ("sticky", Code.SKIP),
        ("placement", Code.SKIP),
    ]
    assert seen.verdict is not None
    assert seen.verdict.code is Code.SUCCESS


def test_a_plugin_that_is_spared_the_pod_is_told_of() -> None:
    answer = answering(refuse("asked"))
    seen = trace.mutate(pipeline_of(Blocking(answer), Scripted()), read_review(), now_ms=0)
    assert [(step.plugin, step.told) for step in seen.steps] == [
        ("blocking", "does not concern it"),
        ("scripted", "changes nothing"),
    ]


def test_a_refusal_is_told_and_is_the_verdict() -> None:
    seen = traced({"delay": "soon"})
    assert seen.steps[0].told.startswith('refuses it: annotation delay: "soon"')
    assert seen.verdict is not None
    assert seen.verdict.code is Code.REFUSE


def test_a_warning_is_told() -> None:
    told = traced({"delay": "15"}, node="node-1").steps[0].told
    assert told == "changes nothing; holdfast: not held: spec.nodeName is set already"
