from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import make_delay, make_pipeline
from tests.unit.scripted import Holding, Scripted, pipeline_of
from webhook import conditions
from webhook.framework import PluginClass
from webhook.plugins.delay import Delay

EMPTY = "profiles: [{plugins: {disabled: [{name: '*'}]}}]"
DELAY: dict[str, PluginClass] = {"delay": Delay}


def cel_read(literal: str) -> str:
    """Read a CEL string literal as CEL does."""
    match = re.fullmatch(r"'((?:[^'\\]|\\['\\]|\\U[0-9a-f]{8})*)'", literal, re.DOTALL)
    assert match is not None
    return re.sub(
        r"\\(?:U([0-9a-f]{8})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else found[2],
        match[1],
        flags=re.DOTALL,
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_string_is_read_back(text: str) -> None:
    literal = conditions.string(text)

    assert text == cel_read(literal)
    assert literal.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("delay", "'delay'", id="plain"),
        pytest.param("a'b", "'a\\'b'", id="a quote"),
        pytest.param("a\\", "'a\\\\'", id="a backslash"),
        pytest.param("a\n", "'a\\U0000000a'", id="a line break"),
        pytest.param("') || true || ('", "'\\') || true || (\\''", id="an injection"),
    ],
)
def test_string(text: str, expected: str) -> None:
    assert expected == conditions.string(text)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            "object",
            "has(object.metadata.annotations) && "
            "('a' in object.metadata.annotations || 'b' in object.metadata.annotations)",
            id="pod",
        ),
        pytest.param(
            "object.spec.template",
            "has(object.spec.template) && has(object.spec.template.metadata) && "
            "has(object.spec.template.metadata.annotations) && "
            "('a' in object.spec.template.metadata.annotations || "
            "'b' in object.spec.template.metadata.annotations)",
            id="template",
        ),
    ],
)
def test_has_annotation_tests_each_level(pod: str, expected: str) -> None:
    assert expected == conditions.has_annotation(["a", "b"], pod)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(None, "", id="any value"),
        pytest.param(["x", "y'"], " && object.metadata.labels['a'] in ['x', 'y\\'']", id="values"),
    ],
)
def test_has_entry(values: list[str] | None, expected: str) -> None:
    assert conditions.has_entry("labels", "a", "object", values) == (
        "has(object.metadata.labels) && 'a' in object.metadata.labels" + expected
    )


def test_asks_is_what_the_plugins_match_or_what_is_ours() -> None:
    expected = (
        f"({make_delay().match('object')}) || "
        "(has(object.spec.schedulingGates) && object.spec.schedulingGates"
        ".exists(one, one.name.startsWith('holdfast.dev/'))) || "
        "(has(object.metadata.finalizers) && object.metadata.finalizers"
        ".exists(one, one.startsWith('holdfast.dev/')))"
    )

    assert expected == conditions.asks(make_pipeline(known=DELAY))


def test_asks_says_the_same_thing_once() -> None:
    twice = make_pipeline("profiles: [{schedulerName: a}, {schedulerName: b}]")

    assert conditions.asks(make_pipeline()) == conditions.asks(twice)


def test_unsettled_spares_what_the_plugins_say_of_themselves() -> None:
    delay = make_delay()
    expected = (
        f"(({delay.match('object')}) && !({delay.settled('object')})) || "
        "(has(object.spec.schedulingGates) && object.spec.schedulingGates.exists("
        "one, one.name.startsWith('holdfast.dev/') && !(one.name in ['holdfast.dev/delay']))) || "
        "(has(object.metadata.finalizers) && object.metadata.finalizers.exists("
        "one, one.startsWith('holdfast.dev/')))"
    )

    assert expected == conditions.unsettled(make_pipeline(known=DELAY))


def test_a_plugin_that_says_nothing_of_it_is_always_asked() -> None:
    pipeline = pipeline_of(Holding())

    assert conditions.asks(pipeline) == conditions.unsettled(pipeline)


def test_a_gate_is_known_only_where_its_own_plugin_vouches_for_it() -> None:
    made = conditions.unsettled(pipeline_of(make_delay(), Holding()))

    assert "!(one.name in ['holdfast.dev/delay'])" in made


def test_templates_without_plugins_are_never_asked_about() -> None:
    assert conditions.asks(make_pipeline(EMPTY), "object.spec.template") == "false"
    assert conditions.changes(make_pipeline(EMPTY), "object.spec.template") == "false"


def test_changes_names_each_key_with_its_old_value() -> None:
    expected = " || ".join(
        f"object.?spec.?template.?metadata.?annotations[?'{key}'] != "
        f"oldObject.?spec.?template.?metadata.?annotations[?'{key}']"
        for key in ("holdfast.dev/delay", "delay", "holdfast.dev/not-before", "holdfast.dev/jitter")
    )

    assert expected == conditions.changes(make_pipeline(known=DELAY), "object.spec.template")


class Judging(Scripted):
    """Looks at more of a template than an annotation."""

    judges_templates = True


def test_changes_of_a_template_are_all_asked_about_where_a_plugin_judges_it() -> None:
    template = "object.spec.template"
    key = (
        "object.?spec.?template.?metadata.?annotations[?'scripted'] != "
        "oldObject.?spec.?template.?metadata.?annotations[?'scripted']"
    )
    judged = f"object.?spec.?template != oldObject.?spec.?template && ({Judging().match(template)})"

    assert conditions.changes(pipeline_of(Judging()), template) == f"{key} || {judged}"
    assert conditions.changes(pipeline_of(Scripted()), template) == key


def test_pods_are_not_asked_about_because_their_templates_are_judged() -> None:
    judging, other = pipeline_of(Judging()), pipeline_of(Scripted())

    assert conditions.changes(judging) == conditions.changes(other)


def test_changes_of_a_pod_include_an_added_finalizer_of_ours() -> None:
    assert conditions.changes(make_pipeline(EMPTY)) == (
        "object.metadata.?finalizers.orValue([]).exists(one, one.startsWith('holdfast.dev/') && "
        "!(one in oldObject.metadata.?finalizers.orValue([])))"
    )
