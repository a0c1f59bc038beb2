import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from holdfast.webhook.errors import PluginFailedError, UndecidedError, UnreachableError
from holdfast.webhook.framework.json_patch import applied, edited, patch
from holdfast.webhook.framework.plugin import (
    Code,
    Context,
    Plugin,
    Result,
    error,
    reject,
    skip,
    success,
)
from holdfast.webhook.framework.profiles import Verdict
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
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
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload
from tests.support.builders import (
    CREATED_MS,
    GATE,
    Measured,
    make_delay,
    make_pipeline,
    make_pod,
    read_pod,
    read_review,
)
from tests.support.scripted import (
    Answer,
    Blocking,
    Holding,
    HoldingToo,
    Other,
    Scripted,
    Tightening,
    answering,
    pipeline_of,
    raising,
)


def relevant_review(annotations: Mapping[str, str] | None = None, **fields: Any) -> PodReview:
    """Make a review that scripted plugins handle, including those that may block."""
    return read_review(make_pod({"scripted": "", **(annotations or {})}), **fields)


def test_new_pod_with_allowed_annotation_is_rejected() -> None:
    asked = {"delay": "3600", ALLOWED_ANNOTATION: "delay"}
    pod, pipeline = make_pod(asked, gates=[GATE]), make_pipeline()
    mutated = pipeline.mutate(read_review(pod), now_ms=CREATED_MS)
    assert RemoveAnnotation(ALLOWED_ANNOTATION) in mutated.edits
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert "holdfast.dev/allowed: a new pod cannot have it" in verdict.message
    stored = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(stored, now_ms=CREATED_MS).code is not Code.REJECT


NEVER_HELD = "is not a profile with gate holdfast.dev/approval: call Holdfast last"


def test_new_pod_with_replaced_profile_is_rejected() -> None:
    pipeline = make_pipeline(PROFILES)
    asked = {APPROVAL: "release 2.4", PROFILE_ANNOTATION: "spacecloud"}
    pod = make_pod(asked, gates=[APPROVAL])
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert verdict.reasons == [f'annotation holdfast.dev/profile: "spacecloud" {NEVER_HELD}']
    # a copy on a node, which no plugin holds, and a profile that also holds the pod
    for one in (make_pod(asked, node="n1"), make_pod(asked | {PROFILE_ANNOTATION: "mine"})):
        assert "profile" not in pipeline.validate(read_review(one), now_ms=CREATED_MS).message
    stored = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(stored, now_ms=CREATED_MS).code is not Code.REJECT


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


# --- the profile -------------------------------------------------------------------------------

PROFILES = """
profiles:
- schedulerName: "*"
- schedulerName: mine
- schedulerName: spacecloud
  plugins: {disabled: [{name: '*'}]}
"""


@pytest.mark.parametrize("scheduler", ["", "default-scheduler"])
def test_pod_without_scheduler_name_uses_default_scheduler_profile(scheduler: str) -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: '*'}, {schedulerName: default-scheduler}]")
    profile = pipeline.profiles.select(read_pod(scheduler=scheduler))

    assert profile is not None
    assert profile.name == "default-scheduler"


@pytest.mark.parametrize(
    ("annotations", "scheduler", "expected"),
    [
        pytest.param({}, "mine", "mine", id="by schedulerName"),
        pytest.param({}, "default-scheduler", "*", id="catch-all"),
        pytest.param({}, "", "*", id="no schedulerName"),
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

    assert profile is not None
    assert expected == profile.name


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
    chosen = {PROFILE_ANNOTATION: "changed by a user"}

    for review, name in (
        (read_review(pod), expected),
        (read_review(make_pod(chosen), operation="UPDATE", old=pod), recorded),
    ):
        profile = profiles.select_for(review)
        assert profile is not None
        assert profile.name == name


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

    for profile in (profiles.select_for(review), profiles.select(review.pod)):
        assert profile is not None
        assert profile.name == expected


def test_profile_of_another_namespace_is_ignored() -> None:
    pipeline = make_pipeline(BY_NAMESPACE)
    pod = make_pod({PROFILE_ANNOTATION: "only-lab"}, namespace="shop")

    for profile in (
        pipeline.profiles.select(Pod.of(pod)),
        pipeline.profiles.select_for(read_review(pod, operation="UPDATE", old=pod)),
    ):
        assert profile is not None
        assert profile.name == "shop"


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
    assert patched["metadata"]["annotations"].get(PROFILE_ANNOTATION) == (
        None if rejected else "lab"
    )
    for stored in (pod, patched):
        verdict = pipeline.validate(read_review(stored, namespace=namespace), now_ms=CREATED_MS)
        assert verdict.reasons == (
            [f'annotation holdfast.dev/profile: "*" {NEVER_HELD}'] * rejected
        )


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
    pipeline = make_pipeline(PROFILES)
    verdict = pipeline.mutate(
        read_review(make_pod({"delay": "15"}, scheduler="mine")), now_ms=CREATED_MS
    )

    assert [
        AddGate(GATE),
        SetAnnotation(HELD_ANNOTATION, "delay=15s"),
        SetLabel(HELD_LABEL, "true"),
        SetAnnotation(PROFILE_ANNOTATION, "mine"),
    ] == verdict.edits


def test_removals_alone_do_not_record_the_profile() -> None:
    verdict = make_pipeline().mutate(read_review(make_pod({"delay": "0"})), now_ms=CREATED_MS)

    assert [RemoveAnnotation(HELD_ANNOTATION)] == verdict.edits


def test_profile_annotation_set_by_user_is_removed() -> None:
    pod = make_pod({"delay": "0", PROFILE_ANNOTATION: "*"})
    verdict = make_pipeline().mutate(read_review(pod), now_ms=CREATED_MS)

    assert [RemoveAnnotation(HELD_ANNOTATION), RemoveAnnotation(PROFILE_ANNOTATION)] == (
        verdict.edits
    )


# --- running plugins ---------------------------------------------------------------------------


def test_plugins_run_in_order_and_share_state() -> None:
    def first(_pod: Pod, context: Context) -> Result:
        context.state["seen"] = "first"
        return success(SetAnnotation("a", "1"), warnings=["w1"])

    def second(_pod: Pod, context: Context) -> Result:
        return success(SetAnnotation("b", context.state["seen"]), warnings=["w2"])

    pipeline = pipeline_of(Scripted(first), Other(second))
    verdict = pipeline.mutate(read_review(), now_ms=5)

    assert verdict.edits == [
        SetAnnotation("a", "1"),
        SetAnnotation("b", "first"),
        SetAnnotation(PROFILE_ANNOTATION, "*"),
    ]
    assert verdict.warnings == ["w1", "w2"]


def test_context_has_review_profile_and_time() -> None:
    seen: list[Context] = []

    def note(_pod: Pod, context: Context) -> Result:
        seen.append(context)
        return skip()

    review = read_review()
    pipeline_of(Scripted(note), name="default-scheduler").mutate(review, now_ms=5)

    assert [Context(review, "default-scheduler", 5, {})] == seen


def test_plugins_after_an_added_gate_see_the_pod_as_held() -> None:
    seen: list[object] = []

    def look(_pod: Pod, context: Context) -> Result:
        seen.append(context.held)
        return success(SetAnnotation("a", "1"), AddGate(GATE)) if len(seen) == 2 else success()

    pipeline_of(Scripted(look), Other(look), Blocking(look)).mutate(relevant_review(), now_ms=0)

    assert seen == [False, False, True]


def test_rejection_includes_reasons_from_validate() -> None:
    pipeline = pipeline_of(
        Scripted(answering(success()), answering(reject("third"))),
        Other(answering(reject("first")), answering(reject("said already"))),
        Blocking(answering(reject("second")), answering(reject("said already"))),
        HoldingToo(),
        Tightening(lambda _: skip()),
    )

    verdict = pipeline.mutate(relevant_review(), now_ms=0)

    assert Verdict(Code.REJECT, (), ["first", "second", "third"]) == verdict
    assert verdict.message == "first; second; third"


def test_validate_is_not_called_after_mutate_skipped() -> None:
    never_asked = raising(AssertionError("asked"))
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(answering(skip()), never_asked),
        Other(answering(reject("no"))),
        Blocking(answering(skip()), never_asked),
        observe=observe,
    )

    assert pipeline.mutate(relevant_review(), now_ms=0).reasons == ["no"]
    assert [plugin for plugin, point, *_ in observe.seen if point == "validate"] == []


def test_validate_of_rejected_pod_sees_the_patched_pod() -> None:
    seen: list[Any] = []

    def look(pod: Pod, context: Context) -> Result:
        seen.append((pod, context.review.pod, context.review.whole_pod(), context.state))
        return success()

    manifest = make_pod({"a~/b": "1", "gone": "2"}, gates=["x"])
    edits = success(AddGate(GATE), SetAnnotation("a~/b", "3"), RemoveAnnotation("gone"))
    pipeline_of(Scripted(answering(edits), look), Other(answering(reject("no")))).mutate(
        read_review(manifest), now_ms=0
    )

    expected = make_pod({"a~/b": "3"}, gates=["x", GATE])
    assert [(Pod.of(expected), Pod.of(expected), expected, {"held": True})] == seen


WRONG_TYPE = success(SetAnnotation("a", cast(Any, 5)))


@pytest.mark.parametrize(
    ("pod", "plugin"),
    [
        pytest.param(make_pod(), Scripted(validate=raising(KeyError())), id="validate raises"),
        pytest.param(make_pod(), Scripted(validate=answering(error("x"))), id="validate fails"),
        pytest.param(make_pod(), Scripted(raising(KeyError())), id="mutate raises"),
        pytest.param({}, Scripted(answering(success(AddGate(GATE)))), id="no spec to edit"),
        pytest.param(make_pod(), Scripted(answering(WRONG_TYPE)), id="an edit of the wrong type"),
    ],
)
def test_later_failure_does_not_replace_a_rejection(pod: Any, plugin: Plugin) -> None:
    pipeline = pipeline_of(Other(answering(reject("no"))), plugin)

    verdict = pipeline.mutate(read_review(pod), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REJECT, ["no"])


def test_rejection_of_large_pod_omits_validate_reasons() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(reject("two"))), Other(answering(reject("one")))
    )
    small, large = make_pod({"other": "x" * 200_000}), make_pod({"other": "x" * 300_000})

    assert pipeline.mutate(read_review(small), now_ms=0).reasons == ["one", "two"]
    assert pipeline.mutate(read_review(large), now_ms=0).reasons == ["one"]


def test_validate_collects_all_rejections_and_warnings() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(reject("first"))),
        Other(validate=answering(success(warnings=["mind"]))),
        Blocking(validate=answering(reject("second"))),
    )

    assert Verdict(Code.REJECT, (), ["first", "second"], ["mind"]) == pipeline.validate(
        relevant_review(), now_ms=0
    )


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_run_stops_at_first_rejection_without_run_all(point: str) -> None:
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(),
        Other(answering(reject("first")), answering(reject("first"))),
        Blocking(answering(reject("second")), answering(reject("second"))),
        run_all=False,
        observe=observe,
    )

    verdict = getattr(pipeline, point)(relevant_review(), now_ms=0)
    assert verdict.reasons == ["first"]
    assert [plugin for plugin, *_ in observe.seen] == ["scripted", "other", ""]


def test_template_rejection_names_its_path() -> None:
    content = {"metadata": {"name": "w"}, "spec": {"template": {"metadata": {}}}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    pipeline = pipeline_of(Scripted(validate=answering(reject("no"))))
    verdict = pipeline.validate(read_review(content, kind=kind), now_ms=0)

    assert verdict.reasons == ["spec.template.metadata: no"]


NONSENSE: Any = object()
NO_RESULT = "TypeError: it returned %s, not a Result"
NO_LIST = "TypeError: it returned %s, not a list of edits or warnings"


@pytest.mark.parametrize("point", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(raising(KeyError("x")), "KeyError: 'x'", id="raises"),
        pytest.param(answering(cast(Any, None)), NO_RESULT % "NoneType", id="returns None"),
        pytest.param(
            answering(Result(cast(Any, "Success"))), NO_RESULT % "Result", id="an unknown code"
        ),
        pytest.param(
            answering(success(AddGate("a"), NONSENSE)),
            "TypeError: it returned the edit object; use holdfast.edits",
            id="an unknown edit",
        ),
        pytest.param(
            answering(Result(edits=cast(Any, iter([AddGate("a")])))),
            NO_LIST % "list_iterator",
            id="edits from an iterator",
        ),
        pytest.param(
            answering(Result(Code.SKIP, [AddGate("a")])),
            "TypeError: it returned edits with Skip; use success",
            id="skip with edits",
        ),
        pytest.param(
            answering(Result(warnings="mind")), NO_LIST % "str", id="warnings as a string"
        ),
        pytest.param(
            answering(success(warnings=["mind", cast(Any, KeyError("x"))])),
            "TypeError: it returned the warning KeyError; use text",
            id="a warning that is not a string",
        ),
        pytest.param(
            answering(reject(cast(Any, KeyError("x")))),
            "TypeError: it returned the reason KeyError; use text",
            id="a reason that is not a string",
        ),
        pytest.param(answering(reject("caf\ud800")), "UnicodeEncodeError: ", id="a lone surrogate"),
    ],
)
def test_failing_plugin_is_named_and_measured(point: str, answer: Answer, why: str) -> None:
    observe = Measured()
    pipeline = pipeline_of(Scripted(answer, answer), Other(), observe=observe)

    with pytest.raises(PluginFailedError) as caught:
        getattr(pipeline, point)(read_review(), now_ms=0)

    assert str(caught.value).startswith(f"plugin 'scripted' failed in {point}: {why}")
    assert caught.value.__cause__ is not None
    assert [("scripted", point, "Error", "*"), ("", point, "Error", "*")] == observe.seen


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_failed_lookup_raises_undecided_error(point: str) -> None:
    observe = Measured()
    fails = raising(UnreachableError("https://api does not answer: timed out"))
    pipeline = pipeline_of(Scripted(fails, fails), observe=observe)
    with pytest.raises(UndecidedError) as caught:
        getattr(pipeline, point)(read_review(), now_ms=0)

    assert str(caught.value) == (
        "plugin 'scripted' could not look up what it needs: https://api does not answer: timed out"
    )
    assert [status for _, _, status, _ in observe.seen] == ["Error", "Error"]


@pytest.mark.parametrize("point", ["mutate", "validate"])
@pytest.mark.parametrize(
    "reason",
    ["its list cannot be read", cast(Any, OSError("its list cannot be read"))],
    ids=["text", "an exception"],
)
def test_error_result_fails_the_plugin(reason: str, point: str) -> None:
    observe = Measured()
    answer = answering(error(reason))
    with pytest.raises(PluginFailedError) as caught:
        getattr(pipeline_of(Scripted(answer, answer), observe=observe), point)(
            read_review(), now_ms=0
        )

    assert str(caught.value) == f"plugin 'scripted' failed in {point}: its list cannot be read"
    assert [status for _, _, status, _ in observe.seen] == ["Error", "Error"]


def test_keyboard_interrupt_is_propagated() -> None:
    with pytest.raises(KeyboardInterrupt):
        pipeline_of(Scripted(raising(KeyboardInterrupt()))).mutate(read_review(), now_ms=0)


def test_each_call_and_the_total_are_measured() -> None:
    observe = Measured()
    ticks = itertools.count(0.0, 0.25)
    pipeline = pipeline_of(
        Scripted(answering(success())),
        Other(answering(skip())),
        Holding(),
        Blocking(answering(reject("no"))),
        HoldingToo(),
        observe=observe,
        timer=lambda: next(ticks),
    )
    pipeline.mutate(relevant_review(), now_ms=0)

    assert observe.seen == [
        ("scripted", "mutate", "Success", "*"),
        ("other", "mutate", "Skip", "*"),
        ("holding", "mutate", "Success", "*"),
        ("blocking", "mutate", "Reject", "*"),
        ("holding-too", "mutate", "Success", "*"),
        ("scripted", "validate", "Success", "*"),
        ("holding", "validate", "Success", "*"),
        ("holding-too", "validate", "Success", "*"),
        ("", "mutate", "Reject", "*"),
    ]
    assert observe.seconds == [0.25] * 8 + [4.25]


@pytest.mark.parametrize(
    ("profile", "plugins", "expected"),
    [
        pytest.param("*", [("scripted", "validate", "Success", "*")], "*", id="matching profile"),
        pytest.param("mine", [], "", id="no profile"),
    ],
)
def test_validate_total_is_measured(
    profile: str, plugins: list[tuple[str, str, str, str]], expected: str
) -> None:
    observe = Measured()
    pipeline_of(Scripted(), name=profile, observe=observe).validate(read_review(), now_ms=0)

    assert [*plugins, ("", "validate", "Success", expected)] == observe.seen


VM = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


class Marked(Blocking):
    """May block, and reads an annotation of the VM itself."""

    name = "marked"
    workload_keys = {"VirtualMachine": ("mark",)}  # noqa: RUF012

    def __init__(self, seen: list[str]) -> None:
        super().__init__(self._recording(seen, "mutate"), self._recording(seen, "validate"))
        self._seen = seen

    @staticmethod
    def _recording(seen: list[str], point: str) -> Answer:
        def note(_pod: Pod, _context: Context) -> Result:
            seen.append(point)
            return success()

        return note

    def validate_workload(self, _workload: Workload, _old: Workload | None) -> Result:
        self._seen.append("validate_workload")
        return success()


def make_workload(
    own: Mapping[str, str] | None = None, template: Mapping[str, str] | None = None
) -> Any:
    metadata = {"name": "w", "annotations": own or {}}
    return {
        "metadata": metadata,
        "spec": {"template": {"metadata": {"annotations": template or {}}}},
    }


OVER_LIMIT = make_pod({"scripted": ""})
OVER_LIMIT["spec"]["tolerations"] = [{}] * 1_001
UNRELATED, RELEVANT = make_pod({"delay": "15"}), make_pod({"scripted": "", "delay": "15"})
BLOCKING_CALLS = [
    pytest.param(read_review(UNRELATED), [], id="unrelated pod"),
    pytest.param(read_review(RELEVANT), ["validate"], id="relevant pod"),
    pytest.param(read_review(OVER_LIMIT), [], id="pod over a limit"),
    pytest.param(
        read_review(UNRELATED, operation="UPDATE", old=RELEVANT),
        ["validate"],
        id="key removed",
    ),
    pytest.param(
        read_review(UNRELATED, operation="UPDATE", old=make_pod({"delay": "16"})),
        [],
        id="another plugin's key changed",
    ),
    pytest.param(read_review(make_workload(), kind=VM), [], id="unrelated VM"),
    pytest.param(
        read_review(make_workload({"mark": ""}), kind=VM), ["validate_workload"], id="marked VM"
    ),
    pytest.param(
        read_review(make_workload(), kind=VM, operation="UPDATE", old=make_workload({"mark": ""})),
        ["validate_workload"],
        id="mark removed",
    ),
    pytest.param(
        read_review(make_workload({"mark": ""}), kind=DEPLOYMENT), [], id="mark on another kind"
    ),
    pytest.param(
        read_review(make_workload(template={"scripted": ""}), kind=DEPLOYMENT),
        ["validate"],
        id="relevant template",
    ),
    pytest.param(
        read_review(make_workload({"mark": ""}, {"scripted": ""}), kind=VM),
        ["validate_workload", "validate"],
        id="marked VM and relevant template",
    ),
]


@pytest.mark.parametrize(("review", "expected_calls"), BLOCKING_CALLS)
def test_blocking_plugin_is_called_only_for_reviews_that_may_block(
    review: PodReview, expected_calls: list[str]
) -> None:
    """Other reviews are answered in the event loop, which a blocking plugin would stall."""
    seen: list[str] = []
    pipeline = pipeline_of(Scripted(), Marked(seen))

    pipeline.validate(review, now_ms=0)
    assert seen == expected_calls
    assert pipeline.may_block(review) == bool(expected_calls)


@pytest.mark.parametrize(
    "annotations", [{"scripted": ""}, {"delay": "15"}], ids=["relevant", "unrelated"]
)
def test_blocking_plugin_is_called_only_for_new_pods_it_concerns(
    annotations: dict[str, str],
) -> None:
    seen: list[str] = []
    observe = Measured()
    pipeline = pipeline_of(Marked(seen), observe=observe)

    pipeline.mutate(read_review(make_pod(annotations)), now_ms=0)
    assert seen == ["mutate"] * ("scripted" in annotations)
    code = "Success" if seen else "Skip"
    assert observe.seen[0] == ("marked", "mutate", code, "*")


class RaisingConcerns(Blocking):
    """May block, and raises in `concerns`."""

    def concerns(self, _pod: Pod) -> bool:
        raise KeyError("x")


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_plugin_that_raises_in_concerns_is_named(point: str) -> None:
    with pytest.raises(PluginFailedError, match=f"'blocking' failed in {point}: KeyError: 'x'"):
        getattr(pipeline_of(RaisingConcerns()), point)(read_review(), now_ms=0)


@pytest.mark.parametrize("ending", [success(), None], ids=["returns", "raises"])
@pytest.mark.parametrize("point", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(Blocking, "blocking", id="may block"),
        pytest.param(Scripted, None, id="cannot block"),
    ],
)
def test_running_plugin(
    kind: Callable[..., Plugin], expected: str | None, point: str, ending: Result | None
) -> None:
    review, another = relevant_review(), relevant_review()
    seen: list[str | None] = []

    def look(_pod: Pod, _context: Context) -> Result:
        running = pipeline.runner.running_plugin
        seen.extend([running(review), running(another)])
        if ending is None:
            raise KeyError
        return ending

    pipeline = pipeline_of(Other(), kind(look, look))
    assert pipeline.runner.running_plugin(review) is None
    try:
        getattr(pipeline, point)(review, now_ms=0)
    except PluginFailedError:
        assert ending is None

    assert seen == [expected, None]
    assert pipeline.runner.running_plugin(review) is None


# --- finalizers of Holdfast --------------------------------------------------------------------

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
    ours = [f"holdfast.dev/x{number // 2}" for number in range(4_000)]
    review = read_review(make_pod(finalizers=[THEIRS, *ours]))

    verdict = getattr(pipeline_of(make_delay()), point)(review, now_ms=0)

    named = [
        f'finalizer "holdfast.dev/x{n}" is reserved for Holdfast: remove it '
        "(a restore should leave out the pods of VMs)"
        for n in range(3)
    ]
    assert verdict.reasons == [*named, "1,997 more finalizers are reserved as well"]
