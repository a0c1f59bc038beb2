"""An independent parser of delays: Go's grammar, one character at a time, in exact fractions."""

from fractions import Fraction

from tests.support.delay_values import MAX_INT64

NS = {"h": 3_600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6}
DIGITS = "0123456789"
LONGEST_DURATION = 1_000
"""Characters of a duration that is read; docs/reference/annotations.md says so."""


class Refused(Exception):  # noqa: N818 - an outcome, not an error
    pass


def oracle_delay(text: str) -> tuple[Fraction, Fraction]:
    """Parse a delay. Return the exact nanoseconds, and those with each part rounded up."""
    sign, unsigned = (text[0], text[1:]) if text[:1] in {"+", "-"} else ("", text)
    try:
        exact = rounded = Fraction(oracle_int(unsigned)) * 10**9
        if exact > MAX_INT64 * 10**9:
            raise Refused
    except ValueError:
        if len(text) > LONGEST_DURATION:
            raise Refused from None
        exact, rounded = oracle_duration(unsigned)
        if exact > MAX_INT64:
            raise Refused from None
    if sign == "-" and exact:
        raise Refused
    return exact, rounded


def oracle_int(text: str) -> int:
    if not text:
        raise ValueError
    number = 0
    for char in text:
        number = number * 10 + DIGITS.index(char)  # ValueError for anything else
    return number


def oracle_duration(text: str) -> tuple[Fraction, Fraction]:
    exact, rounded = Fraction(0), Fraction(0)
    state, number, scale, digits, unit = "number", 0, 1, 0, ""
    for char in [*text, "end"]:
        if state == "unit" and (char in DIGITS or char in {".", "end"}):
            if unit not in NS:
                raise Refused
            part = Fraction(number * NS[unit], scale)
            exact, rounded = exact + part, rounded - (-part.numerator // part.denominator)
            state, number, scale, digits, unit = "number", 0, 1, 0, ""
            if char == "end":
                return exact, rounded
        if char in DIGITS:
            number, digits = number * 10 + DIGITS.index(char), digits + 1
            scale *= 10 if state == "fraction" else 1
        elif char == "." and state == "number":
            state = "fraction"
        elif char != "end" and digits:
            state, unit = "unit", unit + char
        else:
            raise Refused
    raise AssertionError("a text ends")
