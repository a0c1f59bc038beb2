"""Which pods are sent to Holdfast."""

from typing import Any

import pytest

from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.report.scope import AdmissionScope

OTHERS = "namespace default does not match admission.namespaceSelector"


def requirement(operator: str, *values: str) -> dict[str, Any]:
    fields = {"values": list(values)} if values else {}
    return {"matchExpressions": [{"key": "team", "operator": operator, **fields}]}


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
        (requirement("Exists"), {"team": ""}, ""),
        (requirement("Exists"), {}, OTHERS),
        (requirement("Exists"), None, ""),
    ],
)
def test_namespaces_are_selected_by_their_labels(
    selector: dict[str, Any], labels: dict[str, str] | None, why: str
) -> None:
    scope = AdmissionScope(Selectors(selector), lambda _: labels)
    assert scope.why_not_served("default") == why


@pytest.mark.parametrize("namespace", ["kube-system", "platform"])
def test_some_namespaces_are_never_served(namespace: str) -> None:
    reason = f"Holdfast never serves namespace {namespace}"
    assert AdmissionScope(own="platform").why_not_served(namespace) == reason
