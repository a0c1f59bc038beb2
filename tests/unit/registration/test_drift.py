from typing import Any

import pytest

from holdfast.webhook.registration import drift

OURS = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
THEIRS = {"key": "autopilot.gke.io/managed", "operator": "DoesNotExist"}


def configuration(selector: Any) -> dict[str, Any]:
    return {"webhooks": [{"name": "pods.holdfast.dev", "namespaceSelector": selector}]}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param({"matchExpressions": [OURS]}, True, id="as desired"),
        pytest.param({"matchExpressions": [THEIRS, OURS]}, True, id="narrower by an expression"),
        pytest.param(
            {"matchExpressions": [OURS], "matchLabels": {"a": "b"}}, True, id="narrower by a label"
        ),
        pytest.param({"matchExpressions": [THEIRS]}, False, id="another expression"),
        pytest.param({"matchExpressions": []}, False, id="wider"),
        pytest.param({"matchExpressions": None}, False, id="null"),
        pytest.param({}, False, id="missing"),
        pytest.param(
            {"matchExpressions": [{**OURS, "values": ["kube-system", "old"]}]},
            False,
            id="extra namespace",
        ),
    ],
)
def test_selector_may_be_narrower_than_desired(selector: Any, expected: bool) -> None:
    desired = configuration({"matchExpressions": [OURS]})
    assert drift.holds(configuration(selector), desired) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"values": ["gke-system", "kube-system"]}, True, id="more namespaces"),
        pytest.param({"values": ["gke-system"]}, False, id="other namespaces"),
        pytest.param({"values": None}, False, id="null"),
        pytest.param({"operator": "In"}, False, id="another operator"),
        pytest.param({"key": "name"}, False, id="another key"),
    ],
)
def test_list_of_excluded_values_may_be_longer(changes: Any, expected: bool) -> None:
    live = configuration({"matchExpressions": [{**OURS, **changes}]})
    desired = configuration({"matchExpressions": [OURS]})
    assert drift.holds(live, desired, longer=True) == expected
