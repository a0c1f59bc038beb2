"""Offline previews of manifests by `holdfast preview`."""

from typing import Any

import pytest
import yaml

from holdfast.webhook.cli import server_preview
from holdfast.webhook.report import preview
from holdfast.webhook.report.preview import OfflinePreview, Preview
from holdfast.webhook.report.scope import AdmissionScope
from tests.support.builders import CREATED_MS, make_pipeline

PIPELINE = make_pipeline()
WINDOW = "holdfast.dev/window"
CONTAINERS = [{"name": "main", "image": "busybox"}]


def pod(annotations: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations, **metadata},
        "spec": {"containers": CONTAINERS},
    }


def workload(kind: str, group: str, annotations: Any, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": CONTAINERS}}
    inner: dict[str, Any] = {"template": template, **spec}
    if kind == "CronJob":
        inner = {"jobTemplate": {"spec": inner}}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": inner,
    }


def previewed(document: dict[str, Any], namespace: str = "default") -> Preview:
    (result,) = OfflinePreview(PIPELINE, namespace, CREATED_MS).preview(document)
    return result


def test_held_pod() -> None:
    document = pod({"delay": "15"})
    original = yaml.safe_dump(document)
    result = previewed(document)
    assert yaml.safe_dump(document) == original
    assert result.what == "Pod default/web"
    assert result.refusals == []
    assert "+    holdfast.dev/held: delay=15s" in result.diff
    assert "+  - name: holdfast.dev/delay" in result.diff
    assert not [line for line in result.diff if line.startswith("-")]


@pytest.mark.parametrize(
    ("kind", "group"),
    [("Deployment", "apps"), ("DaemonSet", "apps"), ("CronJob", "batch")],
)
def test_template_is_previewed_as_its_pods(kind: str, group: str) -> None:
    result = previewed(workload(kind, group, {"delay": "15"}))
    assert result.what == f"{kind} shop/web"
    assert "+  - name: holdfast.dev/delay" in result.diff
    assert "ownerReferences" not in "".join(result.diff)
    rejection = previewed(workload(kind, group, {"delay": "soon"}))
    assert len(rejection.refusals) == 1
    assert 'template.metadata: annotation delay: invalid value "soon"' in rejection.refusals[0]


def test_daemon_set_pods_are_not_placed() -> None:
    assert previewed(workload("DaemonSet", "apps", {"type": "space"})).diff == []
    job = previewed(workload("Job", "batch", {"type": "space"}))
    assert "kubernetes.io/role" in "".join(job.diff)


def test_vm_is_validated_but_its_template_is_not_mutated() -> None:
    assert previewed(workload("VirtualMachine", "kubevirt.io", {"delay": "15"})).diff == []
    assert previewed(workload("VirtualMachine", "kubevirt.io", {"delay": "soon"})).refusals


def several(kind: str, *annotations: dict[str, str]) -> dict[str, Any]:
    """Make a JobSet or LeaderWorkerSet with one template for each set of annotations."""
    templates = [
        {"metadata": {"annotations": values, "labels": {"part": str(index)}}, "spec": {}}
        for index, values in enumerate(annotations)
    ]
    spec: dict[str, Any]
    if kind == "JobSet":
        jobs = [{"template": {"spec": {"template": template}}} for template in templates]
        version, spec = "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": jobs}
    else:
        named = dict(zip(("workerTemplate", "leaderTemplate"), templates, strict=True))
        version, spec = "leaderworkerset.x-k8s.io/v1", {"leaderWorkerTemplate": named}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


WHERE = {
    "JobSet": [f"spec.replicatedJobs[{index}].template.spec.template" for index in (0, 1)],
    "LeaderWorkerSet": [
        f"spec.leaderWorkerTemplate.{role}Template" for role in ("worker", "leader")
    ],
}


@pytest.mark.parametrize("kind", WHERE)
def test_each_template_of_a_workload_is_shown(kind: str) -> None:
    document = several(kind, {}, {"delay": "15"})
    first, second = OfflinePreview(PIPELINE, "shop", CREATED_MS).preview(document)
    assert [first.what, second.what] == [f"{kind} shop/x ({path})" for path in WHERE[kind]]
    assert first.diff == []
    assert "+    holdfast.dev/held: delay=15s" in second.diff


def test_warning_about_a_workload_is_shown_once() -> None:
    document = several("JobSet", {"delay": "15"}, {"delay": "15"})
    document["metadata"]["annotations"] = {"holdfast.dev/delay": "15"}
    first, second = OfflinePreview(PIPELINE, "shop", CREATED_MS).preview(document)
    assert len(first.warnings) == 1
    assert second.warnings == []


@pytest.mark.parametrize("kind", WHERE)
def test_misplaced_annotations_of_each_template_are_a_warning(kind: str) -> None:
    document = several(kind, {}, {})
    for (_, template), value in zip(preview.templates(document), ("1s", "2s"), strict=True):
        template["spec"]["annotations"] = {"holdfast.dev/delay": value}
    results = OfflinePreview(PIPELINE, "shop", CREATED_MS).preview(document)
    assert list(results[0].warnings) == [
        f'{path}.spec.annotations is not a field: move "holdfast.dev/delay" to '
        f"{path}.metadata.annotations"
        for path in WHERE[kind]
    ]


def test_each_template_is_selected_by_its_labels() -> None:
    pipeline = make_pipeline("admission: {objectSelector: {matchLabels: {part: '1'}}}")
    scope = AdmissionScope(pipeline.profiles.selectors, lambda _: {})
    document = several("JobSet", {"delay": "15"}, {"delay": "15"})
    first, second = OfflinePreview(pipeline, "shop", CREATED_MS, scope).preview(document)
    assert (first.diff, bool(second.diff)) == ([], True)
    assert "admission.objectSelector" in first.warnings[-1]

    job_set = several("JobSet", {}, {"delay": "15"})
    (result,) = OfflinePreview(pipeline, "kube-system", CREATED_MS, scope).preview(job_set)
    assert "not sent to Holdfast" in result.warnings[0]


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        (several("JobSet"), [WHERE["JobSet"][0]]),
        ({**several("JobSet"), "spec": None}, [WHERE["JobSet"][0]]),
        ({**several("LeaderWorkerSet", {}, {}), "spec": []}, WHERE["LeaderWorkerSet"][:1]),
        (pod(), [""]),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, []),
        ({"apiVersion": "example.com/v1", "kind": "Pod"}, []),
        ({"apiVersion": None, "kind": None}, []),
    ],
    ids=["no jobs", "no spec", "invalid", "pod", "another kind", "another group", "null"],
)
def test_invalid_workload_has_an_empty_template(document: dict[str, Any], paths: list[str]) -> None:
    assert [path for path, _ in preview.templates(document)] == paths
    assert preview.concerns(document) is bool(paths)


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param(
            pod({"delay": 15}),
            "the object is invalid: Expected str, got int - at $.metadata.annotations[...]; "
            'annotation values must be strings, such as "15"',
            id="number",
        ),
        pytest.param({**pod(), "spec": []}, "Expected object, got array", id="list as spec"),
        pytest.param({**pod(), "spec": None}, "Expected object", id="null spec"),
        pytest.param({**pod(), "metadata": "x"}, "Expected object, got str", id="text as metadata"),
    ],
)
def test_object_that_the_api_server_would_reject_is_rejected(document: Any, found: str) -> None:
    assert found in previewed(document).refusals[0]
    assert "AdmissionReview" not in previewed(document).refusals[0]


def test_forged_finalizer_is_rejected() -> None:
    refusals = previewed(pod({}, finalizers=["holdfast.dev/sticky"])).refusals
    assert "is reserved for Holdfast" in refusals[0]


@pytest.mark.parametrize(
    ("document", "kinds"),
    [
        pytest.param(None, [], id="an empty document"),
        pytest.param("text", [], id="string"),
        pytest.param(pod(), ["Pod"], id="one"),
        pytest.param({"kind": "List", "items": [pod(), pod()]}, ["Pod", "Pod"], id="a list"),
        pytest.param({"kind": "PodList", "items": [pod()]}, ["Pod"], id="a typed list"),
    ],
)
def test_objects(document: Any, kinds: list[str]) -> None:
    assert [manifest["kind"] for manifest in preview.objects(document)] == kinds


def test_partial_manifest_is_previewed() -> None:
    """A kustomize patch has no containers, and often no spec."""
    document = workload("Deployment", "apps", {"delay": "15"})
    del document["spec"]["template"]["spec"]
    result = previewed(document)
    assert result.refusals == []
    assert "+  schedulingGates:" in result.diff
    assert "+  - name: holdfast.dev/delay" in result.diff
    del document["spec"]["template"]["metadata"]
    assert previewed(document).refusals == []

    without_spec = {key: value for key, value in pod({"type": "space"}).items() if key != "spec"}
    assert "+spec:" in previewed(without_spec).diff
    assert previewed({**without_spec, "metadata": {"name": "web"}}).diff == []


def test_dry_run_compares_only_fields_that_holdfast_sets() -> None:
    written = {"annotations": {"a": "b"}, "labels": {"holdfast.dev/held": "true"}}
    stored = {
        "metadata": {**written, "uid": "u", "finalizers": []},
        "spec": {"schedulingGates": [{"name": "g"}], "containers": [], "nodeName": "n"},
        "status": {},
    }
    spec = {"schedulingGates": [{"name": "g"}]}
    assert server_preview.decided(stored) == {"metadata": written, "spec": spec}


def test_template_of_an_unknown_kind() -> None:
    annotations = {"delay": "15", "holdfast.dev/delai": "15"}
    result = previewed(workload("Rollout", "argoproj.io", annotations))

    assert preview.concerns(workload("Rollout", "argoproj.io", {}))
    assert not preview.concerns({"apiVersion": "argoproj.io/v1", "kind": "Rollout", "spec": None})
    assert "+  schedulingGates:" in result.diff
    unknown_kind, unknown_key = result.warnings
    assert unknown_kind == (
        "Holdfast does not know kind Rollout of argoproj.io/v1: its template is not checked at "
        "kubectl apply, only its pods when they are created"
    )
    effect = "has no effect: did you mean holdfast.dev/delay?"
    assert unknown_key == f'holdfast: unknown annotation "holdfast.dev/delai" {effect}'


SELECTED = make_pipeline(
    "admission: {namespaceSelector: {matchLabels: {team: a}}, "
    "objectSelector: {matchLabels: {app: web}}}"
)


@pytest.mark.parametrize(
    ("namespace", "labels", "why"),
    [
        pytest.param("kube-system", {"app": "web"}, "Holdfast never serves", id="excluded"),
        pytest.param("b", {"app": "web"}, "admission.namespaceSelector", id="namespace"),
        pytest.param("a", {}, "the pod does not match admission.objectSelector", id="pod"),
        pytest.param("a", {"app": "web"}, "", id="served"),
    ],
)
def test_pods_not_sent_to_holdfast(namespace: str, labels: dict[str, str], why: str) -> None:
    scope = AdmissionScope(SELECTED.profiles.selectors, lambda name: {"team": name})
    preview_of = OfflinePreview(SELECTED, namespace, CREATED_MS, scope).preview
    web = workload("Job", "batch", {"delay": "15"})
    del web["metadata"]["namespace"]
    web["spec"]["template"]["metadata"]["labels"] = labels
    for document in (pod({"delay": "15"}, labels=labels), web):
        (result,) = preview_of(document)
        assert bool(result.diff) is not bool(why)
        assert bool(result.warnings) is bool(why)
        assert why in "".join(result.warnings)
    (plain_result,) = preview_of(pod(labels=labels))
    assert not plain_result.warnings
    assert not plain_result.diff
    assert why in plain_result.unserved


def test_template_is_validated_even_if_its_pods_are_not_selected() -> None:
    scope = AdmissionScope(SELECTED.profiles.selectors, lambda _: {"team": "a"})
    preview_of = OfflinePreview(SELECTED, "shop", CREATED_MS, scope).preview
    assert preview_of(workload("Job", "batch", {"delay": "soon"}))[0].refusals


def test_workload_namespace_selects_the_profile() -> None:
    pipeline = make_pipeline(
        "profiles: [{schedulerName: '*'}, {name: shop, schedulerName: '*', namespaces: [shop]}]"
    )
    job = workload("Job", "batch", {"delay": "15"})
    job["spec"]["template"]["metadata"]["namespace"] = "elsewhere"  # controllers ignore it
    (result,) = OfflinePreview(pipeline, "default", CREATED_MS).preview(job)
    assert "+    holdfast.dev/profile: shop" in result.diff


@pytest.mark.parametrize(
    ("window", "opens"),
    [
        pytest.param("Mon 09:00-17:00", "opens at 2026-03-02T09:00:00Z", id="closed"),
        pytest.param("Sun 09:00-17:00", "open until 2026-03-01T17:00:00Z", id="open"),
    ],
)
def test_window_summary_says_when_it_opens_or_closes(window: str, opens: str) -> None:
    (window_step,) = (step for step in previewed(pod({WINDOW: window})).steps if step.changes)
    assert window_step.summary == f"adds scheduling gate {WINDOW}; {opens}"
    assert previewed(pod({WINDOW: "Mon"})).refusals


@pytest.mark.timeout(60)
def test_fields_that_holdfast_does_not_write_are_not_compared() -> None:
    """Comparing these would take hours."""
    manifest = pod({"delay": "15"})
    words = [chr(97 + number % 26) + chr(97 + number % 11) for number in range(200_000)]
    manifest["spec"]["containers"] = [{"name": "main", "args": words}]
    diff = previewed(manifest).diff
    assert "+  schedulingGates:" in diff
    assert len(diff) < 20


@pytest.mark.timeout(60)
def test_paths_of_a_large_manifest_take_linear_time() -> None:
    manifest = pod({"delay": "15"})
    manifest["spec"]["x" * 1_000_000] = [{"annotations": {"a": "b"}}] * 300_000
    assert previewed(manifest).warnings == []
    manifest["spec"]["y"] = [{"annotations": {"holdfast.dev/delay": "1"}}] * 100
    warnings = previewed(manifest).warnings
    assert len(warnings) == 20
    assert warnings[0].startswith("spec.y[0].annotations is not a field: move ")


def test_misplaced_annotations_of_a_pod_are_a_warning() -> None:
    document = pod({})
    document["spec"]["annotations"] = {"holdfast.dev/delay": "15", "x": "y"}
    assert list(previewed(document).warnings) == [
        'spec.annotations is not a field: move "holdfast.dev/delay" to metadata.annotations'
    ]
