import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.framework import cel


def cel_read(literal: str) -> str:
    match = re.fullmatch(r"'((?:[^'\\]|\\['\\]|\\U[0-9a-f]{8})*)'", literal, re.DOTALL)
    assert match is not None
    return re.sub(
        r"\\(?:U([0-9a-f]{8})|(.))",
        lambda escape: chr(int(escape[1], 16)) if escape[1] else escape[2],
        match[1],
        flags=re.DOTALL,
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_string_literal_round_trips(text: str) -> None:
    literal = cel.string(text)

    assert text == cel_read(literal)
    assert literal.isprintable()


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
def test_has_annotation_checks_each_level(pod: str, expected: str) -> None:
    assert expected == cel.has_annotation(["a", "b"], pod)
