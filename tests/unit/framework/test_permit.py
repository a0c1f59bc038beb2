import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.webhook.errors import PluginFailedError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import (
    Allow,
    Code,
    Permit,
    Plugin,
    Reject,
    Result,
    Wait,
    reject,
    skip,
    success,
)
from holdfast.webhook.framework.profiles import Profile, Profiles, Verdict
from holdfast.webhook.framework.runner import Runner
from holdfast.webhook.model.annotations import ALLOWED_ANNOTATION, NEVER_MS, NOT_BEFORE, Due
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from tests.support.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    MINUTE,
    Measured,
    held,
    instant,
    make_decider,
    make_delay,
)
from tests.support.scripted import (
    Holding,
    HoldingToo,
    Scripted,
    Slots,
    Tightening,
    decider_of,
    never,
)


def test_due_time_comes_from_the_holding_plugin() -> None:
    decider = make_decider(
        "profiles: [{pluginConfig: [{name: delay, args: {annotations: [wait.io/for]}}]}]"
    )

    assert Due(CREATED_MS + MINUTE) == decider.due(Pod.of(held({"wait.io/for": "1m"})))


def held_by_all(**fields: Any) -> Pod:
    """Make a pod with the gates of all plugins."""
    gates = [GATE, Holding.gate, HoldingToo.gate]
    return Pod.of(held({"delay": "1m"}, gates=fields.pop("gates", gates), **fields))


def held_by_others(**fields: Any) -> Pod:
    """Make a pod with the gates of all plugins but delay."""
    return held_by_all(**{"gates": [Holding.gate, HoldingToo.gate], **fields})


@pytest.mark.parametrize(
    "plugins",
    [(make_delay(), Holding()), (Holding(), make_delay())],
    ids=["longer hold last", "longer hold first"],
)
def test_latest_due_time_of_several_plugins_counts(plugins: tuple[Plugin, ...]) -> None:
    due = Due(CREATED_MS + HOUR, "as it says", recheck=True)
    assert decider_of(*plugins).due(held_by_all()) == due


def test_plugin_without_its_gate_does_not_hold_the_pod() -> None:
    pod = held_by_all(gates=[GATE])

    assert Due(CREATED_MS + MINUTE) == decider_of(make_delay(), Holding()).due(pod)


def test_delay_is_honoured_without_the_delay_plugin() -> None:
    pod = Pod.of(held({"delay": "2h"}, gates=[GATE, Holding.gate]))

    assert decider_of(Holding()).due(pod).at_ms == CREATED_MS + 2 * HOUR


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(KeyError("x"), "KeyError: 'x'", id="raises"),
        pytest.param(None, "TypeError: it returned NoneType", id="returns None"),
        pytest.param(Wait(cast(Any, "soon")), "ValueError: ", id="returns text"),
        pytest.param(Wait(cast(Any, float("inf"))), "OverflowError: ", id="returns infinity"),
    ],
)
def test_plugin_that_fails_keeps_holding_and_is_rechecked(
    answer: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(_pod: Pod, _now_ms: int) -> Permit:
        if isinstance(answer, Exception):
            raise answer
        return cast(Permit, answer)

    decider = decider_of(make_delay(), Holding(decide))
    problem = f"plugin 'holding' failed in permit: {why}"

    assert decider.due(held_by_all()) == Due(CREATED_MS + MINUTE, recheck=True)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"default/web-0: {problem}")
    with pytest.raises(PluginFailedError) as caught:
        decider.permit(held_by_all(), CREATED_MS + MINUTE)
    assert str(caught.value).startswith(problem)


def fail(_pod: Pod, _now_ms: int) -> Permit:
    raise OSError("no route")


def decider_with_timeout(
    *plugins: Plugin, permit_timeout_ms: int, handle: Handle | None = None
) -> ReleaseDecider:
    profile = Profile("*", plugins, permit_timeout_ms=permit_timeout_ms)
    return ReleaseDecider(Profiles([profile]), Runner(lambda: 0.0, Measured()), handle)


def assert_fails(decider: ReleaseDecider, pod: Pod, *times_ms: int) -> None:
    for at_ms in times_ms:
        with pytest.raises(PluginFailedError):
            decider.permit(pod, at_ms)


def test_permit_timeout_releases_pod_of_failing_plugin() -> None:
    answers: list[Permit] = []

    def decide(pod: Pod, now_ms: int) -> Permit:
        return answers.pop() if answers else fail(pod, now_ms)

    decider = decider_with_timeout(Holding(decide), make_delay(), permit_timeout_ms=MINUTE)
    due_ms, pod = CREATED_MS + MINUTE, held_by_all()

    assert_fails(decider, pod, due_ms, due_ms + MINUTE - 1)
    answers.append(Allow())
    assert decider.permit(pod, due_ms + MINUTE) == Due(due_ms, recheck=True)
    assert_fails(decider, pod, due_ms + 2 * MINUTE)  # the timeout restarts at the next failure
    decider.forget(pod.metadata.uid)
    assert_fails(decider, pod, due_ms + 10 * MINUTE)
    due = decider.permit(pod, due_ms + 11 * MINUTE)
    assert due.at_ms <= due_ms + 11 * MINUTE
    assert due.problem == (
        "plugin 'holding' failed in permit: OSError: no route: released after permitTimeout"
    )


def test_freeze_or_new_term_restarts_the_permit_timeout() -> None:
    handle, terms = Handle(), [1]
    handle.connect(term=lambda: terms[-1])
    decider = decider_with_timeout(Holding(fail), permit_timeout_ms=MINUTE, handle=handle)
    pod = held_by_others(gates=[Holding.gate])

    assert_fails(decider, pod, CREATED_MS)
    decider.withdraw(pod)
    assert_fails(decider, pod, CREATED_MS + MINUTE)
    terms.append(2)
    assert_fails(decider, pod, CREATED_MS + 2 * MINUTE, CREATED_MS + 3 * MINUTE - 1)
    assert decider.permit(pod, CREATED_MS + 3 * MINUTE).at_ms == CREATED_MS


def test_problem_of_allowing_plugin_is_reported() -> None:
    decider = decider_of(Holding(lambda _pod, _now: Allow("odd")), make_delay())

    assert decider.permit(held_by_all(), CREATED_MS + MINUTE) == Due(
        CREATED_MS + MINUTE, "odd", recheck=True
    )


def test_permit_timeout_of_one_plugin_keeps_other_holds() -> None:
    decider = decider_with_timeout(Holding(fail), HoldingToo(), permit_timeout_ms=0)

    assert decider.permit(held_by_others(), CREATED_MS).at_ms == CREATED_MS + HOUR


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(Wait(-(10**30)), CREATED_MS, id="before the calendar"),
        pytest.param(Wait(CREATED_MS + 1), CREATED_MS + 1, id="a time"),
        pytest.param(Wait(10**400), NEVER_MS, id="huge number"),
        pytest.param(Wait(), NEVER_MS, id="no time"),
        pytest.param(Reject("no"), NEVER_MS, id="a rejection"),
        pytest.param(Allow(), CREATED_MS, id="allowed"),
    ],
)
def test_due_time_of_a_plugin_is_clamped(answer: Permit, expected: int) -> None:
    def decide(_pod: Pod, now_ms: int) -> Permit:
        return Allow() if now_ms > CREATED_MS else answer

    due = decider_of(Holding(decide)).due(held_by_others(gates=[Holding.gate]))
    assert (due.at_ms, due.recheck) == (expected, True)


def every(period_ms: int, phase_ms: int = 0) -> Holding:
    """Make a plugin that allows pods in the first millisecond of each period."""

    def decide(_pod: Pod, now_ms: int) -> Permit:
        remaining_ms = -(now_ms - phase_ms) % period_ms
        return Wait(now_ms + remaining_ms, f"every {period_ms} ms") if remaining_ms else Allow()

    return Holding(decide)


def test_due_time_is_the_first_that_all_plugins_allow() -> None:
    first, second = every(7), HoldingToo(every(5, phase_ms=3).permit)
    (expected,) = (ms for ms in range(CREATED_MS, CREATED_MS + 35) if not ms % 7 and ms % 5 == 3)

    assert decider_of(first, second).due(held_by_others()).at_ms == expected


def test_search_for_a_common_due_time_is_bounded() -> None:
    never_both = decider_of(every(2), HoldingToo(every(2, phase_ms=1).permit))

    assert never_both.due(held_by_others()).at_ms < CREATED_MS + 1_000


def test_polling_plugin_is_rechecked_after_its_period() -> None:
    def poll(_pod: Pod, now_ms: int) -> Permit:
        return Wait(now_ms + MINUTE, open_ended=True)

    decider = decider_of(Holding(poll), HoldingToo(lambda _pod, _now_ms: Allow()))

    assert decider.permit(held_by_others(), CREATED_MS + HOUR) == Due(
        CREATED_MS + HOUR + MINUTE, recheck=True, open_ended=True
    )


def test_wait_reasons_name_their_plugins() -> None:
    def because(reason: str) -> Callable[[Pod, int], Permit]:
        return lambda _pod, _now_ms: Wait(reason=reason)

    decider = decider_of(Holding(because("a slot")), HoldingToo(because("the job")))
    expected = "holding: a slot; holding-too: the job"

    assert decider.due(held_by_others()) == Due(NEVER_MS, reason=expected, recheck=True)


def test_plugin_in_allowed_annotation_is_not_asked() -> None:
    decider = decider_of(Holding(never), HoldingToo(never))
    blocked, allowed = (
        Pod.of(held({ALLOWED_ANNOTATION: text}, gates=[Holding.gate, HoldingToo.gate]))
        for text in ("holding", "holding,holding-too")
    )

    assert decider.due(blocked).at_ms == decider.permit(blocked, CREATED_MS).at_ms == NEVER_MS
    assert decider.due(allowed).at_ms == decider.permit(allowed, CREATED_MS).at_ms == CREATED_MS


class SlotsToo(Slots):
    name = "holding-too"
    gate = HoldingToo.gate

    def reserve(self, pod: Pod, now_ms: int) -> Permit:
        return super().reserve(pod, now_ms) if self.free else Wait(reason="a slot")


def test_reservations_are_all_or_nothing() -> None:
    first, second = Slots(), SlotsToo()
    decider = decider_of(first, second)

    assert decider.reserve(held_by_others(), CREATED_MS) is None
    assert (first.free, second.free) == (0, 0)
    decider.unreserve(held_by_others())
    assert (first.free, second.free) == (1, 1)
    second.free = 0
    assert decider.reserve(held_by_others(), CREATED_MS) == Due(
        NEVER_MS, reason="holding-too: a slot"
    )
    assert (first.free, second.free) == (1, 0)


@pytest.mark.parametrize(
    "profiles",
    ["profiles: [{plugins: {disabled: [{name: '*'}]}}]", "profiles: [{schedulerName: mine}]"],
    ids=["no plugin", "no profile"],
)
def test_due_time_without_a_plugin_for_the_gate(profiles: str) -> None:
    pod = Pod.of(held({NOT_BEFORE: instant(CREATED_MS + HOUR)}))

    assert Due(CREATED_MS + HOUR) == make_decider(profiles).due(pod)


# --- at release --------------------------------------------------------------------------------


class RaisingConcerns(Tightening):
    """Raises in `concerns`."""

    def concerns(self, _pod: Pod) -> bool:
        raise KeyError("x")


class Unconcerned(Tightening):
    def concerns(self, _pod: Pod) -> bool:
        return False


@pytest.mark.parametrize(
    ("plugins", "name", "expected"),
    [
        pytest.param([Scripted()], "*", False, id="no release plugin"),
        pytest.param(
            [Scripted(), Tightening(lambda _: skip())], "*", True, id="one release plugin"
        ),
        pytest.param([Unconcerned(lambda _: skip())], "*", False, id="not applicable"),
        pytest.param([RaisingConcerns(lambda _: skip())], "*", True, id="concerns raises"),
        pytest.param([Tightening(lambda _: skip())], "mine", False, id="no profile"),
    ],
)
def test_concerns_at_release(plugins: list[Plugin], name: str, expected: bool) -> None:
    assert expected == decider_of(*plugins, name=name).concerns_at_release(held_by_all())


def test_at_release_collects_edits_warnings_and_rejections() -> None:
    observe = Measured()

    def fail_at_release(_pod: Pod) -> Result:
        raise KeyError("x")

    decider = decider_of(
        Scripted(),
        Tightening(lambda _: success(SetAnnotation("a", "1"), warnings=["mind"])),
        Tightening(lambda _: reject("no node is left")),
        Tightening(fail_at_release),
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
    ) == decider.at_release(held_by_all())
    assert observe.seen == [
        ("tightening", "release", status, "*")
        for status in ("Success", "Reject", "Error", "Error", "Success")
    ] + [("", "release", "Error", "*")]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([], Code.SUCCESS, id="no plugins"),
        pytest.param([skip(), success()], Code.SUCCESS, id="all succeed"),
        pytest.param([reject("no"), success()], Code.REJECT, id="rejected"),
    ],
)
def test_release_status_is_the_worst_plugin_status(results: list[Result], expected: Code) -> None:
    observe = Measured()
    plugins = [Tightening(lambda _, result=result: result) for result in results]  # type: ignore[misc]
    decider_of(*plugins, observe=observe).at_release(held_by_all())

    assert observe.seen[-1] == ("", "release", expected.value, "*")


def test_at_release_without_a_profile() -> None:
    decider = decider_of(Tightening(lambda _: reject("no")), name="mine")

    assert Verdict(Code.SKIP) == decider.at_release(held_by_all())
