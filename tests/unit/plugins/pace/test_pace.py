"""Values of the annotation, and admission."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Result, success
from holdfast.webhook.model import pace
from holdfast.webhook.model.edits import AddGate, RemoveLabel, SetLabel
from holdfast.webhook.model.kubevirt import CONTROLLER_ACCOUNT, MIGRATION_JOB, VMI
from holdfast.webhook.plugins.pace.args import KEY, NamedPace
from holdfast.webhook.plugins.pace.groups import PaceGroups
from holdfast.webhook.plugins.pace.slots import GATE
from tests.support import builders
from tests.support.builders import CREATED_MS, make_pod, read_pod, read_review
from tests.support.scripted import pipeline_of
from tests.support.vm_builders import owner_of
from tests.unit.plugins.pace.cluster import JVM, OWNER, plugin_of

GRAMMAR = [
    ("4", "4"),
    ("10000", "10000"),
    ("10/1m", "10/1m"),
    ("1/500ms", "1/500ms"),
    ("4,10/1m", "4,10/1m"),
    ("4, 10/1m", "4,10/1m"),
    ("4,  1/90", "4,1/1m30s"),
    ("007", "7"),
    ("", None),
    ("0", None),
    ("10001", None),
    ("-1", None),
    ("4,", None),
    ("4, ", None),
    ("4 ,10/1m", None),
    (",4", None),
    ("4,5", None),
    ("/1m", None),
    ("1/1m,4", None),
    ("4 ", None),
    ("٤", None),
    ("4\n", None),
    ("9" * 1_000_000, None),
    (f"4,{' ' * 100}10/1m", None),
]


@pytest.mark.parametrize(("text", "expected"), GRAMMAR, ids=lambda value: str(value)[:20])
def test_grammar(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(InvalidValueError) as caught:
            pace.parse(text)
        assert len(str(caught.value)) < 400
    else:
        assert str(pace.parse(text)) == expected
        assert pace.parse(expected) == pace.parse(text)


def test_equal_values_are_parsed_once() -> None:
    groups = PaceGroups(lambda: CREATED_MS)
    first, second = (groups.find(read_pod({KEY: "4,10/1m"}, uid=uid)) for uid in "ab")
    assert first.limits is second.limits


@pytest.mark.parametrize("period", ["m", "1d", "0s", "25h"])
def test_message_quotes_an_invalid_period(period: str) -> None:
    message = f'the period "{period}" must be a duration of 1ms to 24h, such as "10s" or "1m"'
    with pytest.raises(InvalidValueError, match=f'invalid value "4/{period}": {message}'):
        pace.parse(f"4/{period}")


def call(point: str, annotation: str, **fields: Any) -> Result:
    pod = make_pod({KEY: annotation}, **{"owners": [OWNER], **fields})
    return builders.call(plugin_of(JVM), point, pod)


def test_pod_with_a_pace_gets_gate_and_label() -> None:
    assert call("mutate", "jvm") == success(AddGate(GATE), SetLabel(KEY, "jvm"))
    owned_labels = [call("mutate", text).edits[1] for text in ("4", "5")]
    ownerless_labels = [call("mutate", text, owners=[]).edits[1] for text in ("4", "04", "5")]
    assert owned_labels[0] == owned_labels[1] not in ownerless_labels
    assert ownerless_labels[0] == ownerless_labels[1] != ownerless_labels[2]
    assert call("mutate", "jvm", node="n1").edits == ()


def test_forged_label_is_removed_from_pods_that_are_not_held() -> None:
    """Cover a pod that is already bound to a node, and a migration target."""
    labels = {KEY: "jvm", MIGRATION_JOB: "job"}
    target = make_pod({KEY: "jvm"}, labels=labels, owners=[owner_of(VMI, "vm", "u")])
    by_kubevirt = {"userInfo": {"username": CONTROLLER_ACCOUNT}}
    for review in (
        read_review(make_pod(labels=labels)),
        read_review(make_pod({KEY: "jvm"}, node="n1", labels=labels)),
        read_review(target, **by_kubevirt),
    ):
        verdict = pipeline_of(plugin_of(JVM)).mutate(review, now_ms=CREATED_MS)
        assert verdict.edits == [RemoveLabel(KEY)]
    held = read_review(make_pod({KEY: "jvm"}, labels=labels))
    edits = pipeline_of(plugin_of(JVM)).mutate(held, now_ms=CREATED_MS).edits
    paths = {operation["path"] for operation in patch(held.pod, edits)}
    assert "/spec/schedulingGates" in paths
    assert "/metadata/labels/holdfast.dev~1pace" not in paths


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_unknown_pace_is_rejected_with_the_configured_names(point: str) -> None:
    result = call(point, "jwm", gates=[GATE])

    assert result.code is Code.REJECT
    assert result.reason.startswith(
        'annotation holdfast.dev/pace: there is no pace "jwm"; configured: jvm; or use a number'
    )


def test_new_pod_without_its_gate_is_rejected() -> None:
    assert call("validate", "4", gates=[GATE], labels={KEY: "x"}) == success()
    assert "is missing although" in call("validate", "4").reason
    assert "label holdfast.dev/pace is missing" in call("validate", "4", gates=[GATE]).reason


@pytest.mark.parametrize(
    ("paces", "message"),
    [
        ([NamedPace(name="x")], "paces[0]: it limits nothing: set maxStarting"),
        ([NamedPace(name="4")], "paces[0].name: must start with a letter"),
        ([NamedPace(name="x", max_starting=0)], "numbers must be 1 to 10000"),
        ([NamedPace(name="x", rate="10")], "paces[0]: invalid value"),
        ([NamedPace(name="x", max_starting=4, timeout="soon")], "paces[0]: invalid value"),
        ([JVM, JVM], "two have the same name"),
    ],
)
def test_invalid_arguments(paces: list[NamedPace], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        plugin_of(*paces)
