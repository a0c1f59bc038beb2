import statistics
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    DELAY_KEYS,
    HELD_ANNOTATION,
    JITTER,
    NOT_BEFORE,
    Due,
    HoldRequest,
    allowed_plugins,
    decide_due,
    format_hint,
    jitter_share_ms,
    read_hint,
    read_hold_request,
)
from tests.support.builders import CREATED_MS, HOUR, MINUTE, SECOND, UID, instant

LONGEST_MS = (2**63 - 1) // 10**6
LATER = CREATED_MS + HOUR


def share(jitter_ms: int) -> int:
    return jitter_share_ms(UID, jitter_ms)


# --- due = max(created + delay, not-before) + share x jitter -----------------------------------


@pytest.mark.parametrize(
    ("hold_request", "expected"),
    [
        pytest.param(HoldRequest(0, LATER), LATER, id="not-before"),
        pytest.param(
            HoldRequest(2 * HOUR, LATER),
            CREATED_MS + 2 * HOUR,
            id="the delay ends after not-before",
        ),
        pytest.param(HoldRequest(0, None, MINUTE), CREATED_MS + share(MINUTE), id="jitter alone"),
        pytest.param(HoldRequest(MINUTE, LATER, HOUR), LATER + share(HOUR), id="all three"),
    ],
)
def test_due(hold_request: HoldRequest, expected: int) -> None:
    assert expected == hold_request.due_ms(created_ms=CREATED_MS, jitter_key=UID)


@given(st.text(), st.integers(0, LONGEST_MS))
def test_jitter_share_is_within_the_jitter(uid: str, jitter_ms: int) -> None:
    uid = uid.encode(errors="replace").decode()

    assert 0 <= jitter_share_ms(uid, jitter_ms) <= jitter_ms


def test_jitter_share_is_stable() -> None:
    assert share(HOUR) == 132_017


def test_jitter_shares_are_evenly_distributed() -> None:
    shares = [jitter_share_ms(str(uuid.UUID(int=i)), 1_000) for i in range(2_000)]

    assert 450 < statistics.mean(shares) < 550
    assert all(
        150 < sum(low <= share_ms < low + 100 for share_ms in shares) < 250
        for low in range(0, 1_000, 100)
    )


@pytest.mark.parametrize(
    ("hold_request", "expected"),
    [
        pytest.param(HoldRequest(), False, id="nothing"),
        pytest.param(HoldRequest(1), True, id="delay"),
        pytest.param(HoldRequest(0, None, 1), True, id="jitter"),
        pytest.param(HoldRequest(0, LATER), True, id="not-before ahead"),
        pytest.param(
            HoldRequest(0, CREATED_MS - 10 * MINUTE), True, id="not-before 10 minutes ago"
        ),
        pytest.param(
            HoldRequest(0, CREATED_MS - 10 * MINUTE - 1), False, id="not-before long past"
        ),
        pytest.param(
            HoldRequest(1, CREATED_MS - HOUR), True, id="delay with a not-before long past"
        ),
    ],
)
def test_holds(hold_request: HoldRequest, expected: bool) -> None:
    assert expected == hold_request.holds(CREATED_MS)


# --- reading annotations -----------------------------------------------------------------------

KEYS = ("holdfast.dev/delay", "delay", "example.com/wait")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, HoldRequest(), id="none"),
        pytest.param({"delay": "15"}, HoldRequest(15 * SECOND, delay_key="delay"), id="short key"),
        pytest.param(
            {"delay": "60", "holdfast.dev/delay": "1m"},
            HoldRequest(MINUTE, delay_key="holdfast.dev/delay"),
            id="two that agree",
        ),
        pytest.param({"delay": "0"}, HoldRequest(0, delay_key="delay"), id="zero"),
        pytest.param({NOT_BEFORE: instant(LATER)}, HoldRequest(0, LATER), id="not-before"),
        pytest.param({JITTER: "2s"}, HoldRequest(0, None, 2 * SECOND), id="jitter"),
        pytest.param({"other.io/delay": "soon"}, HoldRequest(), id="an unrelated key"),
    ],
)
def test_read_hold_request(annotations: dict[str, str], expected: HoldRequest) -> None:
    assert expected == read_hold_request(annotations, KEYS)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param(
            {NOT_BEFORE: "noon"},
            'annotation holdfast.dev/not-before: invalid value "noon": '
            + durations.INSTANT_ACCEPTED,
            id="not-before",
        ),
        pytest.param(
            {JITTER: "-1"},
            'annotation holdfast.dev/jitter: invalid value "-1": negative; '
            + durations.DELAY_ACCEPTED,
            id="jitter",
        ),
        pytest.param(
            {"delay": "15", "holdfast.dev/delay": "soon"},
            f'annotation holdfast.dev/delay: invalid value "soon": {durations.DELAY_ACCEPTED}',
            id="one of two is invalid",
        ),
    ],
)
def test_invalid_hold_request(annotations: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_hold_request(annotations, KEYS)

    assert expected == str(caught.value)


# --- the hint ----------------------------------------------------------------------------------


hold_requests = st.builds(
    HoldRequest,
    st.integers(1, LONGEST_MS),
    st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999),
    st.integers(0, LONGEST_MS),
    st.sampled_from(KEYS),
)


@given(hold_requests)
def test_hint_round_trips(hold_request: HoldRequest) -> None:
    assert hold_request == read_hint(format_hint(hold_request))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "delay",
        "delay=",
        "=15s",
        "delay=15s,",
        "delay=15s,delay=15s",
        "delay=15s,other=15s",
        "delay=soon",
        "not-before=15s",
        "holdfast.dev/not-before=15s",
        "holdfast.dev/jitter=15s",
        "jitter=2026-03-01T12:00:00Z",
        "delay=-1s",
        "delay=" + "9" * 1_000_000,
        "delay=15s\n",
        "\u202edelay=15s\u202e",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_invalid_hints_are_rejected_in_one_line(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_hint(text)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_oversized_hint_is_rejected_and_allowed_list_truncated() -> None:
    """Parsing either in full would cost the controller 20 ms on every change of the pod."""
    hint = ",".join(f"{number}=1" for number in range(20_000))
    with pytest.raises(InvalidValueError, match=r"holdfast\.dev/held: invalid value"):
        read_hint(hint)
    plugin_names = allowed_plugins({ALLOWED_ANNOTATION: "window," * 20_000})
    assert list(plugin_names) == ["window"] * 100


# --- the decision at release -------------------------------------------------------------------


def decide(annotations: dict[str, str], *, keys: tuple[str, ...] = DELAY_KEYS) -> Due:
    return decide_due(annotations, created_ms=CREATED_MS, jitter_key=UID, delay_keys=keys)


@pytest.mark.parametrize(
    ("annotations", "expected_ms"),
    [
        pytest.param({"delay": "15", HELD_ANNOTATION: "delay=15s"}, 15 * SECOND, id="as created"),
        pytest.param({"delay": "1h", HELD_ANNOTATION: "delay=15s"}, HOUR, id="longer"),
        pytest.param({"delay": "0", HELD_ANNOTATION: "delay=15s"}, 0, id="zero"),
        pytest.param({"delay": "15"}, 15 * SECOND, id="no hint"),
        pytest.param({"delay": "15", HELD_ANNOTATION: "\x00"}, 15 * SECOND, id="an invalid hint"),
        pytest.param(
            {JITTER: "1h", HELD_ANNOTATION: "delay=15s"}, share(HOUR), id="jitter instead of delay"
        ),
        pytest.param(
            {"example.com/old": "20", HELD_ANNOTATION: "example.com/old=10s"},
            20 * SECOND,
            id="a key no longer configured",
        ),
        pytest.param(
            {
                "example.com/wait": "20",
                NOT_BEFORE: instant(CREATED_MS),
                HELD_ANNOTATION: "jitter=1s",
            },
            0,
            id="a key unknown to hint and configuration",
        ),
        pytest.param(
            {NOT_BEFORE: instant(LATER), HELD_ANNOTATION: "holdfast.dev/not-before=1s"},
            HOUR,
            id="a hint that names not-before as a delay key",
        ),
    ],
)
def test_annotations_determine_the_due_time(annotations: dict[str, str], expected_ms: int) -> None:
    assert Due(CREATED_MS + expected_ms) == decide(annotations)


def test_hint_without_delay_adds_no_delay_key() -> None:
    annotations = {
        "holdfast.dev/delay": "1h",
        NOT_BEFORE: instant(CREATED_MS + MINUTE),
        HELD_ANNOTATION: f"not-before={instant(CREATED_MS + MINUTE)}",
    }

    assert Due(CREATED_MS + MINUTE) == decide(annotations, keys=("example.com/wait",))


@pytest.mark.parametrize(
    "annotations",
    [{}, {HELD_ANNOTATION: "delay=15s"}, {HELD_ANNOTATION: "gone"}, {"other": "15"}],
    ids=["none", "hint alone", "invalid hint", "unrelated"],
)
def test_pod_without_annotations_is_due_immediately(annotations: dict[str, str]) -> None:
    expected = Due(CREATED_MS, "no annotation asks for a hold: released at once")

    assert expected == decide(annotations)


@pytest.mark.parametrize(
    ("annotations", "expected_ms"),
    [
        pytest.param({"delay": "soon", HELD_ANNOTATION: "delay=15s"}, 15 * SECOND, id="delay"),
        pytest.param(
            {"delay": "1", "holdfast.dev/delay": "2", HELD_ANNOTATION: "delay=15s"},
            15 * SECOND,
            id="conflict",
        ),
        pytest.param(
            {NOT_BEFORE: "noon", HELD_ANNOTATION: f"not-before={instant(LATER)}"}, HOUR, id="time"
        ),
        pytest.param(
            {"delay": "1", JITTER: "?", HELD_ANNOTATION: "delay=1s,jitter=1h"},
            SECOND + share(HOUR),
            id="jitter",
        ),
    ],
)
def test_invalid_annotation_falls_back_to_the_hint(
    annotations: dict[str, str], expected_ms: int
) -> None:
    due = decide(annotations)

    assert CREATED_MS + expected_ms == due.at_ms
    assert due.problem.endswith("using annotation holdfast.dev/held instead")


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        pytest.param({"delay": "soon"}, "annotation holdfast.dev/held is missing", id="missing"),
        pytest.param({"delay": "soon", HELD_ANNOTATION: "x"}, 'invalid value "x"', id="invalid"),
    ],
)
def test_invalid_annotation_without_valid_hint_is_due_immediately(
    annotations: dict[str, str], why: str
) -> None:
    due = decide(annotations)

    assert due.at_ms == CREATED_MS
    assert 'invalid value "soon"' in due.problem
    assert why in due.problem
    assert due.problem.endswith(": released at once")


names = st.sampled_from([*KEYS, NOT_BEFORE, JITTER, HELD_ANNOTATION])
anything = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["15", "1h", instant(LATER), "delay=15s", "holdfast.dev/not-before=1s", "-1"]),
)


@given(st.dictionaries(names, anything))
def test_any_annotations_yield_a_due_time(annotations: dict[str, str]) -> None:
    due = decide(annotations)

    assert isinstance(due.at_ms, int)
    assert due.problem.isprintable()


# --- properties of plausible requests ----------------------------------------------------------


@given(hold_requests, st.uuids())
def test_due_time_is_within_the_requested_bounds(hold_request: HoldRequest, uid: uuid.UUID) -> None:
    due = hold_request.due_ms(created_ms=CREATED_MS, jitter_key=str(uid))

    assert due >= CREATED_MS + hold_request.delay_ms
    assert due >= (hold_request.not_before_ms or due)
    earliest = max(CREATED_MS + hold_request.delay_ms, hold_request.not_before_ms or 0)
    assert due <= earliest + hold_request.jitter_ms
