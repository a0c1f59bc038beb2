"""Which profile a pod belongs to, and how that is recorded."""

import json

import pytest

from holdfast.webhook.errors import PluginFailedError
from holdfast.webhook.framework.json_patch import applied, patch
from holdfast.webhook.framework.plugin import (
    Code,
    Context,
    Result,
    skip,
    success,
)
from holdfast.webhook.framework.profiles import Profile, Verdict
from holdfast.webhook.model.annotations import (
    HELD_ANNOTATION,
    HELD_LABEL,
    PROFILE_ANNOTATION,
)
from holdfast.webhook.model.approvals import KEY as APPROVAL
from holdfast.webhook.model.edits import (
    AddGate,
    RemoveAnnotation,
    SetAnnotation,
    SetLabel,
    SetSchedulerName,
)
from holdfast.webhook.model.objects import Pod
from tests.support.builders import (
    CREATED_MS,
    GATE,
    make_pipeline,
    make_pod,
    read_pod,
    read_review,
)
from tests.support.scripted import (
    Scripted,
    pipeline_of,
)
from tests.unit.framework.reviews import NEVER_HELD, PROFILES, edited, relevant_review


def name_of(profile: Profile | None) -> str | None:
    return profile.name if profile else None


@pytest.mark.parametrize("scheduler", ["", "default-scheduler"])
def test_pod_without_scheduler_name_uses_default_scheduler_profile(scheduler: str) -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: '*'}, {schedulerName: default-scheduler}]")

    assert name_of(pipeline.profiles.select(read_pod(scheduler=scheduler))) == "default-scheduler"


@pytest.mark.parametrize(
    ("annotations", "scheduler", "expected"),
    [
        pytest.param({}, "mine", "mine", id="by schedulerName"),
        pytest.param({}, "default-scheduler", "*", id="catch-all"),
        pytest.param({PROFILE_ANNOTATION: "spacecloud"}, "mine", "spacecloud", id="as recorded"),
        pytest.param({PROFILE_ANNOTATION: "*"}, "mine", "*", id="catch-all, as recorded"),
        pytest.param(
            {PROFILE_ANNOTATION: "gone"}, "mine", "mine", id="recorded profile no longer exists"
        ),
        pytest.param({PROFILE_ANNOTATION: ""}, "mine", "mine", id="empty record"),
    ],
)
def test_profile(annotations: dict[str, str], scheduler: str, expected: str) -> None:
    profile = make_pipeline(PROFILES).profiles.select(read_pod(annotations, scheduler=scheduler))

    assert name_of(profile) == expected


def delay_config(**args: str) -> str:
    return f"pluginConfig: [{{name: delay, args: {json.dumps(args)}}}]"


TWO_LIMITS = f"""
profiles:
- {{schedulerName: batch-scheduler, {delay_config(maxDelay="24h", schedulerName="batch-held")}}}
- {{schedulerName: "*", {delay_config(schedulerName="rest-held")}}}
"""


@pytest.mark.parametrize(
    ("recorded", "scheduler", "expected"),
    [
        pytest.param("*", "batch-scheduler", "batch-scheduler", id="a laxer profile"),
        pytest.param("batch-scheduler", "", "*", id="a stricter profile"),
        pytest.param(
            "batch-scheduler",
            "batch-held",
            "batch-scheduler",
            id="recorded profile set the scheduler",
        ),
        pytest.param("*", "rest-held", "*", id="catch-all set the scheduler"),
    ],
)
def test_new_pod_cannot_choose_its_profile(recorded: str, scheduler: str, expected: str) -> None:
    profiles = make_pipeline(TWO_LIMITS).profiles
    pod = make_pod({PROFILE_ANNOTATION: recorded}, scheduler=scheduler)
    annotations = {PROFILE_ANNOTATION: "changed by a user"}

    for review, name in (
        (read_review(pod), expected),
        (read_review(make_pod(annotations), operation="UPDATE", old=pod), recorded),
    ):
        assert name_of(profiles.select_for(review)) == name


def test_profile_that_a_namespace_does_not_use_cannot_be_chosen() -> None:
    """A profile for the namespace takes precedence, so `mutate` cannot have recorded the other."""
    pipeline = make_pipeline(
        "profiles: [{name: lax, schedulerName: '*', plugins: {disabled: [{name: approval}]}, "
        f"{delay_config(schedulerName='held')}}}, "
        "{name: strict, schedulerName: '*', namespaces: [team-a]}]"
    )
    pod = make_pod({PROFILE_ANNOTATION: "lax", APPROVAL: "x"}, scheduler="held", namespace="team-a")
    review = read_review(pod, namespace="team-a")
    edits = pipeline.mutate(review, now_ms=CREATED_MS).edits
    assert AddGate(APPROVAL) in edits
    assert SetAnnotation(PROFILE_ANNOTATION, "strict") in edits
    assert pipeline.validate(review, now_ms=CREATED_MS).code is Code.REJECT


BY_NAMESPACE = """
profiles:
- {schedulerName: "*"}
- {name: shop, schedulerName: "*", namespaces: [shop]}
- {schedulerName: batch}
- {name: batch-shop, schedulerName: batch, namespaces: [shop, store]}
- {name: only-lab, schedulerName: lab, namespaces: [lab]}
"""


@pytest.mark.parametrize(
    ("scheduler", "namespace", "expected"),
    [
        ("", "default", "*"),
        ("", "shop", "shop"),
        ("batch", "default", "batch"),
        ("batch", "store", "batch-shop"),
        ("lab", "lab", "only-lab"),
        ("lab", "shop", "shop"),
        ("lab", "default", "*"),
    ],
)
def test_profile_for_the_namespace_takes_precedence(
    scheduler: str, namespace: str, expected: str
) -> None:
    profiles = make_pipeline(BY_NAMESPACE).profiles
    pod = make_pod(scheduler=scheduler, namespace=namespace)
    review = read_review(pod, namespace=namespace)

    assert name_of(profiles.select_for(review)) == expected
    assert name_of(profiles.select(review.pod)) == expected


def test_profile_of_another_namespace_is_ignored() -> None:
    profiles = make_pipeline(BY_NAMESPACE).profiles
    pod = make_pod({PROFILE_ANNOTATION: "only-lab"}, namespace="shop")

    assert name_of(profiles.select(Pod.of(pod))) == "shop"
    assert name_of(profiles.select_for(read_review(pod, operation="UPDATE", old=pod))) == "shop"


ONLY_LAB_HOLDS = """
profiles:
- {schedulerName: "*", plugins: {disabled: [{name: approval}]}}
- {name: lab, schedulerName: "*", namespaces: [lab]}
"""


@pytest.mark.parametrize(("namespace", "rejected"), [("default", True), ("lab", False)])
def test_new_pod_cannot_use_profile_of_another_namespace(namespace: str, rejected: bool) -> None:
    pipeline = make_pipeline(ONLY_LAB_HOLDS)
    pod = make_pod({PROFILE_ANNOTATION: "lab", APPROVAL: "x"}, gates=[APPROVAL])
    review = read_review(pod, namespace=namespace)

    patched = applied(pod, patch(review.pod, pipeline.mutate(review, now_ms=CREATED_MS).edits))
    recorded = patched["metadata"]["annotations"].get(PROFILE_ANNOTATION)
    assert recorded == (None if rejected else "lab")
    reasons = [f'annotation holdfast.dev/profile: "*" {NEVER_HELD}'] * rejected
    for candidate in (pod, patched):
        verdict = pipeline.validate(read_review(candidate, namespace=namespace), now_ms=CREATED_MS)
        assert verdict.reasons == reasons


def test_undeclared_scheduler_name_fails_the_plugin() -> None:
    pipeline = pipeline_of(Scripted(lambda _pod, _context: success(SetSchedulerName("mine"))))

    with pytest.raises(PluginFailedError, match="which its scheduler_names do not list"):
        pipeline.mutate(relevant_review(), now_ms=CREATED_MS)


def test_reinvocation_keeps_the_recorded_profile() -> None:
    """Another webhook changed the pod in between, so the plugin has nothing left to do."""

    def choose(pod: Pod, _context: Context) -> Result:
        is_done = pod.spec.scheduler_name == "other"
        return skip() if is_done else success(SetSchedulerName("other"))

    plugin = Scripted(choose)
    plugin.scheduler_names = ("other",)
    pipeline = pipeline_of(plugin)
    review = relevant_review()
    first = edited(review, pipeline.mutate(review, now_ms=CREATED_MS).edits)
    second = edited(first, pipeline.mutate(first, now_ms=CREATED_MS).edits)

    assert first.pod.annotations[PROFILE_ANNOTATION] == "*"
    assert second.pod.annotations == first.pod.annotations


def test_pod_without_matching_profile_is_skipped() -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: mine}]")
    review = read_review(make_pod({"delay": "soon"}))

    assert Verdict(Code.SKIP) == pipeline.mutate(review, now_ms=CREATED_MS)
    assert Verdict(Code.SUCCESS, (), [], []) == pipeline.validate(review, now_ms=CREATED_MS)
    assert not pipeline.may_block(review)


def test_profile_is_recorded_with_other_edits() -> None:
    review = read_review(make_pod({"delay": "15"}, scheduler="mine"))
    verdict = make_pipeline(PROFILES).mutate(review, now_ms=CREATED_MS)

    assert [
        AddGate(GATE),
        SetAnnotation(HELD_ANNOTATION, "delay=15s"),
        SetLabel(HELD_LABEL, "true"),
        SetAnnotation(PROFILE_ANNOTATION, "mine"),
    ] == verdict.edits


@pytest.mark.parametrize(
    ("key", "value"), [(HELD_ANNOTATION, "delay=15s"), (PROFILE_ANNOTATION, "*")]
)
def test_record_set_by_user_is_removed_and_no_profile_is_recorded(key: str, value: str) -> None:
    verdict = make_pipeline().mutate(
        read_review(make_pod({"delay": "0", key: value})), now_ms=CREATED_MS
    )

    assert [RemoveAnnotation(key)] == verdict.edits
