from typing import Any

import pytest

from holdfast.webhook.model import limits
from holdfast.webhook.model.objects import Pod
from tests.support.builders import make_pod, make_review
from tests.support.hostile import PATHS, check_document
from tests.support.matching import PREFERRED, REQUIRED, required_affinity

NODE = "spec.affinity.nodeAffinity"


def make_delayed_pod(**spec: Any) -> Any:
    pod = make_pod({"delay": "15", "type": "x"})
    pod["spec"] |= spec
    return pod


def requiring(*terms: Any) -> Any:
    return make_delayed_pod(affinity=required_affinity(*terms))


def preferring(*terms: Any) -> Any:
    preferred = [{"weight": 1, "preference": term} for term in terms]
    return make_delayed_pod(affinity={"nodeAffinity": {PREFERRED: preferred}})


def with_values(*numbers: int) -> Any:
    """Make one required term whose requirements have these numbers of values."""
    return requiring(
        {"matchFields": [{"key": "a", "values": ["b"] * number} for number in numbers]}
    )


def labelled(number: int, *, field: str = "labels") -> Any:
    """Make a pod with this many labels, or with this many annotations in addition to its two."""
    pod = make_delayed_pod()
    pod["metadata"].setdefault(field, {}).update({f"k{i}": "" for i in range(number)})
    return pod


OVER_LIMIT = [
    pytest.param(
        labelled(4_999, field="annotations"), "metadata.annotations", 5_000, id="annotations"
    ),
    pytest.param(labelled(5_001), "metadata.labels", 5_000, id="labels"),
    pytest.param(
        make_delayed_pod(schedulingGates=[{"name": f"holdfast.dev/{i}"} for i in range(17)]),
        "spec.schedulingGates (holdfast.dev/*)",
        16,
        id="own gates",
    ),
    pytest.param(
        make_delayed_pod(schedulingGates=[{"name": f"example.com/{i}"} for i in range(101)]),
        "spec.schedulingGates",
        100,
        id="gates",
    ),
    pytest.param(
        make_delayed_pod(tolerations=[{}] * 1_001), "spec.tolerations", 1_000, id="tolerations"
    ),
    pytest.param(requiring(*[{}] * 1_001), f"required terms of {NODE}", 1_000, id="required terms"),
    pytest.param(
        preferring(*[{}] * 1_001), f"preferred terms of {NODE}", 1_000, id="preferred terms"
    ),
    pytest.param(
        requiring({"matchExpressions": [{}] * 5_000, "matchFields": [{}] * 5_001}),
        f"requirements in {NODE}",
        10_000,
        id="requirements",
    ),
    pytest.param(with_values(25_000, 25_001), f"values in {NODE}", 50_000, id="values"),
]
WITHIN_LIMITS = [
    pytest.param(labelled(4_998, field="annotations"), id="annotations"),
    pytest.param(labelled(5_000), id="labels"),
    pytest.param(make_delayed_pod(affinity={}), id="an empty affinity"),
    pytest.param(make_delayed_pod(affinity={"nodeAffinity": {REQUIRED: None}}), id="no terms"),
    pytest.param(make_delayed_pod(tolerations=[{}] * 1_000), id="tolerations"),
    pytest.param(requiring(*[{}] * 1_000), id="required terms"),
    pytest.param(requiring({"matchExpressions": [{}] * 10_000}), id="requirements"),
    pytest.param(with_values(25_000, 25_000), id="values"),
]


@pytest.mark.parametrize("pod", WITHIN_LIMITS)
def test_pod_within_limits_has_no_excess(pod: Any) -> None:
    assert limits.find_excess(Pod.of(pod)) == ""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("pod", "field", "limit"), OVER_LIMIT)
def test_new_pod_over_a_limit_is_rejected(pod: Any, field: str, limit: int, path: str) -> None:
    response = check_document(path, make_review(pod))

    assert not response["allowed"]
    assert response["status"]["message"] == (
        f"{field}: {limit + 1:,} entries exceed the limit of {limit:,}: remove some"
    )


def test_stored_pod_over_a_limit_can_be_updated() -> None:
    pod = make_delayed_pod(tolerations=[{}] * 1_001)

    assert check_document("/validate", make_review(pod, operation="UPDATE", old=pod))["allowed"]
