"""Our parser of requests against gunicorn's own, which it builds on.

Both find the same in any bytes, however they come: the same request with the same end, or the same
error; and every error is one that a connection answers.
"""

from __future__ import annotations

import pytest
from gunicorn.asgi.parser import (  # type: ignore[import-untyped]
    ParseError,
    PythonProtocol,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.server.parsing import LIMITS, cut, read
from tests.server.shapes import ENDLESS, HIDDEN, OURS, SHAPES, request
from webhook.request_parser import LENGTH_DIGITS, USUAL_HEAD, RequestParser

LINES = [b"POST /mutate?timeout=3s HTTP/1.1", b"GET / HTTP/1.0", b"POST http://a/b HTTP/1.1"]
FIELDS = [
    b"Host: x",
    b"Host: y",
    b"Content-Length: 2",
    b"Content-Length: 02",
    b"Content-Length: 2, 2",
    b"Content-Length: 0",
    b"Content-Length: " + b"0" * 600 + b"2",
    b"content-length: 5",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Connection: close",
    b"Expect: 100-continue",
    b"X: \xe9",
    b"X_Y: z",
    b"Upgrade: h2c",
    b" folded",
]
BODIES = [
    b"",
    b"{}",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
    b"0\r\n\r\n",
    b"0" * 5_000 + b"2\r\n{}\r\n0\r\n\r\n",
]
SIGNS = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"0",
    b"x",
    b"-",
    b"+",
    b"\xff",
]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Make a request that is nearly one, or one with a few bytes spoilt."""
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=5))
    head = b"\r\n".join([draw(st.sampled_from(LINES)), *fields, b"", b""])
    whole = head + draw(st.sampled_from(BODIES)) + draw(st.sampled_from([b"", HIDDEN]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(whole)))
        gone = draw(st.integers(0, 2))
        whole = whole[:at] + draw(st.sampled_from([b"", *SIGNS])) + whole[at + gone :]
    return whole


USUAL = b"POST /mutate?timeout=3s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
LONG = [b"X-%d: %s" % (number, b"y" * 100) for number in range(USUAL_HEAD // 100)]
MANY = [b"X-%d:" % number for number in range(70)]


@settings(max_examples=3_000, deadline=None)
@given(requests(), st.lists(st.integers(0, 300), max_size=3))
@example(USUAL, [])
@example(USUAL, list(range(80)))
@example(USUAL.replace(b"\r\n\r\n", b"\r\n" + b"\r\n".join(LONG) + b"\r\n\r\n"), [])
@example(USUAL.replace(b"\r\n\r\n", b"\r\n" + b"\r\n".join(MANY) + b"\r\n\r\n"), [])
@example(USUAL + HIDDEN, [])
@example(request(b"Transfer-Encoding: chunked", body=b"0\r\n" + b"X: y\r\n" * 63 + b"\r\n"), [])
def test_whatever_comes_is_read_as_gunicorn_reads_it(whole: bytes, cuts: list[int]) -> None:
    pieces = cut(whole, cuts)
    found = read(RequestParser, pieces)
    assert found == read(PythonProtocol, pieces)
    assert found.is_answered, found.error


@settings(max_examples=1_000, deadline=None)
@given(
    st.sampled_from([*SHAPES.values(), *OURS.values()]),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=3),
    st.lists(st.integers(0, 300), max_size=3),
)
def test_whatever_is_spoilt_ends_in_an_error_that_is_answered(
    shape: bytes, spoilt: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    whole = shape
    for place, new in spoilt:
        at = place % (len(whole) + 1)
        whole = whole[:at] + new + whole[at + len(new) :]
    found = read(RequestParser, cut(whole, cuts))
    assert found.is_answered, found.error


def test_usual_request_is_read_as_a_whole() -> None:
    found = read(RequestParser, [USUAL])
    assert (found.complete, found.body, found.error) == (True, b"{}", "")
    assert found.head[3] == ((b"host", b"x"), (b"content-length", b"2"))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ambiguous_request_is_refused(shape: bytes) -> None:
    found = read(RequestParser, [shape])
    assert found.error
    assert found == read(PythonProtocol, [shape])


@pytest.mark.parametrize("shape", OURS.values(), ids=OURS)
def test_what_gunicorn_does_not_refuse_well_is_refused(shape: bytes) -> None:
    found, theirs = read(RequestParser, [shape]), read(PythonProtocol, [shape])
    assert found.error
    assert found.is_answered
    assert not theirs.error or not theirs.is_answered


@pytest.mark.parametrize(("head", "piece"), ENDLESS.values(), ids=ENDLESS)
def test_what_has_no_end_is_refused_or_kept_nothing_of(head: bytes, piece: bytes) -> None:
    parser = RequestParser(**LIMITS)
    parser.feed(head)
    try:
        for _ in range(10_000):
            parser.feed(piece)
            assert len(parser._buffer) <= 16_384
    except ParseError:
        pass


def test_longest_length_that_is_read() -> None:
    digits = b"0" * (LENGTH_DIGITS - 1) + b"2"
    assert read(RequestParser, [request(b"Content-Length: " + digits)]).body == b"{}"
    assert read(RequestParser, [request(b"Content-Length: 0" + digits)]).error
