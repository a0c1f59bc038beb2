"""Order, failures, blocking calls and measurements of plugins."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from holdfast.webhook.errors import PluginFailedError
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
from holdfast.webhook.model.annotations import PROFILE_ANNOTATION
from holdfast.webhook.model.edits import AddGate, SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload
from tests.support.builders import (
    DEPLOYMENT,
    GATE,
    VM,
    Measured,
    make_pod,
    make_workload,
    read_review,
)
from tests.support.scripted import (
    Answer,
    Blocking,
    Holding,
    HoldingToo,
    Other,
    Scripted,
    answering,
    pipeline_of,
    raising,
)
from tests.unit.framework.reviews import relevant_review


def test_plugins_run_in_order_and_share_state() -> None:
    def first(_pod: Pod, context: Context) -> Result:
        assert context == Context(review, "default-scheduler", 5, {})
        context.state["seen"] = "first"
        return success(SetAnnotation("a", "1"), warnings=["w1"])

    def second(_pod: Pod, context: Context) -> Result:
        return success(SetAnnotation("b", context.state["seen"]), warnings=["w2"])

    review = read_review()
    pipeline = pipeline_of(Scripted(first), Other(second), name="default-scheduler")
    verdict = pipeline.mutate(review, now_ms=5)

    assert verdict.edits == [
        SetAnnotation("a", "1"),
        SetAnnotation("b", "first"),
        SetAnnotation(PROFILE_ANNOTATION, "default-scheduler"),
    ]
    assert verdict.warnings == ["w1", "w2"]


def test_plugins_after_an_added_gate_see_the_pod_as_held() -> None:
    held_flags: list[object] = []

    def look(_pod: Pod, context: Context) -> Result:
        held_flags.append(context.held)
        return (
            success(SetAnnotation("a", "1"), AddGate(GATE)) if len(held_flags) == 2 else success()
        )

    pipeline_of(Scripted(look), Other(look), Blocking(look)).mutate(relevant_review(), now_ms=0)

    assert held_flags == [False, False, True]


WRONG_TYPE = success(SetAnnotation("a", cast(Any, 5)))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raising(KeyError()), id="mutate raises"),
        pytest.param(answering(WRONG_TYPE), id="an edit of the wrong type"),
    ],
)
def test_later_failure_does_not_replace_a_rejection(answer: Answer) -> None:
    pipeline = pipeline_of(Other(answering(reject("no"))), Scripted(answer))

    verdict = pipeline.mutate(read_review(), now_ms=0)
    assert (verdict.code, verdict.reasons) == (Code.REJECT, ["no"])


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
@pytest.mark.parametrize(
    "reason",
    ["its list cannot be read", cast(Any, OSError("its list cannot be read"))],
    ids=["text", "an exception"],
)
def test_error_result_fails_the_plugin(reason: str, point: str) -> None:
    observe = Measured()
    answer = answering(error(reason))
    pipeline = pipeline_of(Scripted(answer, answer), observe=observe)
    with pytest.raises(PluginFailedError) as caught:
        getattr(pipeline, point)(read_review(), now_ms=0)

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
        ("holding", "mutate", "Success", "*"),
        ("blocking", "mutate", "Reject", "*"),
        ("holding-too", "mutate", "Success", "*"),
        ("", "mutate", "Reject", "*"),
    ]
    assert observe.seconds == [0.25] * 4 + [2.5]


def test_validate_total_is_measured_even_without_a_profile() -> None:
    observe = Measured()
    for profile in ("*", "mine"):
        pipeline_of(Scripted(), name=profile, observe=observe).validate(read_review(), now_ms=0)

    assert observe.seen == [
        ("scripted", "validate", "Success", "*"),
        ("", "validate", "Success", "*"),
        ("", "validate", "Success", ""),
    ]


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


OVER_LIMIT = make_pod({"scripted": ""})
OVER_LIMIT["spec"]["tolerations"] = [{}] * 1_001
UNRELATED, RELEVANT = make_pod({"delay": "15"}), make_pod({"scripted": "", "delay": "15"})
BLOCKING_CALLS = [
    pytest.param(read_review(UNRELATED), [], id="unrelated pod"),
    pytest.param(read_review(RELEVANT), ["validate"], id="relevant pod"),
    pytest.param(read_review(OVER_LIMIT), [], id="pod over a limit"),
    pytest.param(
        read_review(UNRELATED, operation="UPDATE", old=RELEVANT), ["validate"], id="key removed"
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
    points: list[str] = []
    pipeline = pipeline_of(Scripted(), Marked(points))

    pipeline.validate(review, now_ms=0)
    assert points == expected_calls
    assert pipeline.may_block(review) == bool(expected_calls)


@pytest.mark.parametrize(("pod", "expected"), [(RELEVANT, ["mutate"]), (UNRELATED, [])])
def test_blocking_plugin_is_called_only_for_new_pods_it_concerns(
    pod: Any, expected: list[str]
) -> None:
    points, observe = list[str](), Measured()

    pipeline_of(Marked(points), observe=observe).mutate(read_review(pod), now_ms=0)
    assert points == expected
    assert (("marked", "mutate", "Success", "*") in observe.seen) == bool(points)


class RaisingConcerns(Blocking):
    """May block, and raises in `concerns`."""

    def concerns(self, _pod: Pod) -> bool:
        raise KeyError("x")


def test_failing_concerns_does_not_replace_a_rejection() -> None:
    pipeline = pipeline_of(Other(answering(reject("no"))), RaisingConcerns())
    assert pipeline.may_block(read_review())
    assert pipeline.mutate(read_review(), now_ms=0).reasons == ["no"]


class Asking(Scripted):
    """Looks something up to validate a workload's own annotation."""

    workload_keys: Mapping[str, Sequence[str]] = {"Deployment": ("own",)}

    def concerns(self, pod: Pod) -> bool:
        return "scripted" in pod.annotations

    def blocks(self, _review: PodReview) -> bool:
        return True


@pytest.mark.parametrize("own", [{}, {"own": ""}])
def test_blocks_is_asked_about_workloads_with_a_key(own: dict[str, str]) -> None:
    review = read_review(make_workload(own), kind=DEPLOYMENT)
    assert pipeline_of(Asking()).may_block(review) is bool(own)


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
    review, other_review = relevant_review(), relevant_review()
    names: list[str | None] = []

    def look(_pod: Pod, _context: Context) -> Result:
        running_plugin = pipeline.runner.running_plugin
        names.extend([running_plugin(review), running_plugin(other_review)])
        if ending is None:
            raise KeyError
        return ending

    pipeline = pipeline_of(Other(), kind(look, look))
    assert pipeline.runner.running_plugin(review) is None
    try:
        getattr(pipeline, point)(review, now_ms=0)
    except PluginFailedError:
        assert ending is None

    assert names == [expected, None]
    assert pipeline.runner.running_plugin(review) is None
