"""Which pods are sent to Holdfast."""

from typing import Any

import pytest

from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.report import scope
from tests.support.builders import read_pod

OTHERS = "namespace default has not the labels of admission.namespaceSelector"


def requirement(operator: str, *values: str) -> dict[str, Any]:
    more = {"values": list(values)} if values else {}
    return {"matchExpressions": [{"key": "team", "operator": operator, **more}]}


@pytest.mark.parametrize(
    ("selector", "labels", "why"),
    [
        ({}, {}, ""),
        ({"matchLabels": {"team": "a"}}, {"team": "a", "x": "y"}, ""),
        ({"matchLabels": {"team": "a"}}, {"team": "b"}, OTHERS),
        ({"matchLabels": {"team": "a"}}, {}, OTHERS),
        ({"matchLabels": {"kubernetes.io/metadata.name": "default"}}, {}, ""),
        (requirement("In", "a", "b"), {"team": "b"}, ""),
        (requirement("In", "a", "b"), {}, OTHERS),
        (requirement("NotIn", "a"), {}, ""),
        (requirement("NotIn", "a"), {"team": "a"}, OTHERS),
        (requirement("Exists"), {"team": ""}, ""),
        (requirement("Exists"), {}, OTHERS),
        (requirement("DoesNotExist"), {}, ""),
        (requirement("DoesNotExist"), {"team": "a"}, OTHERS),
        (requirement("Exists"), None, ""),
    ],
)
def test_namespaces_are_selected_by_their_labels(
    selector: dict[str, Any], labels: dict[str, str] | None, why: str
) -> None:
    pod = read_pod({})
    assert scope.why_not_served(pod, labels, Selectors(selector), "holdfast-system") == why


def test_pods_are_selected_by_their_labels() -> None:
    selectors = Selectors({}, {"matchLabels": {"app": "web"}})
    why = "the pod has not the labels of admission.objectSelector"
    assert scope.why_not_served(read_pod({}), {}, selectors, "x") == why
    assert scope.why_not_served(read_pod({}, labels={"app": "web"}), {}, selectors, "x") == ""


@pytest.mark.parametrize("namespace", ["kube-system", "platform"])
def test_some_namespaces_are_never_served(namespace: str) -> None:
    pod = read_pod({}, namespace=namespace)
    why = f"Holdfast never serves namespace {namespace}"
    assert scope.why_not_served(pod, {}, Selectors(), "platform") == why
