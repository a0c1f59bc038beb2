from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations, messages, syntax
from tests.support.delay_values import DELAYS, INSTANTS, MAX_INT64, Refusal, Row
from tests.support.oracle import DIGITS, Refused, oracle_delay

MESSAGE_LIMIT = 250
FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999

ROWS = [
    *(pytest.param(durations.parse_delay, row, id=f"delay: {row.note}") for row in DELAYS),
    *(pytest.param(durations.parse_instant, row, id=f"instant: {row.note}") for row in INSTANTS),
]
DETAILS = [detail for detail in Refusal if not detail.startswith("use ")]
Parse = Callable[[str], int]


def error_of(parse: Parse, text: str) -> str:
    with pytest.raises(InvalidValueError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(("parse", "row"), ROWS)
def test_value_is_parsed_or_rejected_with_a_short_ascii_line(parse: Parse, row: Row) -> None:
    if not isinstance(row.outcome, Refusal):
        assert row.outcome == parse(row.value)
        return
    message = error_of(parse, row.value)
    details = [detail for detail in DETAILS if f": {detail}; " in message]
    accepted = (
        durations.DELAY_ACCEPTED if parse is durations.parse_delay else durations.INSTANT_ACCEPTED
    )
    assert row.outcome in message
    assert details == [detail for detail in DETAILS if detail is row.outcome]
    assert len(message) <= MESSAGE_LIMIT
    assert message.endswith(accepted)
    assert message.isprintable()
    assert message.replace("…", "").isascii()  # the ellipsis is ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a\nb\x00", '"a\\nb\\x00"', id="control characters"),
        pytest.param("\u202e51", '"\\u202e51"', id="right-to-left override"),
        pytest.param('a"b', '"a\\"b"', id="a double quote"),
        pytest.param("a'b", '"a\'b"', id="a single quote"),
        pytest.param("x" * 41, f'"{"x" * 40}…" (41 characters)', id="too long"),
        pytest.param(
            "é" * 11, '"' + r"\xe9" * 10 + '…" (11 characters)', id="too long once escaped"
        ),
    ],
)
def test_quote(text: str, expected: str) -> None:
    assert expected == messages.quote(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a" * 8, "a" * 8), ("aaaaXbbbb", "aaaa…bbbb"), ("a" * 9_000 + "b" * 9_000, "aaaa…bbbb")],
    ids=["at the limit", "one over", "far too long"],
)
def test_shorten_keeps_start_and_end(text: str, expected: str) -> None:
    assert messages.shorten(text, 8) == expected


@given(st.text())
def test_quoted_text_is_short_and_printable(text: str) -> None:
    quoted = messages.quote(text)

    assert len(quoted) <= messages.QUOTED_CHARACTERS + 40
    assert quoted.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("delay", True, id="a name"),
        pytest.param("example.com/Delay_1.x-y", True, id="a prefix and a name"),
        pytest.param("a" * 63, True, id="the longest name"),
        pytest.param("a" * 64, False, id="a name too long"),
        pytest.param(f"{'a' * 253}/x", True, id="the longest prefix"),
        pytest.param(f"{'a' * 254}/x", False, id="a prefix too long"),
        pytest.param("", False, id="empty"),
        pytest.param("/delay", False, id="an empty prefix"),
        pytest.param("example.com/", False, id="an empty name"),
        pytest.param("a/b/c", False, id="two slashes"),
        pytest.param("Example.com/delay", False, id="a prefix with a capital"),
        pytest.param("example..com/delay", False, id="a prefix with an empty label"),
        pytest.param("-a.com/delay", False, id="a prefix that begins with a dash"),
        pytest.param("-delay", False, id="a name that begins with a dash"),
        pytest.param("delay.", False, id="a name that ends with a dot"),
        pytest.param("a b", False, id="a blank"),
        pytest.param("delay\n", False, id="a line break"),
        pytest.param("d\u00e9lai", False, id="not ASCII"),
        pytest.param("\uff11", False, id="a full-width digit"),
    ],
)
def test_qualified_name(text: str, expected: bool) -> None:
    assert expected == syntax.is_qualified_name(text)


@pytest.mark.parametrize(
    ("text", "value", "namespace"),
    [
        pytest.param("", True, False, id="empty"),
        pytest.param("a-1", True, True, id="a DNS label"),
        pytest.param("A_1.x", True, False, id="a label value"),
        pytest.param("a" * 63, True, True, id="the longest"),
        pytest.param("a" * 64, False, False, id="too long"),
        pytest.param("-a", False, False, id="begins with a dash"),
        pytest.param("a/b", False, False, id="a slash"),
        pytest.param("a\n", False, False, id="a line break"),
        pytest.param("\uff11", False, False, id="a full-width digit"),
    ],
)
def test_label_value_and_namespace(text: str, value: bool, namespace: bool) -> None:
    assert (value, namespace) == (syntax.is_label_value(text), syntax.is_namespace(text))


# --- against the oracle ------------------------------------------------------------------------

numbers = st.text(DIGITS, max_size=22)
parts = st.builds(
    lambda whole, point, fraction, unit: whole + point + fraction + unit,
    numbers,
    st.sampled_from(["", "."]),
    st.text(DIGITS, max_size=4),
    st.sampled_from(["h", "m", "s", "ms", "ms", "d", "us", ""]),
)
written = st.builds(
    lambda sign, pieces: sign + "".join(pieces),
    st.sampled_from(["", "", "+", "-"]),
    st.lists(parts, max_size=4),
)
plausible = st.one_of(
    written,
    st.text("0123456789+-.hmsu _eExX\n\u0661\uff11", max_size=12),
    st.builds(lambda sign, digits: sign + digits, st.sampled_from(["", "+", "-"]), numbers),
    st.sampled_from([row.value for row in DELAYS if len(row.value) < 100]),
    st.text(max_size=8),
)


@given(plausible)
@example("1.0000000001ms.0000000001ms")
def test_delay_agrees_with_the_oracle(text: str) -> None:
    try:
        exact, rounded = oracle_delay(text)
    except Refused:
        error_of(durations.parse_delay, text)
        return
    milliseconds = durations.parse_delay(text)

    assert milliseconds >= exact / 10**6, "rounded down"
    assert milliseconds == -(-rounded.numerator // (rounded.denominator * 10**6))


@given(st.integers(0, MAX_INT64 // 10**6))
def test_canonical_delay_round_trips(milliseconds: int) -> None:
    assert milliseconds == durations.parse_delay(durations.canonical_delay(milliseconds))


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        pytest.param(0, "0s", id="zero"),
        pytest.param(15_000, "15s", id="seconds"),
        pytest.param(90 * 60_000, "1h30m", id="hours and minutes"),
        pytest.param(1_500, "1s500ms", id="milliseconds"),
        pytest.param(48 * 3_600_000, "48h", id="days as hours"),
    ],
)
def test_canonical_delay(milliseconds: int, expected: str) -> None:
    assert expected == durations.canonical_delay(milliseconds)


# --- instants ----------------------------------------------------------------------------------


def oracle_instant(
    date: tuple[int, int, int], clock: tuple[int, int, int], fraction: str, offset: int
) -> Fraction:
    """Count milliseconds since 1970, by counting days one year and one month at a time."""
    year, month, day = date
    hour, minute, second = clock
    if not (1 <= month <= 12 and year >= 1 and hour < 24 and minute < 60 and second < 60):
        raise Refused
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    months = [31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    if not 1 <= day <= months[month - 1]:
        raise Refused
    past = year - 1
    days = past * 365 + past // 4 - past // 100 + past // 400 + sum(months[: month - 1]) + day - 1
    seconds = (days - 719_162) * 86_400 + hour * 3_600 + minute * 60 + second - offset * 60
    exact = seconds * 1_000 + Fraction(int(fraction or "0") * 1_000, 10 ** len(fraction))
    if not FIRST <= exact <= LAST:
        raise Refused
    return exact


@given(
    date=st.tuples(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32)),
    clock=st.tuples(st.integers(0, 24), st.integers(0, 60), st.integers(0, 60)),
    fraction=st.text(DIGITS, max_size=12),
    offset=st.integers(-1_439, 1_439),
)
@example(date=(9999, 12, 31), clock=(23, 59, 59), fraction="999", offset=0)
@example(date=(1, 1, 1), clock=(0, 0, 0), fraction="", offset=1)
def test_instant_agrees_with_the_oracle(
    date: tuple[int, int, int], clock: tuple[int, int, int], fraction: str, offset: int
) -> None:
    sign, (hours, minutes) = "-" if offset < 0 else "+", divmod(abs(offset), 60)
    text = "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*date, *clock)
    text += f".{fraction}" if fraction else ""
    text += f"{sign}{hours:02}:{minutes:02}"
    try:
        exact = oracle_instant(date, clock, fraction, offset)
    except Refused:
        error_of(durations.parse_instant, text)
        return

    assert -(-exact.numerator // exact.denominator) == durations.parse_instant(text)


@given(st.integers(FIRST, LAST))
def test_canonical_instant_round_trips(milliseconds: int) -> None:
    assert milliseconds == durations.parse_instant(durations.canonical_instant(milliseconds))


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(FIRST - 1, "0001-01-01T00:00:00Z"), (MAX_INT64 * 1_000, "9999-12-31T23:59:59.999Z")],
    ids=["too early", "too late"],
)
def test_canonical_instant_is_clamped_to_the_calendar(milliseconds: int, expected: str) -> None:
    assert expected == durations.canonical_instant(milliseconds)


@given(st.integers(FIRST, LAST))
def test_to_datetime_counts_from_1970_in_utc(milliseconds: int) -> None:
    moment = durations.to_datetime(milliseconds)

    assert moment.utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert durations.canonical_instant(milliseconds) == (
        moment.isoformat(timespec="milliseconds" if milliseconds % 1_000 else "seconds")
    ).replace("+00:00", "Z")


# --- hostile sizes: anything worse than linear would exceed the timeout ------------------------

LONG = 200_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("ending", ["", "x", "\n"], ids=["whole", "invalid", "line break"])
@pytest.mark.parametrize(
    "piece", ["1", "0h", "1.1", "1.", ".1ms", "1m", "m", "+", "\uff11", "0ms0m"]
)
@pytest.mark.parametrize("parse", [durations.parse_delay, durations.parse_instant])
def test_long_values_take_linear_time(parse: Parse, piece: str, ending: str) -> None:
    text = piece * LONG + ending
    try:
        outcome = f"{parse(text)} ms"
    except InvalidValueError as exc:
        outcome = str(exc)

    assert len(outcome) <= MESSAGE_LIMIT
    assert not outcome.startswith("-")
