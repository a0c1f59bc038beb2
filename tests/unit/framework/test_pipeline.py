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


def concerning(annotations: Mapping[str, str] | None = None, **fields: Any) -> PodReview:
    """Make a review that concerns scripted plugins, also those that may block."""
    return read_review(make_pod({"scripted": "", **(annotations or {})}), **fields)


def test_new_pod_with_allowances_that_others_added_is_rejected() -> None:
    asked = {"delay": "3600", ALLOWED_ANNOTATION: "delay"}
    pod, pipeline = make_pod(asked, gates=[GATE]), make_pipeline()
    mutated = pipeline.mutate(read_review(pod), now_ms=CREATED_MS)
    assert RemoveAnnotation(ALLOWED_ANNOTATION) in mutated.edits
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert "holdfast.dev/allowed: a new pod cannot have it" in verdict.message
    stored = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(stored, now_ms=CREATED_MS).code is not Code.REJECT


NEVER_HELD = "is not a profile with gate holdfast.dev/approval: call Holdfast last"


def test_new_pod_whose_profile_others_replaced_is_rejected() -> None:
    pipeline = make_pipeline(PROFILES)
    asked = {APPROVAL: "release 2.4", PROFILE_ANNOTATION: "spacecloud"}
    pod = make_pod(asked, gates=[APPROVAL])
    verdict = pipeline.validate(read_review(pod), now_ms=CREATED_MS)
    assert verdict.reasons == [f'annotation holdfast.dev/profile: "spacecloud" {NEVER_HELD}']
    # a copy, which no plugin holds, and a profile that holds it as well
    for one in (make_pod(asked, node="n1"), make_pod(asked | {PROFILE_ANNOTATION: "mine"})):
        assert "profile" not in pipeline.validate(read_review(one), now_ms=CREATED_MS).message
    stored = read_review(pod, operation="UPDATE", old=pod)
    assert pipeline.validate(stored, now_ms=CREATED_MS).code is not Code.REJECT


ALLOWED = {PROFILE_ANNOTATION: "default-scheduler", ALLOWED_ANNOTATION: "approval"}


@pytest.mark.parametrize("scheduler", ["third-party", "spacecloud"])
@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({PROFILE_ANNOTATION: "spacecloud"}, f'"spacecloud" {NEVER_HELD}', id="other"),
        pytest.param({}, NEVER_HELD, id="none"),
        pytest.param(ALLOWED, "annotation holdfast.dev/allowed: a new pod", id="allowed"),
        pytest.param({PROFILE_ANNOTATION: "default-scheduler"}, "", id="the one that holds it"),
    ],
)
def test_new_pod_whose_scheduler_others_replaced_keeps_its_hold(
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
def test_pod_or_template_that_names_no_scheduler_is_the_default_ones(scheduler: str) -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: '*'}, {schedulerName: default-scheduler}]")
    profile = pipeline.profiles.select(read_pod(scheduler=scheduler))

    assert profile is not None
    assert profile.name == "default-scheduler"


@pytest.mark.parametrize(
    ("annotations", "scheduler", "expected"),
    [
        pytest.param({}, "mine", "mine", id="by schedulerName"),
        pytest.param({}, "default-scheduler", "*", id="the rest"),
        pytest.param({}, "", "*", id="none named"),
        pytest.param({PROFILE_ANNOTATION: "spacecloud"}, "mine", "spacecloud", id="as recorded"),
        pytest.param({PROFILE_ANNOTATION: "*"}, "mine", "*", id="the rest, as recorded"),
        pytest.param({PROFILE_ANNOTATION: "gone"}, "mine", "mine", id="the recorded one is gone"),
        pytest.param({PROFILE_ANNOTATION: ""}, "mine", "mine", id="nothing is recorded"),
    ],
)
def test_profile(annotations: dict[str, str], scheduler: str, expected: str) -> None:
    profile = make_pipeline(PROFILES).profiles.select(read_pod(annotations, scheduler=scheduler))

    assert profile is not None
    assert expected == profile.name


def delaying(**args: str) -> str:
    return f"pluginConfig: [{{name: delay, args: {json.dumps(args)}}}]"


TWO_LIMITS = f"""
profiles:
- {{schedulerName: batch-scheduler, {delaying(maxDelay="24h", schedulerName="batch-held")}}}
- {{schedulerName: "*", {delaying(schedulerName="rest-held")}}}
"""


@pytest.mark.parametrize(
    ("recorded", "scheduler", "expected"),
    [
        pytest.param("*", "batch-scheduler", "batch-scheduler", id="a laxer one"),
        pytest.param("batch-scheduler", "", "*", id="a stricter one"),
        pytest.param("batch-scheduler", "batch-held", "batch-scheduler", id="it set the scheduler"),
        pytest.param("*", "rest-held", "*", id="the rest set the scheduler"),
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
def test_profile_of_a_namespace_comes_first(scheduler: str, namespace: str, expected: str) -> None:
    profiles = make_pipeline(BY_NAMESPACE).profiles
    pod = make_pod(scheduler=scheduler, namespace=namespace)
    review = read_review(pod, namespace=namespace)

    for profile in (profiles.select_for(review), profiles.select(review.pod)):
        assert profile is not None
        assert profile.name == expected


def test_profile_of_another_namespace_does_not_count() -> None:
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
def test_new_pod_cannot_take_the_profile_of_another_namespace(
    namespace: str, rejected: bool
) -> None:
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


def test_scheduler_that_a_plugin_does_not_declare_is_refused() -> None:
    pipeline = pipeline_of(Scripted(lambda _pod, _context: success(SetSchedulerName("mine"))))

    with pytest.raises(PluginFailedError, match="which its scheduler_names do not list"):
        pipeline.mutate(concerning(), now_ms=CREATED_MS)


def test_second_call_keeps_the_profile_that_the_first_has_recorded() -> None:
    """Another webhook has changed the pod in between, and the plugin has nothing left to do."""

    def choose(pod: Pod, _context: Context) -> Result:
        is_done = pod.spec.scheduler_name == "other"
        return skip() if is_done else success(SetSchedulerName("other"))

    plugin = Scripted(choose)
    plugin.scheduler_names = ("other",)
    pipeline = pipeline_of(plugin)
    review = concerning()
    first = edited(review, pipeline.mutate(review, now_ms=CREATED_MS).edits)
    second = edited(first, pipeline.mutate(first, now_ms=CREATED_MS).edits)

    assert first.pod.annotations[PROFILE_ANNOTATION] == "*"
    assert second.pod.annotations == first.pod.annotations


def test_pods_of_no_profile_are_left_alone() -> None:
    pipeline = make_pipeline("profiles: [{schedulerName: mine}]")
    review = read_review(make_pod({"delay": "soon"}))

    assert Verdict(Code.SKIP) == pipeline.mutate(review, now_ms=CREATED_MS)
    assert Verdict(Code.SUCCESS, (), [], []) == pipeline.validate(review, now_ms=CREATED_MS)
    assert not pipeline.may_block(review)


def test_profile_is_recorded_with_what_is_written() -> None:
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


def test_profile_is_not_recorded_where_nothing_is_written() -> None:
    verdict = make_pipeline().mutate(read_review(make_pod({"delay": "0"})), now_ms=CREATED_MS)

    assert [RemoveAnnotation(HELD_ANNOTATION)] == verdict.edits


def test_profile_that_a_user_recorded_is_removed() -> None:
    pod = make_pod({"delay": "0", PROFILE_ANNOTATION: "*"})
    verdict = make_pipeline().mutate(read_review(pod), now_ms=CREATED_MS)

    assert [RemoveAnnotation(HELD_ANNOTATION), RemoveAnnotation(PROFILE_ANNOTATION)] == (
        verdict.edits
    )


# --- the runner --------------------------------------------------------------------------------


def test_plugins_run_in_order_and_share_a_state() -> None:
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


def test_context_tells_review_profile_and_time() -> None:
    seen: list[Context] = []

    def note(_pod: Pod, context: Context) -> Result:
        seen.append(context)
        return skip()

    review = read_review()
    pipeline_of(Scripted(note), name="default-scheduler").mutate(review, now_ms=5)

    assert [Context(review, "default-scheduler", 5, {})] == seen


def test_plugins_behind_a_gate_know_that_the_pod_is_held() -> None:
    seen: list[object] = []

    def look(_pod: Pod, context: Context) -> Result:
        seen.append(context.held)
        return success(SetAnnotation("a", "1"), AddGate(GATE)) if len(seen) == 2 else success()

    pipeline_of(Scripted(look), Other(look), Blocking(look)).mutate(concerning(), now_ms=0)

    assert seen == [False, False, True]


def test_refused_pod_is_told_what_validate_would_refuse_as_well() -> None:
    pipeline = pipeline_of(
        Scripted(answering(success()), answering(reject("third"))),
        Other(answering(reject("first")), answering(reject("said already"))),
        Blocking(answering(reject("second")), answering(reject("said already"))),
        HoldingToo(),
        Tightening(lambda _: skip()),
    )

    verdict = pipeline.mutate(concerning(), now_ms=0)

    assert Verdict(Code.REJECT, (), ["first", "second", "third"]) == verdict
    assert verdict.message == "first; second; third"


def test_plugin_that_skipped_a_pod_is_spared_its_validate() -> None:
    never_asked = raising(AssertionError("asked"))
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(answering(skip()), never_asked),
        Other(answering(reject("no"))),
        Blocking(answering(skip()), never_asked),
        observe=observe,
    )

    assert pipeline.mutate(concerning(), now_ms=0).reasons == ["no"]
    assert [plugin for plugin, point, *_ in observe.seen if point == "validate"] == []


def test_validate_of_a_refused_pod_sees_it_as_it_would_be_stored() -> None:
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


UNFIT = success(SetAnnotation("a", cast(Any, 5)))


@pytest.mark.parametrize(
    ("pod", "plugin"),
    [
        pytest.param(make_pod(), Scripted(validate=raising(KeyError())), id="validate raises"),
        pytest.param(make_pod(), Scripted(validate=answering(error("x"))), id="validate fails"),
        pytest.param(make_pod(), Scripted(raising(KeyError())), id="mutate raises"),
        pytest.param({}, Scripted(answering(success(AddGate(GATE)))), id="no spec to edit"),
        pytest.param(make_pod(), Scripted(answering(UNFIT)), id="an edit that does not fit"),
    ],
)
def test_another_failure_does_not_replace_a_rejection(pod: Any, plugin: Plugin) -> None:
    pipeline = pipeline_of(Other(answering(reject("no"))), plugin)

    verdict = pipeline.mutate(read_review(pod), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REJECT, ["no"])


def test_large_pod_is_not_decoded_whole_to_tell_what_else_is_wrong() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(reject("two"))), Other(answering(reject("one")))
    )
    small, large = make_pod({"other": "x" * 200_000}), make_pod({"other": "x" * 300_000})

    assert pipeline.mutate(read_review(small), now_ms=0).reasons == ["one", "two"]
    assert pipeline.mutate(read_review(large), now_ms=0).reasons == ["one"]


def test_validate_gathers_all_refusals_and_warnings() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(reject("first"))),
        Other(validate=answering(success(warnings=["mind"]))),
        Blocking(validate=answering(reject("second"))),
    )

    assert Verdict(Code.REJECT, (), ["first", "second"], ["mind"]) == pipeline.validate(
        concerning(), now_ms=0
    )


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_first_refusal_alone_where_not_all_are_to_be_told(point: str) -> None:
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(),
        Other(answering(reject("first")), answering(reject("first"))),
        Blocking(answering(reject("second")), answering(reject("second"))),
        run_all=False,
        observe=observe,
    )

    verdict = getattr(pipeline, point)(concerning(), now_ms=0)
    assert verdict.reasons == ["first"]
    assert [plugin for plugin, *_ in observe.seen] == ["scripted", "other", ""]


def test_refusals_of_a_template_name_its_path() -> None:
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
        pytest.param(answering(cast(Any, None)), NO_RESULT % "NoneType", id="answers nothing"),
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
            id="edits that can be read but once",
        ),
        pytest.param(
            answering(Result(Code.SKIP, [AddGate("a")])),
            "TypeError: it returned edits with Skip; use success",
            id="skips and edits",
        ),
        pytest.param(answering(Result(warnings="mind")), NO_LIST % "str", id="a warning alone"),
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
        pytest.param(answering(reject("caf\ud800")), "UnicodeEncodeError: ", id="half a character"),
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
def test_lookup_that_fails_is_no_fault_of_the_plugin(point: str) -> None:
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
def test_plugin_can_say_that_it_failed(reason: str, point: str) -> None:
    observe = Measured()
    answer = answering(error(reason))
    with pytest.raises(PluginFailedError) as caught:
        getattr(pipeline_of(Scripted(answer, answer), observe=observe), point)(
            read_review(), now_ms=0
        )

    assert str(caught.value) == f"plugin 'scripted' failed in {point}: its list cannot be read"
    assert [status for _, _, status, _ in observe.seen] == ["Error", "Error"]


def test_interrupt_is_no_failure_of_a_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        pipeline_of(Scripted(raising(KeyboardInterrupt()))).mutate(read_review(), now_ms=0)


def test_each_call_is_measured_with_its_status_and_then_the_whole() -> None:
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
    pipeline.mutate(concerning(), now_ms=0)

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
        pytest.param("*", [("scripted", "validate", "Success", "*")], "*", id="of a profile"),
        pytest.param("mine", [], "", id="of none"),
    ],
)
def test_validate_is_measured_as_a_whole(
    profile: str, plugins: list[tuple[str, str, str, str]], expected: str
) -> None:
    observe = Measured()
    pipeline_of(Scripted(), name=profile, observe=observe).validate(read_review(), now_ms=0)

    assert [*plugins, ("", "validate", "Success", expected)] == observe.seen


VM = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


class Marked(Blocking):
    """May block, and has an annotation on VMs themselves."""

    name = "marked"
    workload_keys = {"VirtualMachine": ("mark",)}  # noqa: RUF012

    def __init__(self, seen: list[str]) -> None:
        super().__init__(self._noting(seen, "mutate"), self._noting(seen, "validate"))
        self._seen = seen

    @staticmethod
    def _noting(seen: list[str], point: str) -> Answer:
        def note(_pod: Pod, _context: Context) -> Result:
            seen.append(point)
            return success()

        return note

    def validate_workload(self, _workload: Workload, _old: Workload | None) -> Result:
        self._seen.append("validate_workload")
        return success()


def of_workload(
    own: Mapping[str, str] | None = None, template: Mapping[str, str] | None = None
) -> Any:
    metadata = {"name": "w", "annotations": own or {}}
    return {
        "metadata": metadata,
        "spec": {"template": {"metadata": {"annotations": template or {}}}},
    }


CROWDED = make_pod({"scripted": ""})
CROWDED["spec"]["tolerations"] = [{}] * 1_001
OF_OTHERS, OURS_TO_CHECK = make_pod({"delay": "15"}), make_pod({"scripted": "", "delay": "15"})
ASKED = [
    pytest.param(read_review(OF_OTHERS), [], id="a pod of others"),
    pytest.param(read_review(OURS_TO_CHECK), ["validate"], id="a pod"),
    pytest.param(read_review(CROWDED), [], id="too much of something"),
    pytest.param(
        read_review(OF_OTHERS, operation="UPDATE", old=OURS_TO_CHECK),
        ["validate"],
        id="its key is taken off",
    ),
    pytest.param(
        read_review(OF_OTHERS, operation="UPDATE", old=make_pod({"delay": "16"})),
        [],
        id="another's key is changed",
    ),
    pytest.param(read_review(of_workload(), kind=VM), [], id="a VM of others"),
    pytest.param(
        read_review(of_workload({"mark": ""}), kind=VM), ["validate_workload"], id="its VM"
    ),
    pytest.param(
        read_review(of_workload(), kind=VM, operation="UPDATE", old=of_workload({"mark": ""})),
        ["validate_workload"],
        id="its mark is taken off",
    ),
    pytest.param(
        read_review(of_workload({"mark": ""}), kind=DEPLOYMENT), [], id="its mark elsewhere"
    ),
    pytest.param(
        read_review(of_workload(template={"scripted": ""}), kind=DEPLOYMENT),
        ["validate"],
        id="its template",
    ),
    pytest.param(
        read_review(of_workload({"mark": ""}, {"scripted": ""}), kind=VM),
        ["validate_workload", "validate"],
        id="its VM and its template",
    ),
]


@pytest.mark.parametrize(("review", "asked"), ASKED)
def test_plugin_that_may_block_is_asked_of_reviews_alone_that_may_block(
    review: PodReview, asked: list[str]
) -> None:
    """All others are answered in the event loop, where everybody would wait for it."""
    seen: list[str] = []
    pipeline = pipeline_of(Scripted(), Marked(seen))

    pipeline.validate(review, now_ms=0)
    assert seen == asked
    assert pipeline.may_block(review) == bool(asked)


@pytest.mark.parametrize("annotations", [{"scripted": ""}, {"delay": "15"}], ids=["its", "others'"])
def test_plugin_that_may_block_is_asked_about_new_pods_that_concern_it(
    annotations: dict[str, str],
) -> None:
    seen: list[str] = []
    observe = Measured()
    pipeline = pipeline_of(Marked(seen), observe=observe)

    pipeline.mutate(read_review(make_pod(annotations)), now_ms=0)
    assert seen == ["mutate"] * ("scripted" in annotations)
    code = "Success" if seen else "Skip"
    assert observe.seen[0] == ("marked", "mutate", code, "*")


class Puzzled(Blocking):
    """May block, and fails when it is asked whom it concerns."""

    def concerns(self, _pod: Pod) -> bool:
        raise KeyError("x")


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_plugin_that_cannot_tell_whom_it_concerns_is_named(point: str) -> None:
    with pytest.raises(PluginFailedError, match=f"'blocking' failed in {point}: KeyError: 'x'"):
        getattr(pipeline_of(Puzzled()), point)(read_review(), now_ms=0)


@pytest.mark.parametrize("ending", [success(), None], ids=["answers", "fails"])
@pytest.mark.parametrize("point", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(Blocking, "blocking", id="may block"),
        pytest.param(Scripted, None, id="cannot block"),
    ],
)
def test_plugin_at_work(
    kind: Callable[..., Plugin], expected: str | None, point: str, ending: Result | None
) -> None:
    review, another = concerning(), concerning()
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


# --- finalizers of ours ------------------------------------------------------------------------

OURS, THEIRS = "holdfast.dev/sticky", "example.com/x"
FORGED = (
    'finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove it '
    "(a restore should leave out the pods of VMs)"
)


@pytest.mark.parametrize("profile", ["*", "mine"], ids=["of a profile", "of no profile"])
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_added_finalizer_of_ours_is_refused(point: str, profile: str) -> None:
    pipeline = pipeline_of(make_delay(), name=profile)
    review = read_review(make_pod(finalizers=[THEIRS, OURS]))

    verdict = getattr(pipeline, point)(review, now_ms=0)

    assert (verdict.code, verdict.reasons) == (Code.REJECT, [FORGED])


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        pytest.param([OURS], [OURS], [], id="there before"),
        pytest.param([], [OURS], [], id="taken off"),
        pytest.param([THEIRS], [], [], id="another's"),
        pytest.param([THEIRS, OURS], [THEIRS], [FORGED], id="added"),
    ],
)
def test_finalizers_on_update(new: list[str], old: list[str], expected: list[str]) -> None:
    review = read_review(make_pod(finalizers=new), operation="UPDATE", old=make_pod(finalizers=old))

    assert expected == list(pipeline_of(make_delay()).validate(review, now_ms=0).reasons)


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_many_finalizers_of_ours_are_named_once_and_in_part(point: str) -> None:
    ours = [f"holdfast.dev/x{number // 2}" for number in range(4_000)]
    review = read_review(make_pod(finalizers=[THEIRS, *ours]))

    verdict = getattr(pipeline_of(make_delay()), point)(review, now_ms=0)

    named = [
        f'finalizer "holdfast.dev/x{n}" is reserved for Holdfast: remove it '
        "(a restore should leave out the pods of VMs)"
        for n in range(3)
    ]
    assert verdict.reasons == [*named, "1,997 more finalizers are reserved as well"]
