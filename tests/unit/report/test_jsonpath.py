"""JSONPath templates with kubectl's syntax, on a list of held pods."""

from typing import Any

import pytest

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.report import jsonpath

LIST: dict[str, Any] = {
    "kind": "HeldPodList",
    "items": [
        {"metadata": {"name": "a"}, "gates": ["x", "y"], "secondsLeft": 3, "owner": None},
        {"metadata": {"name": "b"}, "gates": ["x"], "secondsLeft": 9.5, "owner": "Job/b"},
        {"metadata": {"name": "c", "k8s.io/x": "v"}, "gates": [], "secondsLeft": None},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        pytest.param("{.items[*].metadata.name}", "a b c", id="all"),
        pytest.param("{.items[0].gates}", '["x", "y"]', id="not text"),
        pytest.param("{.items[-1].metadata.name}", "c", id="last"),
        pytest.param("{.items[0:2].metadata.name}", "a b", id="slice"),
        pytest.param("{.items[9].kind}{.none}", "", id="missing"),
        pytest.param("{['kind']}", "HeldPodList", id="quoted"),
        pytest.param(r"{.items[2].metadata.k8s\.io/x}", "v", id="escaped"),
        pytest.param("{.items[2].metadata['k8s.io/x']}", "v", id="quoted with dots"),
        pytest.param('{.items[?(@.owner=="Job/b")].metadata.name}', "b", id="filter"),
        pytest.param("{.items[?(@.secondsLeft > 4)].metadata.name}", "b", id="comparison"),
        pytest.param("{.items[?(@.metadata.name!='a')].secondsLeft}", "9.5 ", id="unequal"),
        pytest.param("{.items[?(@.owner)].metadata.name}", "a b", id="existence"),
        pytest.param("names: {.items[0].metadata.*}!", "names: a!", id="surrounding text"),
        pytest.param(
            r'{range .items[*]}{.metadata.name}{"\t"}{.secondsLeft}{"\n"}{end}',
            "a\t3\nb\t9.5\nc\t\n",
            id="range",
        ),
        pytest.param("{range .items[*]}{$.kind} {end}", "HeldPodList " * 3, id="root in a range"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert jsonpath.render(template, LIST) == text


@pytest.mark.parametrize("path", [".kind", "kind", "{.kind}", "$.kind", "{$.kind}"])
def test_path_with_and_without_braces(path: str) -> None:
    assert jsonpath.find(path, LIST) == ["HeldPodList"]


@pytest.mark.parametrize("template", ["{.items[}", "{.a", "{..name}", "{.a[?(1)]}", "{.a b}"])
def test_unsupported_template_is_an_error(template: str) -> None:
    with pytest.raises(InvalidValueError, match="invalid JSONPath"):
        jsonpath.render(template, {"a": [{}]})
