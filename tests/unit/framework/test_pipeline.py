import pytest

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, success
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    HELD_LABEL,
    PROFILE_ANNOTATION,
    RELEASED_ANNOTATION,
)
from holdfast.webhook.model.approvals import KEY as APPROVAL
from holdfast.webhook.model.edits import (
    Edit,
    RemoveAnnotation,
    SetAnnotation,
    SetLabel,
)
from holdfast.webhook.model.objects import Pod
from tests.support.builders import (
    CREATED_MS,
    GATE,
    make_delay,
    make_pipeline,
    make_pod,
    read_review,
)
from tests.support.fakes import apply_patch
from tests.support.scripted import (
    Scripted,
    answering,
    pipeline_of,
)
from tests.unit.framework.reviews import NEVER_HELD, PROFILES


def test_new_pod_with_allowed_annotation_is_rejected() -> None:
    annotations = {"delay": "3600", ALLOWED_ANNOTATION: "delay"}
    pod, pipeline = make_pod(annotations, gates=[GATE]), make_pipeline()
    mutation = pipeline.mutate(read_review(pod), now_ms=CREATED_MS)
    assert RemoveAnnotation(ALLOWED_ANNOTATION) in mutation.edits
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert "holdfast.dev/allowed: a new pod cannot have it" in verdict.message
    update = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(update, now_ms=CREATED_MS).code is not Code.REJECT


class Marking(Scripted):
    name = "marking"
    reserved_annotations = ("mark", "other-mark")
    reserved_labels = ("mark",)


@pytest.mark.parametrize("edits", [[], [SetAnnotation("mark", "ours"), SetLabel("mark", "ours")]])
def test_reserved_keys_have_only_the_values_that_the_plugin_sets(edits: list[Edit]) -> None:
    pod = make_pod(
        {"mark": "x", "other-mark": "x", RELEASED_ANNOTATION: "2099-01-01T00:00:00Z", "a": "1"},
        labels={"mark": "x", HELD_LABEL: "true", "b": "2"},
    )
    plugin = Marking(answering(success(*edits)))
    verdict = pipeline_of(plugin).mutate(read_review(pod), now_ms=CREATED_MS)
    patched = Pod.of(apply_patch(pod, patch(Pod.of(pod), verdict.edits)))
    ours, profile = ({"mark": "ours"}, {PROFILE_ANNOTATION: "*"}) if edits else ({}, {})
    assert patched.annotations == {"a": "1", **ours, **profile}
    assert patched.labels == {"b": "2", **ours}


def test_update_sent_to_mutate_is_not_an_error() -> None:
    """The API server sends none, but others can."""
    review = read_review(make_pod(), operation="UPDATE", old=make_pod({APPROVAL: "why"}))
    assert make_pipeline().mutate(review, now_ms=CREATED_MS).edits == []


def test_new_pod_with_replaced_profile_is_rejected() -> None:
    pipeline = make_pipeline(PROFILES)
    annotations = {APPROVAL: "release 2.4", PROFILE_ANNOTATION: "spacecloud"}
    pod = make_pod(annotations, gates=[APPROVAL])
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert verdict.reasons == [f'annotation holdfast.dev/profile: "spacecloud" {NEVER_HELD}']
    # a copy on a node, which no plugin holds, and a profile that also holds the pod
    mine = annotations | {PROFILE_ANNOTATION: "mine"}
    for copy in (make_pod(annotations, node="n1"), make_pod(mine)):
        assert "profile" not in pipeline.validate(read_review(copy), now_ms=CREATED_MS).message
    update = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(update, now_ms=CREATED_MS).code is not Code.REJECT


ALLOWED = {PROFILE_ANNOTATION: "default-scheduler", ALLOWED_ANNOTATION: "approval"}


@pytest.mark.parametrize("scheduler", ["third-party", "spacecloud"])
@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param(
            {PROFILE_ANNOTATION: "spacecloud"}, f'"spacecloud" {NEVER_HELD}', id="another profile"
        ),
        pytest.param({}, NEVER_HELD, id="no profile"),
        pytest.param(ALLOWED, "annotation holdfast.dev/allowed: a new pod", id="allowed"),
        pytest.param({PROFILE_ANNOTATION: "default-scheduler"}, "", id="the holding profile"),
    ],
)
def test_replaced_scheduler_does_not_bypass_the_hold(
    annotations: dict[str, str], scheduler: str, expected: str
) -> None:
    pipeline = make_pipeline(PROFILES.replace('"*"', "default-scheduler"))
    pod = make_pod(annotations | {APPROVAL: "why"}, gates=[APPROVAL], scheduler=scheduler)
    message = pipeline.validate(read_review(pod), now_ms=CREATED_MS).message
    assert (expected in message) if expected else not message


OURS, THEIRS = "holdfast.dev/sticky", "example.com/x"
FORGED = (
    'finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove it '
    "(a restore should leave out the pods of VMs)"
)


@pytest.mark.parametrize("profile", ["*", "mine"], ids=["matching profile", "no profile"])
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_added_holdfast_finalizer_is_rejected(point: str, profile: str) -> None:
    pipeline = pipeline_of(make_delay(), name=profile)
    review = read_review(make_pod(finalizers=[THEIRS, OURS]))

    verdict = getattr(pipeline, point)(review, now_ms=0)

    assert (verdict.code, verdict.reasons) == (Code.REJECT, [FORGED])


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        pytest.param([OURS], [OURS], [], id="already present"),
        pytest.param([], [OURS], [], id="removed"),
        pytest.param([THEIRS], [], [], id="another owner's"),
        pytest.param([THEIRS, OURS], [THEIRS], [FORGED], id="added"),
    ],
)
def test_finalizers_on_update(new: list[str], old: list[str], expected: list[str]) -> None:
    review = read_review(make_pod(finalizers=new), operation="UPDATE", old=make_pod(finalizers=old))

    assert expected == list(pipeline_of(make_delay()).validate(review, now_ms=0).reasons)


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_reserved_finalizers_are_deduplicated_and_truncated(point: str) -> None:
    finalizer_names = [f"holdfast.dev/x{number // 2}" for number in range(4_000)]
    review = read_review(make_pod(finalizers=[THEIRS, *finalizer_names]))

    verdict = getattr(pipeline_of(make_delay()), point)(review, now_ms=0)

    reasons = [FORGED.replace("sticky", f"x{number}") for number in range(3)]
    assert verdict.reasons == [*reasons, "1,997 more finalizers are reserved as well"]
