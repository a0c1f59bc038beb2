from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import pytest

from tests.unit.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    MINUTE,
    UID,
    Measured,
    held,
    instant,
    make_delay,
    make_pipeline,
    make_pod,
    read_pod,
    read_review,
)
from tests.unit.scripted import (
    Answer,
    Blocking,
    Holding,
    HoldingToo,
    Other,
    Scripted,
    Tightening,
    Undeclared,
    answering,
    never,
    pipeline_of,
    raising,
)
from webhook import holds
from webhook.errors import PluginFailedError, UndecidedError, UnreachableError
from webhook.framework import (
    HELD_STATE,
    Code,
    Context,
    Plugin,
    Result,
    error,
    refuse,
    skip,
    success,
)
from webhook.objects import Pod
from webhook.plugins.placement import Placement, PlacementArgs
from webhook.profiles import Verdict
from webhook.review import AddGate, Edit, PodReview, RemoveAnnotation, SetAnnotation
from webhook.workloads import Workload


def concerning(annotations: Mapping[str, str] | None = None, **fields: Any) -> PodReview:
    """Make a review that concerns scripted plugins, also those that may block."""
    return read_review(make_pod({"scripted": "", **(annotations or {})}), **fields)


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
    profile = pipeline.profile_for(read_pod(scheduler=scheduler))

    assert profile is not None
    assert profile.name == "default-scheduler"


@pytest.mark.parametrize(
    ("annotations", "scheduler", "expected"),
    [
        pytest.param({}, "mine", "mine", id="by schedulerName"),
        pytest.param({}, "default-scheduler", "*", id="the rest"),
        pytest.param({}, "", "*", id="none named"),
        pytest.param({holds.PROFILE: "spacecloud"}, "mine", "spacecloud", id="as recorded"),
        pytest.param({holds.PROFILE: "*"}, "mine", "*", id="the rest, as recorded"),
        pytest.param({holds.PROFILE: "gone"}, "mine", "mine", id="the recorded one is gone"),
        pytest.param({holds.PROFILE: ""}, "mine", "mine", id="nothing is recorded"),
    ],
)
def test_profile(annotations: dict[str, str], scheduler: str, expected: str) -> None:
    profile = make_pipeline(PROFILES).profile_for(read_pod(annotations, scheduler=scheduler))

    assert profile is not None
    assert expected == profile.name


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
        SetAnnotation(holds.HELD, "delay=15s"),
        SetAnnotation(holds.PROFILE, "mine"),
    ] == verdict.edits


def test_profile_is_not_recorded_where_nothing_is_written() -> None:
    verdict = make_pipeline().mutate(read_review(make_pod({"delay": "0"})), now_ms=CREATED_MS)

    assert [RemoveAnnotation(holds.HELD)] == verdict.edits


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
        SetAnnotation(holds.PROFILE, "*"),
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
        seen.append(context.state.get(HELD_STATE))
        return success(SetAnnotation("a", "1"), AddGate(GATE)) if len(seen) == 2 else success()

    pipeline_of(Scripted(look), Other(look), Blocking(look)).mutate(concerning(), now_ms=0)

    assert seen == [None, None, True]


def test_mutate_gathers_the_refusals_of_the_plugins_behind_the_first() -> None:
    pipeline = pipeline_of(
        Scripted(answering(success(SetAnnotation("a", "1")))),
        Other(answering(refuse("first"))),
        Blocking(answering(refuse("second"))),
        Holding(),
    )

    verdict = pipeline.mutate(concerning(), now_ms=0)
    assert Verdict(Code.REFUSE, (), ["first", "second"]) == verdict
    assert verdict.message == "first; second"


def test_refused_pod_is_told_what_validate_would_refuse_as_well() -> None:
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(answering(success()), answering(refuse("third"))),
        Other(answering(refuse("first")), answering(refuse("said already"))),
        Blocking(answering(refuse("second")), answering(refuse("said already"))),
        HoldingToo(),
        Tightening(lambda _: skip()),
        observe=observe,
    )

    assert pipeline.mutate(concerning(), now_ms=0).reasons == ["first", "second", "third"]
    assert [(plugin, point) for plugin, point, *_ in observe.seen] == [
        ("scripted", "mutate"),
        ("other", "mutate"),
        ("blocking", "mutate"),
        ("holding-too", "mutate"),
        ("tightening", "mutate"),
        ("scripted", "validate"),
        ("holding-too", "validate"),
        ("tightening", "validate"),
        ("", "mutate"),
    ]


def test_plugin_that_skipped_a_pod_is_spared_its_validate() -> None:
    never_asked = raising(AssertionError("asked"))
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(answering(skip()), never_asked),
        Other(answering(refuse("no"))),
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
    pipeline_of(
        Scripted(answering(edits), look),
        Other(answering(refuse("no"))),
    ).mutate(read_review(manifest), now_ms=0)

    expected = make_pod({"a~/b": "3"}, gates=["x", GATE])
    assert [(Pod.of(expected), Pod.of(expected), expected, {HELD_STATE: True})] == seen


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raising(KeyError("x")), id="raises"),
        pytest.param(answering(error("x")), id="says so"),
    ],
)
def test_validate_that_fails_leaves_the_refusal(answer: Answer) -> None:
    pipeline = pipeline_of(Scripted(validate=answer), Other(answering(refuse("no"))))

    verdict = pipeline.mutate(read_review(), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REFUSE, ["no"])


@pytest.mark.parametrize(
    ("pod", "edit"),
    [
        pytest.param({"metadata": {}}, AddGate(GATE), id="no spec"),
        pytest.param(make_pod(), SetAnnotation("a", cast(Any, 5)), id="no text"),
    ],
)
def test_edits_that_do_not_fit_leave_the_refusal(pod: Any, edit: Edit) -> None:
    pipeline = pipeline_of(Scripted(answering(success(edit))), Other(answering(refuse("no"))))

    verdict = pipeline.mutate(read_review(pod), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REFUSE, ["no"])


def test_delayed_and_placed_pod_is_told_all_that_is_wrong_with_it() -> None:
    refusing = answering(refuse("two"))
    placement = Placement(PlacementArgs())
    pipeline = pipeline_of(make_delay(), placement, Other(validate=refusing), Scripted())
    pod = make_pod({"delay": "soon", "type": "space"})
    (first, second) = pipeline.mutate(read_review(pod), now_ms=0).reasons

    assert first.startswith('annotation delay: "soon" is no duration')
    assert second == "two"


def test_large_pod_is_not_decoded_whole_to_tell_what_else_is_wrong() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(refuse("two"))), Other(answering(refuse("one")))
    )
    small, large = make_pod({"other": "x" * 200_000}), make_pod({"other": "x" * 300_000})

    assert pipeline.mutate(read_review(small), now_ms=0).reasons == ["one", "two"]
    assert pipeline.mutate(read_review(large), now_ms=0).reasons == ["one"]


def test_validate_gathers_all_refusals_and_warnings() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(refuse("first"))),
        Other(validate=answering(success(warnings=["mind"]))),
        Blocking(validate=answering(refuse("second"))),
    )

    assert Verdict(Code.REFUSE, (), ["first", "second"], ["mind"]) == pipeline.validate(
        concerning(), now_ms=0
    )


@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_first_refusal_alone_where_not_all_are_to_be_told(point: str) -> None:
    observe = Measured()
    pipeline = pipeline_of(
        Scripted(),
        Other(answering(refuse("first")), answering(refuse("first"))),
        Blocking(answering(refuse("second")), answering(refuse("second"))),
        run_all=False,
        observe=observe,
    )

    verdict = getattr(pipeline, point)(concerning(), now_ms=0)
    assert verdict.reasons == ["first"]
    assert [plugin for plugin, *_ in observe.seen] == ["scripted", "other", ""]


def test_plugin_that_fails_behind_a_refusal_leaves_the_refusal() -> None:
    pipeline = pipeline_of(Scripted(answering(refuse("no"))), Other(raising(KeyError("x"))))

    verdict = pipeline.mutate(read_review(), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REFUSE, ["no"])


def test_refusals_of_a_template_name_its_path() -> None:
    content = {"metadata": {"name": "w"}, "spec": {"template": {"metadata": {}}}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    pipeline = pipeline_of(Scripted(validate=answering(refuse("no"))))
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
        pytest.param(answering(cast(Any, "Success")), NO_RESULT % "str", id="answers a word"),
        pytest.param(
            answering(Result(cast(Any, "Success"))), NO_RESULT % "Result", id="an unknown code"
        ),
        pytest.param(
            answering(success(AddGate("a"), NONSENSE)),
            "TypeError: it returned the edit object; use those of review",
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
        pytest.param(answering(Result(edits=cast(Any, None))), NO_LIST % "NoneType", id="no edits"),
        pytest.param(answering(Result(warnings="mind")), NO_LIST % "str", id="a warning alone"),
        pytest.param(
            answering(success(warnings=["mind", cast(Any, KeyError("x"))])),
            "TypeError: it returned the warning KeyError; use text",
            id="a warning that is no text",
        ),
        pytest.param(
            answering(refuse(cast(Any, KeyError("x")))),
            "TypeError: it returned the reason KeyError; use text",
            id="a reason that is no text",
        ),
        pytest.param(
            answering(refuse(cast(Any, None))),
            "TypeError: it returned the reason NoneType; use text",
            id="no reason",
        ),
        pytest.param(answering(refuse("caf\ud800")), "UnicodeEncodeError: ", id="half a character"),
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
        "plugin 'scripted' could not look up what decides: https://api does not answer: timed out"
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
        Blocking(answering(refuse("no"))),
        HoldingToo(),
        observe=observe,
        timer=lambda: next(ticks),
    )
    pipeline.mutate(concerning(), now_ms=0)

    assert observe.seen == [
        ("scripted", "mutate", "Success", "*"),
        ("other", "mutate", "Skip", "*"),
        ("holding", "mutate", "Success", "*"),
        ("blocking", "mutate", "Refuse", "*"),
        ("holding-too", "mutate", "Success", "*"),
        ("scripted", "validate", "Success", "*"),
        ("holding", "validate", "Success", "*"),
        ("holding-too", "validate", "Success", "*"),
        ("", "mutate", "Refuse", "*"),
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


@pytest.mark.parametrize(
    ("plugin", "annotations", "expected"),
    [
        pytest.param(Scripted(), {"scripted": ""}, False, id="cannot block"),
        pytest.param(Blocking(), {}, False, id="may block, not concerned"),
        pytest.param(Blocking(), {"scripted": ""}, True, id="may block and is concerned"),
        pytest.param(Undeclared(), {}, False, id="does not say, not concerned"),
        pytest.param(Undeclared(), {"scripted": ""}, True, id="does not say, is concerned"),
    ],
)
def test_may_block(plugin: Plugin, annotations: dict[str, str], expected: bool) -> None:
    assert expected == pipeline_of(plugin).may_block(read_review(make_pod(annotations)))


VM = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


class Marked(Blocking):
    """May block, and has an annotation on VMs themselves."""

    name = "marked"
    workload_keys: ClassVar[Mapping[str, Sequence[str]]] = {"VirtualMachine": ("mark",)}

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
    """Make a workload with annotations of its own, and with those of its template."""
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
        read_review(CROWDED, operation="UPDATE", old=CROWDED),
        ["validate"],
        id="too much of something, there before",
    ),
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
        pytest.param(Undeclared, "undeclared", id="does not say"),
        pytest.param(Scripted, None, id="cannot block"),
    ],
)
def test_plugin_at_work(
    kind: Callable[..., Plugin], expected: str | None, point: str, ending: Result | None
) -> None:
    review, another = concerning(), concerning()
    seen: list[str | None] = []

    def look(_pod: Pod, _context: Context) -> Result:
        seen.extend([pipeline.at_work(review), pipeline.at_work(another)])
        if ending is None:
            raise KeyError
        return ending

    pipeline = pipeline_of(Other(), kind(look, look))
    assert pipeline.at_work(review) is None
    try:
        getattr(pipeline, point)(review, now_ms=0)
    except PluginFailedError:
        assert ending is None

    assert seen == [expected, None]
    assert pipeline.at_work(review) is None


# --- finalizers of ours ------------------------------------------------------------------------

OURS, THEIRS = "holdfast.dev/sticky", "example.com/x"
FORGED = 'finalizer "holdfast.dev/sticky" is Holdfast\'s own; leave it out'


@pytest.mark.parametrize("profile", ["*", "mine"], ids=["of a profile", "of no profile"])
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_added_finalizer_of_ours_is_refused(point: str, profile: str) -> None:
    pipeline = pipeline_of(make_delay(), name=profile)
    review = read_review(make_pod(finalizers=[THEIRS, OURS]))

    verdict = getattr(pipeline, point)(review, now_ms=0)

    assert (verdict.code, verdict.reasons) == (Code.REFUSE, [FORGED])


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

    named = [f'finalizer "holdfast.dev/x{n}" is Holdfast\'s own; leave it out' for n in range(3)]
    assert verdict.reasons == [*named, "so are 1,997 more of its finalizers"]


# --- when a pod is due -------------------------------------------------------------------------


def test_due_by_the_plugin_that_holds() -> None:
    pipeline = make_pipeline(
        "profiles: [{pluginConfig: [{name: delay, args: {annotations: [wait.io/for]}}]}]"
    )

    assert holds.Due(CREATED_MS + MINUTE) == pipeline.due(Pod.of(held({"wait.io/for": "1m"})))


def both(**fields: Any) -> Pod:
    """Make a pod with the gates of all that may hold it."""
    gates = [GATE, Holding.gate, HoldingToo.gate]
    return Pod.of(held({"delay": "1m"}, gates=fields.pop("gates", gates), **fields))


def others(**fields: Any) -> Pod:
    """Make one with the gates of other plugins than the delay's alone."""
    return both(gates=[Holding.gate, HoldingToo.gate], **fields)


@pytest.mark.parametrize(
    "plugins",
    [(make_delay(), Holding()), (Holding(), make_delay())],
    ids=["the longer behind", "the longer first"],
)
def test_due_is_the_latest_of_several_plugins(plugins: tuple[Plugin, ...]) -> None:
    assert holds.Due(CREATED_MS + HOUR, "as it says") == pipeline_of(*plugins).due(both())


def test_plugin_whose_gate_the_pod_lacks_does_not_hold_it() -> None:
    pod = both(gates=[GATE])

    assert holds.Due(CREATED_MS + MINUTE) == pipeline_of(make_delay(), Holding()).due(pod)


def test_delay_counts_though_only_another_plugin_is_left() -> None:
    pod = Pod.of(held({"delay": "2h"}, gates=[GATE, Holding.gate]))

    assert holds.Due(CREATED_MS + 2 * HOUR) == pipeline_of(Holding()).due(pod)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(KeyError("x"), "KeyError: 'x'", id="raises"),
        pytest.param(None, "AttributeError: ", id="answers nothing"),
        pytest.param(holds.Due(cast(Any, "soon")), "ValueError: ", id="answers a word"),
        pytest.param(holds.Due(cast(Any, float("inf"))), "OverflowError: ", id="answers infinity"),
    ],
)
def test_plugin_that_cannot_say_when_leaves_it_to_the_annotations(
    answer: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    def due(_pod: Pod) -> holds.Due:
        if isinstance(answer, Exception):
            raise answer
        return cast(holds.Due, answer)

    found = pipeline_of(Holding(due)).due(both())

    problem = f"plugin 'holding' cannot say when it is due: {why}"
    assert found.at_ms == CREATED_MS + MINUTE
    assert found.problem.startswith(problem)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"default/web-0: {problem}")


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [
        pytest.param(0, CREATED_MS, id="before creation"),
        pytest.param(-(10**30), CREATED_MS, id="before all calendars"),
        pytest.param(CREATED_MS + 1, CREATED_MS + 1, id="a time"),
        pytest.param(10**400, holds.NEVER_MS, id="beyond all numbers"),
    ],
)
def test_due_of_a_plugin_has_bounds(at_ms: int, expected: int) -> None:
    assert holds.Due(expected) == pipeline_of(Holding(lambda _: holds.Due(at_ms))).due(others())


def test_plugin_that_lets_go_counts_no_more() -> None:
    pipeline = pipeline_of(Holding(never), HoldingToo())
    pipeline.allow(UID, "holding")

    assert holds.Due(CREATED_MS + HOUR, "as it says") == pipeline.due(others())
    assert holds.Due(holds.NEVER_MS) == pipeline.due(others(uid="another"))

    pipeline.allow(UID, "holding-too")
    assert holds.Due(CREATED_MS) == pipeline.due(others())


def test_what_was_noted_of_a_pod_is_forgotten() -> None:
    pipeline = pipeline_of(Holding(never))
    pipeline.forget(UID)
    pipeline.allow(UID, "holding")
    pipeline.allow("another", "holding")
    pipeline.forget(UID)

    assert holds.Due(holds.NEVER_MS) == pipeline.due(others())
    assert holds.Due(CREATED_MS) == pipeline.due(others(uid="another"))


@pytest.mark.parametrize(
    "profiles",
    [
        "profiles: [{plugins: {disabled: [{name: '*'}]}}]",
        "profiles: [{schedulerName: mine}]",
    ],
    ids=["no plugin", "no profile"],
)
def test_due_without_a_plugin_that_knows_the_gate(profiles: str) -> None:
    pod = Pod.of(held({holds.NOT_BEFORE: instant(CREATED_MS + HOUR)}))

    assert holds.Due(CREATED_MS + HOUR) == make_pipeline(profiles).due(pod)


# --- at release --------------------------------------------------------------------------------


class Unsure(Tightening):
    """Fails when it is asked whom it concerns."""

    def concerns(self, _pod: Pod) -> bool:
        raise KeyError("x")


class Indifferent(Tightening):
    def concerns(self, _pod: Pod) -> bool:
        return False


@pytest.mark.parametrize(
    ("plugins", "name", "expected"),
    [
        pytest.param([Scripted()], "*", False, id="none has a say"),
        pytest.param([Scripted(), Tightening(lambda _: skip())], "*", True, id="one has"),
        pytest.param([Indifferent(lambda _: skip())], "*", False, id="it is not concerned"),
        pytest.param([Unsure(lambda _: skip())], "*", True, id="it cannot tell"),
        pytest.param([Tightening(lambda _: skip())], "mine", False, id="of no profile"),
    ],
)
def test_rechecks(plugins: list[Plugin], name: str, expected: bool) -> None:
    assert expected == pipeline_of(*plugins, name=name).rechecks(both())


def test_at_release_gathers_edits_warnings_and_refusals() -> None:
    observe = Measured()

    def fail(_pod: Pod) -> Result:
        raise KeyError("x")

    pipeline = pipeline_of(
        Scripted(),
        Tightening(lambda _: success(SetAnnotation("a", "1"), warnings=["mind"])),
        Tightening(lambda _: refuse("no node is left")),
        Tightening(fail),
        Tightening(lambda _: cast(Any, None)),
        Tightening(lambda pod: success(SetAnnotation("b", pod.metadata.name))),
        observe=observe,
    )

    assert Verdict(
        Code.ERROR,
        [SetAnnotation("a", "1"), SetAnnotation("b", "web-0")],
        (),
        [
            "mind",
            "no node is left",
            "plugin 'tightening' failed in release: KeyError: 'x'",
            "plugin 'tightening' failed in release: TypeError: it returned NoneType, not a Result",
        ],
    ) == pipeline.at_release(both())
    assert observe.seen == [
        ("tightening", "release", status, "*")
        for status in ("Success", "Refuse", "Error", "Error", "Success")
    ] + [("", "release", "Error", "*")]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([], Code.SUCCESS, id="none"),
        pytest.param([skip(), success()], Code.SUCCESS, id="all well"),
        pytest.param([refuse("no"), success()], Code.REFUSE, id="refused"),
        pytest.param([error("broken"), refuse("no")], Code.ERROR, id="failed"),
    ],
)
def test_status_of_a_release_is_that_of_the_plugin_which_fared_worst(
    results: list[Result], expected: Code
) -> None:
    observe = Measured()
    plugins = [Tightening(lambda _, result=result: result) for result in results]  # type: ignore[misc]
    pipeline_of(*plugins, observe=observe).at_release(both())

    assert observe.seen[-1] == ("", "release", expected.value, "*")


def test_at_release_of_no_profile() -> None:
    pipeline = pipeline_of(Tightening(lambda _: refuse("no")), name="mine")

    assert Verdict(Code.SKIP) == pipeline.at_release(both())
