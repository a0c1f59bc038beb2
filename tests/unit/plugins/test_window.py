"""The window plugin: which pods are held, and until when."""

from typing import Any

import pytest

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.plugin import Allow, Args, Code, Permit, Result, Wait, success
from holdfast.webhook.model import approvals
from holdfast.webhook.model.annotations import JITTER, NEVER_MS
from holdfast.webhook.model.edits import AddGate
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import window
from holdfast.webhook.plugins.approval import Approval
from holdfast.webhook.plugins.named_windows import NamedWindow
from holdfast.webhook.plugins.window import GATE, KEY, Window, WindowArgs
from tests.support import builders
from tests.support.builders import CREATED_MS, HOUR, MINUTE, held, make_delay, make_pod
from tests.support.counting import counted
from tests.support.scripted import decider_of
from tests.support.window_values import WINDOWS, WindowRefusal

NIGHT = NamedWindow(name="night", open=("22:00-06:00",), time_zone="Europe/Berlin")
OPEN_HOURS = "12:00-13:00"
"""Hours that include the creation time of the builders' pods, 12:00 UTC."""


def window_of(*windows: NamedWindow, **args: Any) -> Window:
    return Window(WindowArgs(windows=windows, **args))


def call(point: str, text: str, plugin: Window | None = None, **fields: Any) -> Result:
    return builders.call(plugin or window_of(NIGHT), point, make_pod({KEY: text}, **fields))


@pytest.mark.parametrize("row", WINDOWS, ids=lambda row: f"{row.value[:30]}")
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_values(row: Any, point: str) -> None:
    result = call(point, row.value, window_of(max_delay="10000h"), gates=[GATE])

    if isinstance(row.outcome, WindowRefusal):
        assert result.code is Code.REJECT
        assert result.reason.startswith(f"annotation {KEY}: ")
        assert len(result.reason) < 500
    else:
        assert result.code is Code.SUCCESS


def test_pod_gets_the_gate_even_while_its_window_is_open() -> None:
    for text in ("night", OPEN_HOURS, "Sat 10:00-11:00"):
        assert call("mutate", text) == success(AddGate(GATE))
    assert call("mutate", OPEN_HOURS, node="n1").edits == ()
    assert "is missing although" in call("validate", OPEN_HOURS).reason


def test_window_that_opens_after_max_delay_is_rejected() -> None:
    plugin = window_of(max_delay="5h")

    assert call("mutate", "17:00-18:00", plugin).code is Code.SUCCESS
    assert call("mutate", "17:01-18:00", plugin).reason == (
        f'annotation {KEY}: "17:01-18:00": the window opens at 2026-03-01T17:01:00Z, more than '
        "maxDelay=5h after the pod's creation: use a window that opens earlier, or ask an admin to "
        "raise maxDelay"
    )
    assert call("validate", "17:01-18:00", plugin, gates=[GATE]).code is Code.REJECT


def test_unknown_window_is_rejected_with_the_configured_names() -> None:
    expected = f'annotation {KEY}: there is no window "nights"; configured: night; or use windows'
    assert call("mutate", "nights").reason.startswith(expected)
    assert '"nights"; configured: none; or' in call("mutate", "nights", window_of()).reason
    assert call("mutate", "Mon-Fry").reason.startswith(expected.replace("nights", "Mon-Fry"))
    assert "have no hours" in call("mutate", "Mon-Fri").reason
    assert call("mutate", "night2").reason.endswith("; or name one of: night")


@pytest.mark.parametrize(
    ("windows", "args", "message"),
    [
        ([NIGHT, NIGHT], {}, r"windows\[1\].name: 'night' names two windows"),
        ([NamedWindow(name="x", open=("25:00-26:00",))], {}, r"windows\[0\].open\[0\]: "),
        ([], {"max_delay": "soon"}, "maxDelay: invalid value"),
    ],
)
def test_invalid_arguments(windows: list[NamedWindow], args: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        window_of(*windows, **args)


def pod_of(text: str, key: str = "", value: str = "", uid: str = "u-1") -> Pod:
    return Pod.of(make_pod({KEY: text, **({key: value} if key else {})}, gates=[GATE], uid=uid))


def until(permit: Permit) -> int:
    assert isinstance(permit, Wait)
    assert permit.until_ms is not None
    return permit.until_ms


def test_pod_is_held_until_the_window_opens() -> None:
    plugin, pod = window_of(NIGHT), pod_of("night")
    opens_ms = CREATED_MS + 9 * HOUR  # 22:00 in Berlin in winter

    assert plugin.permit(pod, CREATED_MS) == Wait(opens_ms, "opens at 2026-03-01T21:00:00Z")
    assert plugin.permit(pod, opens_ms) == Allow()
    assert plugin.permit(pod, opens_ms + 8 * HOUR - 1) == Allow()
    assert plugin.permit(pod, opens_ms + 8 * HOUR) == Wait(
        opens_ms + 24 * HOUR, "opens at 2026-03-02T21:00:00Z"
    )
    assert plugin.permit(pod, opens_ms + 24 * HOUR) == Allow()
    # if the clock is set back
    assert plugin.permit(pod, opens_ms + 8 * HOUR - 1) == Allow()
    assert plugin.permit(pod, opens_ms - 1) == Wait(opens_ms, "opens at 2026-03-01T21:00:00Z")


def test_jitter_spreads_pods_after_the_window_opens() -> None:
    plugin = window_of(NIGHT)
    opens_ms = CREATED_MS + 9 * HOUR
    pods = [pod_of("night", JITTER, "1h", uid=str(number)) for number in range(200)]
    starts = [until(plugin.permit(pod, CREATED_MS)) - opens_ms for pod in pods]

    assert 0 <= min(starts) < 2 * MINUTE
    assert 58 * MINUTE < max(starts) < HOUR
    for pod, start in zip(pods, starts, strict=True):
        assert until(plugin.permit(pod, opens_ms)) == opens_ms + start
        assert plugin.permit(pod, opens_ms + start) == Allow()


def test_jitter_ends_with_the_window() -> None:
    plugin = window_of()
    pods = [pod_of("13:00-14:00", JITTER, "10h", uid=str(number)) for number in range(200)]
    starts = [until(plugin.permit(pod, CREATED_MS)) - CREATED_MS for pod in pods]

    assert HOUR <= min(starts) < HOUR + 2 * MINUTE
    assert 2 * HOUR - 2 * MINUTE < max(starts) < 2 * HOUR


@pytest.mark.parametrize("value", ["1h", "soon"])
def test_jitter_is_ignored_for_a_pod_created_in_an_open_window(value: str) -> None:
    assert window_of().permit(pod_of(OPEN_HOURS, JITTER, value), CREATED_MS) == Allow()


def test_many_windows_that_never_close_are_cheap() -> None:
    """Users choose the windows, and each change of a pod evaluates them again."""
    cities = "Abidjan Accra Bamako Banjul Bissau Conakry Dakar Freetown Lome Monrovia Nouakchott"
    zones = [f"Africa/{city}" for city in [*cities.split(), "Ouagadougou"]]
    text = ", ".join(
        f"{2 * n:02}:00-{(2 * n + 2) % 24:02}:01 {zone}" for n, zone in enumerate(zones)
    )
    pod = pod_of(text, JITTER, "167h")
    with counted() as steps:
        assert window_of().permit(pod, CREATED_MS + 200 * HOUR) == Allow()
    assert 500 < steps[0] < 50_000  # 5,000,000 with a search over 400 days


@pytest.mark.parametrize("text", ["nights", "night;", ""])
def test_pod_with_an_invalid_window_stays_held(text: str) -> None:
    result = window_of(NIGHT).permit(pod_of(text), CREATED_MS)

    assert isinstance(result, Wait)
    assert result.until_ms is None
    assert result.problem.endswith(": held until the annotation is corrected")


def test_delay_and_window_both_apply() -> None:
    decider = decider_of(make_delay(), window_of())
    gates = ["holdfast.dev/delay", GATE]
    for delay, due_ms in (("30m", 30 * MINUTE), ("1h", 24 * HOUR), ("23h", 24 * HOUR)):
        pod = Pod.of(held({"delay": delay, KEY: OPEN_HOURS}, gates=gates))
        assert decider.due(pod).at_ms == CREATED_MS + due_ms
        assert decider.permit(pod, CREATED_MS + due_ms).at_ms <= CREATED_MS + due_ms


def test_cache_of_parsed_windows_is_bounded() -> None:
    plugin = window_of()
    for number in range(1_440):
        plugin.permit(pod_of(f"{number // 60}:{number % 60:02}-24:00"), CREATED_MS)
    before = window._parse.cache_info().currsize
    assert before <= 1_024
    for number in range(100):
        plugin.permit(pod_of("Mon 10:00-11:00," * 10_000 + str(number)), CREATED_MS)
    assert window._parse.cache_info().currsize == before  # invalid windows are not cached


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("Mon-Fri 22:00-24:00", "", id="closed"),
        pytest.param(OPEN_HOURS, "", id="open"),
        pytest.param("gone", "no window opens within 400 days", id="never"),
    ],
)
def test_window_of_a_pod_that_also_waits_for_an_approval(text: str, problem: str) -> None:
    named_window = NamedWindow(name="gone", open=(OPEN_HOURS,), closed=("2026-01-01/2036-01-01",))
    decider = decider_of(Approval(Args()), window_of(named_window))
    pod = Pod.of(make_pod({KEY: text, approvals.KEY: "x"}, gates=[GATE, approvals.GATE]))
    for due in (decider.due(pod), decider.permit(pod, CREATED_MS + MINUTE)):
        assert (due.at_ms, due.reason, due.problem) == (NEVER_MS, "approval: x", problem)


def warnings_about(kind: str, text: str, after_ms: int = 0, **spec: Any) -> list[str]:
    workload = {"spec": {"template": {"metadata": {"annotations": {KEY: text}}}, **spec}}
    if kind == "CronJob":
        workload = {"spec": {"jobTemplate": workload}}
    group = {"group": "batch", "version": "v1", "kind": kind}
    now_ms = CREATED_MS + after_ms
    return list(builders.call(window_of(), "validate", workload, now_ms, kind=group).warnings)


def test_deadline_before_the_window_opens_gets_a_warning() -> None:
    field = "spec.activeDeadlineSeconds=20"
    spec = {"completions": 9, "parallelism": 1, "activeDeadlineSeconds": 7_201}
    for after_ms in (0, 1_234):
        warnings = warnings_about("Job", "14:00-15:00", after_ms, activeDeadlineSeconds=20)
        assert warnings == [f"holdfast: {field} expires while pods are held for 2h: increase it"]
    assert warnings_about("Job", "14:00-15:00", **spec) == []
    assert warnings_about("Job", OPEN_HOURS, activeDeadlineSeconds=20) == []
    assert warnings_about("CronJob", "14:00-15:00", activeDeadlineSeconds=20) == [
        f"holdfast: spec.jobTemplate.{field} also counts while pods are held: increase or remove it"
    ]
