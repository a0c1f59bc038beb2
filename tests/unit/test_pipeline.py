from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.unit.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    MINUTE,
    Measured,
    held,
    instant,
    make_delay,
    make_pipeline,
    make_pod,
    read_pod,
    read_review,
)
from webhook import holds, plugins
from webhook.errors import ConfigurationError, PluginFailedError
from webhook.objects import Pod
from webhook.pipeline import (
    Args,
    Code,
    Context,
    Pipeline,
    Plugin,
    Profile,
    Result,
    Verdict,
    refuse,
    skip,
    success,
)
from webhook.review import AddGate, RemoveAnnotation, SetAnnotation

Answer = Callable[[Pod, Context], Result]


class Scripted:
    """A plugin that answers as it is told."""

    name: ClassVar[str] = "scripted"
    args_type: ClassVar[type[Args]] = Args
    may_block: ClassVar[bool] = False
    keys = ("scripted",)

    def __init__(self, mutate: Answer | None = None, validate: Answer | None = None) -> None:
        self._mutate = mutate or (lambda _pod, _context: success())
        self._validate = validate or (lambda _pod, _context: success())

    def match(self, pod: str) -> str:
        return f"'scripted' in {pod}.metadata.annotations"

    def concerns(self, pod: Pod) -> bool:
        return "scripted" in pod.annotations

    def mutate(self, pod: Pod, context: Context) -> Result:
        return self._mutate(pod, context)

    def validate(self, pod: Pod, context: Context) -> Result:
        return self._validate(pod, context)


class Other(Scripted):
    name = "other"


class Blocking(Scripted):
    name = "blocking"
    may_block = True


class Holding(Scripted):
    name = "holding"
    gate: ClassVar[str] = "holdfast.dev/other"

    def due(self, pod: Pod) -> holds.Due:
        return holds.Due(pod.created_ms + HOUR, "as it says")


def answering(result: Result) -> Answer:
    return lambda _pod, _context: result


def raising(error: BaseException) -> Answer:
    def answer(_pod: Pod, _context: Context) -> Result:
        raise error

    return answer


def pipeline_of(
    *found: Plugin, name: str = "*", observe: Measured | None = None, timer: Any = None
) -> Pipeline:
    profile = Profile(name, found)
    return Pipeline([profile], timer=timer or (lambda: 0.0), observe=observe or Measured())


# --- the profile -------------------------------------------------------------------------------

PROFILES = """
profiles:
- schedulerName: "*"
- schedulerName: mine
- schedulerName: spacecloud
  plugins: {enabled: []}
"""


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
    assert Verdict(Code.SKIP, reasons=[]) == pipeline.validate(review, now_ms=CREATED_MS)
    assert not pipeline.may_block(review.pod)


def test_profile_is_recorded_with_the_gate() -> None:
    pipeline = make_pipeline(PROFILES)
    verdict = pipeline.mutate(
        read_review(make_pod({"delay": "15"}, scheduler="mine")), now_ms=CREATED_MS
    )

    assert [
        AddGate(GATE),
        SetAnnotation(holds.HELD, "delay=15s"),
        SetAnnotation(holds.PROFILE, "mine"),
    ] == verdict.edits


def test_profile_is_not_recorded_without_a_gate() -> None:
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

    assert (
        Verdict(
            Code.SUCCESS, [SetAnnotation("a", "1"), SetAnnotation("b", "first")], (), ["w1", "w2"]
        )
        == verdict
    )


def test_context_tells_review_profile_and_time() -> None:
    seen: list[Context] = []

    def note(_pod: Pod, context: Context) -> Result:
        seen.append(context)
        return skip()

    review = read_review()
    pipeline_of(Scripted(note), name="default-scheduler").mutate(review, now_ms=5)

    assert [Context(review, "default-scheduler", 5, {})] == seen


def test_mutate_gathers_all_refusals() -> None:
    pipeline = pipeline_of(
        Scripted(answering(success(SetAnnotation("a", "1"))), answering(refuse("first"))),
        Other(answering(refuse("second"))),
        Blocking(validate=answering(refuse("third"))),
        Holding(),
    )
    verdict = pipeline.mutate(read_review(), now_ms=0)

    assert (verdict.code, verdict.edits) == (Code.REFUSE, ())
    assert verdict.message == "second; first; third"


def test_validate_gathers_all_refusals_and_warnings() -> None:
    pipeline = pipeline_of(
        Scripted(validate=answering(refuse("first"))),
        Other(validate=answering(success(warnings=["mind"]))),
        Blocking(validate=answering(refuse("second"))),
    )

    assert Verdict(Code.REFUSE, (), ["first", "second"], ["mind"]) == pipeline.validate(
        read_review(), now_ms=0
    )


@pytest.mark.parametrize("point", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(raising(KeyError("x")), "KeyError: 'x'", id="raises"),
        pytest.param(answering(None), "AttributeError: ", id="answers nothing"),  # type: ignore[arg-type]
    ],
)
def test_failing_plugin_is_named_and_measured(point: str, answer: Answer, why: str) -> None:
    observe = Measured()
    pipeline = pipeline_of(Scripted(answer, answer), Other(), observe=observe)

    with pytest.raises(PluginFailedError) as caught:
        getattr(pipeline, point)(read_review(), now_ms=0)

    assert str(caught.value).startswith(f"plugin 'scripted' failed in {point}: {why}")
    assert caught.value.__cause__ is not None
    assert [("scripted", point, "Error", "*")] == observe.seen


def test_interrupt_is_no_failure_of_a_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        pipeline_of(Scripted(raising(KeyboardInterrupt()))).mutate(read_review(), now_ms=0)


def test_each_call_is_measured_with_its_status() -> None:
    observe = Measured()
    ticks = itertools.count(0.0, 0.25)
    pipeline = pipeline_of(
        Scripted(answering(success())),
        Other(answering(skip())),
        Holding(answering(refuse("no"))),
        observe=observe,
        timer=lambda: next(ticks),
    )
    pipeline.mutate(read_review(), now_ms=0)

    assert observe.seen == [
        ("scripted", "mutate", "Success", "*"),
        ("other", "mutate", "Skip", "*"),
        ("holding", "mutate", "Refuse", "*"),
        ("scripted", "validate", "Success", "*"),
        ("other", "validate", "Success", "*"),
    ]
    assert observe.seconds == [0.25] * 5


@pytest.mark.parametrize(
    ("plugin", "annotations", "expected"),
    [
        pytest.param(Scripted(), {"scripted": ""}, False, id="cannot block"),
        pytest.param(Blocking(), {}, False, id="may block, not concerned"),
        pytest.param(Blocking(), {"scripted": ""}, True, id="may block and is concerned"),
    ],
)
def test_may_block(plugin: Plugin, annotations: dict[str, str], expected: bool) -> None:
    assert expected == pipeline_of(plugin).may_block(read_pod(annotations))


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


# --- when a pod is due -------------------------------------------------------------------------


def test_due_by_the_plugin_that_holds() -> None:
    pipeline = make_pipeline(
        "profiles: [{pluginConfig: [{name: delay, args: {annotations: [wait.io/for]}}]}]"
    )

    assert holds.Due(CREATED_MS + MINUTE) == pipeline.due(Pod.of(held({"wait.io/for": "1m"})))


def test_due_is_the_latest_of_several_plugins() -> None:
    pod = Pod.of(held({"delay": "1m"}, gates=[GATE, Holding.gate]))

    assert holds.Due(CREATED_MS + HOUR, "as it says") == pipeline_of(make_delay(), Holding()).due(
        pod
    )


@pytest.mark.parametrize(
    "profiles",
    ["profiles: [{plugins: {enabled: []}}]", "profiles: [{schedulerName: mine}]"],
    ids=["no plugin", "no profile"],
)
def test_due_without_a_plugin_that_knows_the_gate(profiles: str) -> None:
    pod = Pod.of(held({holds.NOT_BEFORE: instant(CREATED_MS + HOUR)}))

    assert holds.Due(CREATED_MS + HOUR) == make_pipeline(profiles).due(pod)


# --- the registry ------------------------------------------------------------------------------


def test_registry_has_the_built_in_plugins_and_further_ones() -> None:
    assert {"delay", "scripted"} <= set(plugins.registry(Scripted))  # type: ignore[arg-type]


def test_registry_refuses_a_name_twice() -> None:
    class Twin(Scripted):
        name = "delay"

    with pytest.raises(ConfigurationError) as caught:
        plugins.registry(Twin)  # type: ignore[arg-type]

    assert str(caught.value) == "two plugins are named 'delay'; rename or uninstall one of them"
