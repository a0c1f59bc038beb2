from typing import Any

import pytest

from holdfast.webhook.config.config import DEFAULT_PLUGINS
from holdfast.webhook.framework.plugin import Code, reject
from holdfast.webhook.model import edits
from holdfast.webhook.model.edits import Requirement
from holdfast.webhook.report import trace
from tests.support.builders import CREATED_MS, make_pod, make_profiles, read_review
from tests.support.scripted import Blocking, Scripted, answering, profiles_of


@pytest.mark.parametrize(
    ("edit", "description"),
    [
        pytest.param(edits.AddFinalizer("a/b"), "adds finalizer a/b", id="finalizer"),
        pytest.param(edits.SetAnnotation("a", "b"), "sets annotation a: b", id="annotation"),
        pytest.param(edits.RemoveAnnotation("a"), "", id="removed annotation"),
        pytest.param(edits.RemoveLabel("a"), "removes label a", id="removed label"),
        pytest.param(edits.SetSchedulerName("x"), "sets scheduler x", id="scheduler"),
        pytest.param(
            edits.RequireNodes((Requirement("a", "Exists"), Requirement("b", "In", ("c",)))),
            "requires nodes with a Exists and b In [c]",
            id="required",
        ),
        pytest.param(
            edits.PreferNodes(7, (Requirement("a", "Exists"),)),
            "prefers nodes with a Exists (weight 7)",
            id="preferred",
        ),
        pytest.param(edits.SelectNodes("a", "b"), "selects nodes with a=b", id="selector"),
        pytest.param(edits.Tolerate("a", "Equal", "b"), "tolerates taint a=b", id="toleration"),
    ],
)
def test_edits_are_described(edit: edits.Edit, description: str) -> None:
    assert trace.describe_edit(edit) == description


def traced(annotations: dict[str, str], **fields: Any) -> trace.Trace:
    review_of = read_review(make_pod(annotations, **fields))
    return trace.mutate(make_profiles(), review_of, now_ms=CREATED_MS)


def test_plugins_run_in_order() -> None:
    result = traced({"delay": "15"})
    assert result.profile == "*"
    assert [(step.plugin, step.code) for step in result.steps] == [
        ("delay", Code.SUCCESS),
        *((name, Code.SKIP) for name in DEFAULT_PLUGINS[1:]),
    ]
    assert result.steps[0].summary == "adds scheduling gate holdfast.dev/delay (delay=15s)"
    assert result.verdict is not None
    assert result.verdict.code is Code.SUCCESS


def test_skipped_plugin_is_traced() -> None:
    answer = answering(reject("asked"))
    result = trace.mutate(profiles_of(Blocking(answer), Scripted()), read_review(), now_ms=0)
    assert [(step.plugin, step.summary) for step in result.steps] == [
        ("blocking", "not concerned"),
        ("scripted", "no change"),
    ]


def test_rejection_is_traced_as_the_verdict() -> None:
    result = traced({"delay": "soon"})
    assert result.steps[0].summary.startswith('rejected: annotation delay: invalid value "soon"')
    assert result.verdict is not None
    assert result.verdict.code is Code.REJECT
