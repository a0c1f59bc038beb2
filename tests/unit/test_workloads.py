from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.builders import CREATED_MS, make_pipeline, read_review
from webhook import workloads
from webhook.errors import ReviewError
from webhook.framework import Code
from webhook.review import PodReview
from webhook.workloads import CRON_TEMPLATE, TEMPLATE, Workload

KINDS = [(one.group, one.kind, one.path) for one in workloads.RESOURCES]


def wrapped(path: str, template: Any, **spec: Any) -> dict[str, Any]:
    if path == CRON_TEMPLATE:
        inside: dict[str, Any] = {"jobTemplate": {"spec": {"template": template} | spec}}
    else:
        inside = {"template": template} | spec
    return {"metadata": {"name": "w", "namespace": "default"}, "spec": inside}


def reviewed(group: str, kind: str, content: Any, **fields: Any) -> PodReview:
    return read_review(content, kind={"group": group, "version": "v1", "kind": kind}, **fields)


@pytest.mark.parametrize(("group", "kind", "path"), KINDS, ids=[kind for _, kind, _ in KINDS])
def test_template_is_read_and_its_values_refused_with_their_path(
    group: str, kind: str, path: str
) -> None:
    content = wrapped(path, {"metadata": {"annotations": {"delay": "soon"}}, "spec": {}})
    found = reviewed(group, kind, content, name="w")
    verdict = make_pipeline().validate(found, now_ms=CREATED_MS)

    assert found.pod.annotations == {"delay": "soon"}
    assert f"{kind} default/w" == found.described
    assert Code.REFUSE is verdict.code
    assert verdict.message.startswith(f'{path}.metadata: annotation delay: "soon" is no duration')


def test_template_as_it_was() -> None:
    old = wrapped(TEMPLATE, {"metadata": {"annotations": {"delay": "1"}}})
    found = reviewed("apps", "Deployment", wrapped(TEMPLATE, {}), operation="UPDATE", old=old)

    assert found.old is not None
    assert found.old.annotations == {"delay": "1"}
    assert found.pod.annotations == {}


@pytest.mark.parametrize(
    "content",
    [{}, {"spec": {}}, {"metadata": {}, "spec": {"template": None}}],
    ids=["empty", "no template", "null"],
)
@pytest.mark.parametrize(("group", "kind", "path"), KINDS, ids=[kind for _, kind, _ in KINDS])
def test_workload_without_a_template(group: str, kind: str, path: str, content: Any) -> None:
    found = reviewed(group, kind, content)

    assert found.pod.annotations == {}
    assert found.workload is not None
    assert path == found.workload.path


@pytest.mark.parametrize(
    ("kind", "path", "content", "expected"),
    [
        pytest.param(
            "Deployment",
            TEMPLATE,
            wrapped(TEMPLATE, {}, progressDeadlineSeconds=600),
            Workload("Deployment", "w", TEMPLATE, ("spec.progressDeadlineSeconds", 600)),
            id="Deployment",
        ),
        pytest.param(
            "Job",
            TEMPLATE,
            wrapped(TEMPLATE, {}, activeDeadlineSeconds=60),
            Workload("Job", "w", TEMPLATE, ("spec.activeDeadlineSeconds", 60)),
            id="Job",
        ),
        pytest.param(
            "CronJob",
            CRON_TEMPLATE,
            wrapped(CRON_TEMPLATE, {}, activeDeadlineSeconds=60),
            Workload(
                "CronJob", "w", CRON_TEMPLATE, ("spec.jobTemplate.spec.activeDeadlineSeconds", 60)
            ),
            id="CronJob",
        ),
        pytest.param(
            "StatefulSet",
            TEMPLATE,
            wrapped(TEMPLATE, {}, replicas=5),
            Workload("StatefulSet", "w", TEMPLATE, None, 5),
            id="StatefulSet",
        ),
        pytest.param(
            "StatefulSet",
            TEMPLATE,
            wrapped(TEMPLATE, {}),
            Workload("StatefulSet", "w", TEMPLATE, None, 1),
            id="StatefulSet of one",
        ),
        pytest.param(
            "StatefulSet",
            TEMPLATE,
            wrapped(TEMPLATE, {}, replicas=5, podManagementPolicy="Parallel"),
            Workload("StatefulSet", "w", TEMPLATE),
            id="parallel StatefulSet",
        ),
        pytest.param(
            "ReplicaSet",
            TEMPLATE,
            wrapped(TEMPLATE, {}, replicas=5),
            Workload("ReplicaSet", "w", TEMPLATE),
            id="ReplicaSet",
        ),
    ],
)
def test_read(kind: str, path: str, content: Any, expected: Workload) -> None:
    found = workloads.read(kind, path, json.dumps(content).encode())

    assert found is not None
    assert expected == found[0]


def test_read_of_nothing() -> None:
    assert workloads.read("Job", TEMPLATE, b"null") is None


def test_null_workload_is_refused() -> None:
    with pytest.raises(ReviewError):
        reviewed("apps", "Deployment", None, object=None)


@pytest.mark.parametrize(
    ("group", "kind"),
    [("apps", "Pod"), ("", "Deployment"), ("batch", "Deployment"), ("", "Node")],
    ids=["a Pod of apps", "a Deployment of none", "a Deployment of batch", "a Node"],
)
def test_other_kinds_are_refused(group: str, kind: str) -> None:
    assert workloads.template_path(group, kind) is None
    with pytest.raises(ReviewError):
        reviewed(group, kind, {})


def test_finalizer_of_ours_in_a_template_is_refused_with_its_path() -> None:
    content = wrapped(TEMPLATE, {"metadata": {"finalizers": ["holdfast.dev/sticky"]}})
    verdict = make_pipeline().validate(reviewed("apps", "Deployment", content), now_ms=0)

    assert verdict.message == (
        'spec.template.metadata: finalizer "holdfast.dev/sticky" is Holdfast\'s own; leave it out'
    )
