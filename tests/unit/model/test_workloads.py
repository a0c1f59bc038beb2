import json
from typing import Any

import pytest

from holdfast.webhook.errors import ReviewError
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model import workloads
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import CRON_TEMPLATE, TEMPLATE, WORKER_TEMPLATE, Workload
from tests.support.builders import CREATED_MS, make_pipeline, read_review

KINDS = [
    (workload.group, workload.kind, path)
    for workload in workloads.RESOURCES
    for path in workload.paths
]
IDS = [f"{kind} {path}" for _, kind, path in KINDS]


def wrapped(path: str, template: Any, **spec: Any) -> dict[str, Any]:
    *parents, leaf = path.removeprefix("spec.").split(".")
    content: dict[str, Any] = {leaf: template} | spec
    for parent in reversed(parents):
        name = parent.removesuffix("[]")
        content = {name: content if name == parent else [content]}
    return {"metadata": {"name": "w", "namespace": "default"}, "spec": content}


def reviewed(group: str, kind: str, content: Any, **fields: Any) -> PodReview:
    return read_review(content, kind={"group": group, "version": "v1", "kind": kind}, **fields)


@pytest.mark.parametrize(("group", "kind", "path"), KINDS, ids=IDS)
def test_invalid_template_is_rejected_with_its_path(group: str, kind: str, path: str) -> None:
    content = wrapped(path, {"metadata": {"annotations": {"delay": "soon"}}, "spec": {}})
    review = reviewed(group, kind, content, name="w")
    verdict = make_pipeline().validate(review, now_ms=CREATED_MS)

    assert (review.others or [review])[-1].pod.annotations == {"delay": "soon"}
    assert f"{kind} default/w" == review.display_name
    assert Code.REJECT is verdict.code
    template_path = path.replace("[]", "[0]")
    assert verdict.message.startswith(
        f'{template_path}.metadata: annotation delay: invalid value "soon"'
    )


def test_old_template_is_read() -> None:
    old = wrapped(TEMPLATE, {"metadata": {"annotations": {"delay": "1"}}})
    review = reviewed("apps", "Deployment", wrapped(TEMPLATE, {}), operation="UPDATE", old=old)

    assert review.old is not None
    assert review.old.annotations == {"delay": "1"}
    assert review.pod.annotations == {}


@pytest.mark.parametrize(("group", "kind", "path"), KINDS, ids=IDS)
def test_namespace_of_a_template_is_ignored(group: str, kind: str, path: str) -> None:
    """The API server stores any, and controllers create pods in the workload's namespace."""
    metadata = {"namespace": "elsewhere", "annotations": {"type": "space"}}
    spec = {"nodeSelector": {"kubernetes.io/role": "cloud"}}
    review = reviewed(group, kind, wrapped(path, {"metadata": metadata, "spec": spec}))
    pipeline = make_pipeline(
        "profiles: [{schedulerName: '*', pluginConfig: [{name: placement, args: {rules: [{name: "
        "space, when: {annotation: type, equals: space, namespaces: [default]}, require: [{key: "
        "kubernetes.io/role, operator: In, values: [edge]}], onConflict: reject}]}}]}]"
    )
    verdict = pipeline.validate(review, now_ms=CREATED_MS)
    if kind == "DaemonSet":
        assert "the pods will not be placed" in verdict.warnings[0]
    else:
        assert verdict.message.startswith(f"{path.replace('[]', '[0]')}.metadata: rule space: ")


@pytest.mark.parametrize(
    "content",
    [{}, {"spec": {}}, {"metadata": {}, "spec": {"template": None}}],
    ids=["empty", "no template", "null"],
)
@pytest.mark.parametrize(("group", "kind", "path"), KINDS, ids=IDS)
def test_workload_without_a_template(group: str, kind: str, path: str, content: Any) -> None:
    review = reviewed(group, kind, content)

    assert review.pod.annotations == {}
    assert review.workload is not None
    assert review.others == ()
    assert review.workload.path in {path.replace("[]", "[0]"), WORKER_TEMPLATE}


SET = {"deletes_first": "spec.updateStrategy"}
RECREATED = {"deletes_first": "spec.strategy"}


@pytest.mark.parametrize(
    ("kind", "spec", "deadline", "more"),
    [
        ("Deployment", {"progressDeadlineSeconds": 600}, ("progressDeadlineSeconds", 600), {}),
        ("Job", {"activeDeadlineSeconds": 60}, ("activeDeadlineSeconds", 60), {}),
        ("CronJob", {"activeDeadlineSeconds": 60}, ("activeDeadlineSeconds", 60), {}),
        ("StatefulSet", {"replicas": 5}, None, {"ordered": 5} | SET),
        ("StatefulSet", {}, None, SET),
        ("StatefulSet", {"replicas": 5, "podManagementPolicy": "Parallel"}, None, SET),
        ("ReplicaSet", {"replicas": 5}, None, {}),
        ("Deployment", {"strategy": {"type": "Recreate"}}, None, RECREATED),
        ("Deployment", {"strategy": {"rollingUpdate": {"maxSurge": 0}}}, None, RECREATED),
        ("Deployment", {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}, None, {}),
        ("StatefulSet", {"updateStrategy": {"type": "OnDelete"}}, None, {}),
        ("DaemonSet", {}, None, SET),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}, None, SET),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxSurge": "10%"}}}, None, {}),
        ("DaemonSet", {"updateStrategy": {"type": "OnDelete"}}, None, {}),
        ("Job", {"completions": 5, "parallelism": 2}, None, {"rounds": 3}),
        ("Job", {"completions": 5}, None, {"rounds": 5}),
        ("Job", {"completions": 5, "parallelism": 0}, None, {}),
        ("CronJob", {"completions": 4, "parallelism": 4}, None, {}),
    ],
)
def test_read(kind: str, spec: Any, deadline: tuple[str, int] | None, more: Any) -> None:
    path = CRON_TEMPLATE if kind == "CronJob" else TEMPLATE
    (template,) = workloads.read(resource(kind), json.dumps(wrapped(path, {}, **spec)).encode())

    prefix = path.removesuffix("template")
    expected = deadline and (prefix + deadline[0], deadline[1])
    assert template[0] == Workload(kind, "w", path, expected, **more)


def resource(kind: str) -> workloads.Resource:
    (workload,) = (candidate for candidate in workloads.RESOURCES if candidate.kind == kind)
    return workload


INVALID_DELAY = {"metadata": {"annotations": {"delay": "soon"}}}


def test_each_template_of_a_job_set_is_checked() -> None:
    def job(template: Any, **spec: Any) -> Any:
        return {"name": "x", "template": {"spec": {"template": template, **spec}}}

    spec = {
        "replicatedJobs": [job({}), job(INVALID_DELAY, activeDeadlineSeconds=60)],
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
    }
    review = reviewed("jobset.x-k8s.io", "JobSet", {"spec": spec})
    path = "spec.replicatedJobs[1].template.spec"

    (second_review,) = review.others
    assert second_review.workload is not None
    assert second_review.workload.deadline == (f"{path}.activeDeadlineSeconds", 60)
    assert second_review.workload.waits_for == "spec.startupPolicy"
    verdict = make_pipeline().validate(review, now_ms=CREATED_MS)
    assert verdict.message.startswith(f"{path}.template.metadata: annotation delay: invalid value")


def test_number_of_checked_templates_is_limited() -> None:
    spec: Any = {"replicatedJobs": [{}] * 100_000}
    assert len(workloads.read(resource("JobSet"), json.dumps({"spec": spec}).encode())) == 100


def test_leader_template_of_a_leader_worker_set_is_checked() -> None:
    spec = {
        "leaderWorkerTemplate": {"workerTemplate": {}, "leaderTemplate": INVALID_DELAY},
        "startupPolicy": "LeaderReady",
    }
    review = reviewed("leaderworkerset.x-k8s.io", "LeaderWorkerSet", {"spec": spec})
    verdict = make_pipeline().validate(review, now_ms=CREATED_MS)
    assert verdict.message.startswith("spec.leaderWorkerTemplate.leaderTemplate.metadata: ")
    waits = [
        template.workload and template.workload.waits_for for template in (review, *review.others)
    ]
    assert waits == ["spec.startupPolicy: LeaderReady", ""]


def test_same_warning_of_two_templates_is_reported_once() -> None:
    template = {"metadata": {"annotations": {"delay": "15"}}}
    spec = {"leaderWorkerTemplate": {"workerTemplate": template, "leaderTemplate": template}}
    review = reviewed("leaderworkerset.x-k8s.io", "LeaderWorkerSet", {"spec": spec})
    (warning,) = make_pipeline().validate(review, now_ms=CREATED_MS).warnings
    assert warning == (
        "holdfast: spec.rolloutStrategy deletes each pod before its successor starts, so an update "
        "leaves it down for 15s: set maxSurge in its rollingUpdateConfiguration, or remove the "
        "delay"
    )


def test_template_added_by_an_update_is_checked() -> None:
    old = wrapped(WORKER_TEMPLATE, {})
    new = wrapped(WORKER_TEMPLATE, {}, leaderTemplate=INVALID_DELAY)
    kind = "leaderworkerset.x-k8s.io", "LeaderWorkerSet"
    review = reviewed(*kind, new, operation="UPDATE", old=old)
    assert review.others[0].old is None
    assert make_pipeline().validate(review, now_ms=CREATED_MS).code is Code.REJECT


def test_null_workload_is_rejected() -> None:
    with pytest.raises(ReviewError):
        reviewed("apps", "Deployment", None, object=None)


@pytest.mark.parametrize(
    ("group", "kind"),
    [("apps", "Pod"), ("", "Deployment"), ("batch", "Deployment"), ("", "Node")],
    ids=["a Pod of apps", "a Deployment of the core group", "a Deployment of batch", "a Node"],
)
def test_unsupported_kinds_are_rejected(group: str, kind: str) -> None:
    assert workloads.resource_of(group, kind) is None
    with pytest.raises(ReviewError):
        reviewed(group, kind, {})


def test_reserved_finalizer_in_template_is_rejected_with_its_path() -> None:
    content = wrapped(TEMPLATE, {"metadata": {"finalizers": ["holdfast.dev/sticky"]}})
    verdict = make_pipeline().validate(reviewed("apps", "Deployment", content), now_ms=0)

    assert verdict.message == (
        'spec.template.metadata: finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove '
        "it (a restore should leave out the pods of VMs)"
    )


def job_set(templates: int, set_metadata: Any = None, **metadata: Any) -> PodReview:
    """Review a JobSet whose jobs and templates have this metadata."""
    template = {"metadata": metadata, "spec": {"template": {"metadata": metadata}}}
    spec = {"replicatedJobs": [{"template": template}] * templates}
    return reviewed("jobset.x-k8s.io", "JobSet", {"metadata": set_metadata or {}, "spec": spec})


TOO_MANY = "metadata.labels: 5,100 entries exceed the limit of 5,000: remove some"
JOB = "spec.replicatedJobs[0].template.spec.template"


def many(number: int) -> dict[str, str]:
    return {f"k{i}": "" for i in range(number)}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(job_set(2, {"labels": many(5_100)}), [TOO_MANY], id="the JobSet's own"),
        pytest.param(
            job_set(100, labels=many(51)), [f"100 templates together: {TOO_MANY}"], id="together"
        ),
        pytest.param(job_set(1, labels=many(5_100)), [f"{JOB}: {TOO_MANY}"], id="one template"),
        pytest.param(
            job_set(100, {"labels": many(5_000)}, labels=many(50)), [], id="at the limits"
        ),
    ],
)
def test_limits_apply_to_all_templates_together(found: PodReview, expected: list[str]) -> None:
    assert make_pipeline().validate(found, now_ms=CREATED_MS).reasons == expected


def test_gate_limit_applies_per_template() -> None:
    gates = {"schedulingGates": [{"name": f"holdfast.dev/x{i}"} for i in range(16)]}
    jobs = [{"template": {"spec": {"template": {"spec": gates}}}}] * 100
    review = reviewed("jobset.x-k8s.io", "JobSet", {"spec": {"replicatedJobs": jobs}})
    assert "together" not in make_pipeline().validate(review, now_ms=CREATED_MS).message


def test_workload_metadata_is_checked_only_with_first_template() -> None:
    review = job_set(2, {"labels": {"holdfast.dev/delay": "15"}})
    labels = [
        template.workload and template.workload.own.labels for template in (review, *review.others)
    ]
    assert labels == [{"holdfast.dev/delay": "15"}, {}]
    (warning,) = make_pipeline().validate(review, now_ms=CREATED_MS).warnings
    assert warning.startswith('holdfast: metadata: label "holdfast.dev/delay" has no effect')
