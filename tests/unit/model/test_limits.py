from typing import Any

import pytest

from holdfast.webhook.model import limits
from holdfast.webhook.model.objects import Pod
from tests.support.builders import make_pod, make_review
from tests.support.hostile import PATHS, check_document

NODE = "spec.affinity.nodeAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def asking(**spec: Any) -> Any:
    pod = make_pod({"delay": "15", "type": "x"})
    pod["spec"] |= spec
    return pod


def requiring(*terms: Any) -> Any:
    return asking(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [*terms]}}})


def preferring(*terms: Any) -> Any:
    preferred = [{"weight": 1, "preference": term} for term in terms]
    return asking(affinity={"nodeAffinity": {PREFERRED: preferred}})


def naming(*numbers: int) -> Any:
    """Name so many values in each requirement of one term."""
    return requiring({"matchFields": [{"key": "a", "values": ["b"] * one} for one in numbers]})


def labelled(number: int, *, field: str = "labels") -> Any:
    """Give a pod so many labels, or annotations in addition to two."""
    pod = asking()
    pod["metadata"].setdefault(field, {}).update({f"k{i}": "" for i in range(number)})
    return pod


TOO_MUCH = [
    pytest.param(
        labelled(4_999, field="annotations"),
        "metadata.annotations: 5,001 entries exceed the limit of 5,000: remove some",
        id="annotations",
    ),
    pytest.param(
        labelled(5_001),
        "metadata.labels: 5,001 entries exceed the limit of 5,000: remove some",
        id="labels",
    ),
    pytest.param(
        asking(schedulingGates=[{"name": f"holdfast.dev/{i}"} for i in range(17)]),
        "spec.schedulingGates (holdfast.dev/*): 17 entries exceed the limit of 16: remove some",
        id="gates of ours",
    ),
    pytest.param(
        asking(schedulingGates=[{"name": f"example.com/{i}"} for i in range(101)]),
        "spec.schedulingGates: 101 entries exceed the limit of 100: remove some",
        id="gates",
    ),
    pytest.param(
        asking(tolerations=[{}] * 1_001),
        "spec.tolerations: 1,001 entries exceed the limit of 1,000: remove some",
        id="tolerations",
    ),
    pytest.param(
        requiring(*[{}] * 1_001),
        f"required terms of {NODE}: 1,001 entries exceed the limit of 1,000: remove some",
        id="required terms",
    ),
    pytest.param(
        preferring(*[{}] * 1_001),
        f"preferred terms of {NODE}: 1,001 entries exceed the limit of 1,000: remove some",
        id="preferred terms",
    ),
    pytest.param(
        requiring({"matchExpressions": [{}] * 5_000, "matchFields": [{}] * 5_001}),
        f"requirements in {NODE}: 10,001 entries exceed the limit of 10,000: remove some",
        id="requirements",
    ),
    pytest.param(
        naming(25_000, 25_001),
        f"values in {NODE}: 50,001 entries exceed the limit of 50,000: remove some",
        id="values",
    ),
]
AS_MUCH_AS_MAY_BE = [
    pytest.param(labelled(4_998, field="annotations"), id="annotations"),
    pytest.param(labelled(5_000), id="labels"),
    pytest.param(asking(affinity={}), id="an empty affinity"),
    pytest.param(asking(affinity={"nodeAffinity": {REQUIRED: None}}), id="no terms"),
    pytest.param(asking(tolerations=[{}] * 1_000), id="tolerations"),
    pytest.param(requiring(*[{}] * 1_000), id="required terms"),
    pytest.param(requiring({"matchExpressions": [{}] * 10_000}), id="requirements"),
    pytest.param(naming(25_000, 25_000), id="values"),
]


@pytest.mark.parametrize(("pod", "told"), TOO_MUCH)
def test_what_is_too_much(pod: Any, told: str) -> None:
    assert limits.find_excess(Pod.of(pod)) == told


@pytest.mark.parametrize("pod", AS_MUCH_AS_MAY_BE)
def test_what_is_not(pod: Any) -> None:
    assert limits.find_excess(Pod.of(pod)) == ""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("pod", "told"), TOO_MUCH)
def test_a_new_pod_with_too_much_is_refused(pod: Any, told: str, path: str) -> None:
    response = check_document(path, make_review(pod))

    assert not response["allowed"]
    assert response["status"]["message"] == told


def test_a_template_with_too_much_is_refused_where_it_is_written() -> None:
    template = asking(tolerations=[{}] * 1_001)
    workload = {"metadata": {"name": "web"}, "spec": {"template": template}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    response = check_document("/validate", make_review(workload, kind=kind))

    assert response["status"]["message"] == (
        "spec.template: spec.tolerations: 1,001 entries exceed the limit of 1,000: remove some"
    )


def test_what_was_stored_before_can_be_updated() -> None:
    pod = asking(tolerations=[{}] * 1_001)

    assert check_document("/validate", make_review(pod, operation="UPDATE", old=pod))["allowed"]
