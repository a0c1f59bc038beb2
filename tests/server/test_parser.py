"""Compare the connection's parsing of requests with gunicorn's parser, which is also strict.

Both parse the same reviews, however the bytes are split. All other input gets an error response.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.webhook.server.connection import (
    FIELDS_LIMIT,
    LENGTH_DIGITS,
    PIPELINE_LIMIT,
    UNPRODUCTIVE_LIMIT,
    URL_LIMIT,
)
from tests.server.parsing import Worker, check, cut, read
from tests.server.shapes import ENDLESS, HIDDEN, OURS, SHAPES, request

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
SEPARATORS = [b"\r\n", *(bytes([byte]) for byte in b"\r\n\0 \t:,;0x-+\xff")]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Make an almost valid request, or one with a few corrupted bytes."""
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=5))
    head = b"\r\n".join([draw(st.sampled_from(LINES)), *fields, b"", b""])
    stream = head + draw(st.sampled_from(BODIES)) + draw(st.sampled_from([b"", HIDDEN]))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(stream)))
        removed = draw(st.integers(0, 2))
        stream = (
            stream[:position]
            + draw(st.sampled_from([b"", *SEPARATORS]))
            + stream[position + removed :]
        )
    return stream


USUAL = b"POST /mutate?timeout=3s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
MAXIMUM_FIELDS = [b"X-%d:" % number for number in range(FIELDS_LIMIT - 3)]


@settings(max_examples=1_000, deadline=None)
@given(requests(), st.lists(st.integers(0, 300), max_size=3))
@example(USUAL, [])
@example(USUAL, list(range(80)))
@example(USUAL + HIDDEN, [])
@example(USUAL * (PIPELINE_LIMIT + 1), [len(USUAL)])
@example(b"HEAD * HTTP/1.1\r\n\r\n" + USUAL, [])
@example(b"POST /" + b"x" * (URL_LIMIT - 1) + b" HTTP/1.1\r\n\r\n", [])
@example(request(b"Transfer-Encoding: chunked", body=b"0\r\n" + b"X: y\r\n" * 61 + b"\r\n"), [])
def test_requests_are_parsed_as_gunicorn_parses_them(whole: bytes, cuts: list[int]) -> None:
    check(cut(whole, cuts))


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([*SHAPES.values(), *OURS.values()]),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=3),
    st.lists(st.integers(0, 300), max_size=3),
)
def test_corrupted_requests_agree_with_gunicorn_or_get_an_error(
    shape: bytes, corruptions: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = shape
    for offset, replacement in corruptions:
        start = offset % (len(stream) + 1)
        stream = stream[:start] + replacement + stream[start + len(replacement) :]
    check(cut(stream, cuts))


@pytest.mark.parametrize("fields", [[], MAXIMUM_FIELDS], ids=["few", "the maximum"])
def test_valid_request_is_parsed(fields: list[bytes]) -> None:
    result = check([request(*fields, b"Content-Length: 2", b"Content-Type: a")])
    assert result.statuses == [200]
    assert not result.closed
    assert result.requests[0] == ("POST", "/mutate", "a", "identity", b"{}", False)


@pytest.mark.parametrize("shape", (SHAPES | OURS).values(), ids=SHAPES | OURS)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_ambiguous_request_is_rejected_however_it_is_split(shape: bytes, step: int) -> None:
    stream = shape + HIDDEN
    result = check([stream[start : start + step] for start in range(0, len(stream), step)])
    assert result.requests == []
    assert result.error in {400, 414, 431}


@pytest.mark.parametrize(("head", "piece"), ENDLESS.values(), ids=ENDLESS)
def test_endless_request_is_rejected_or_not_buffered(head: bytes, piece: bytes) -> None:
    worker = Worker()
    worker.feed(head)
    for sent in range(0, 10 * UNPRODUCTIVE_LIMIT, len(piece)):
        worker.feed(piece)
        if worker.transport.closed:
            assert sent <= UNPRODUCTIVE_LIMIT
            return
    assert len(worker.connection._body) < 100


def test_content_length_digits_are_limited() -> None:
    digits = b"2".zfill(LENGTH_DIGITS)
    assert read([request(b"Content-Length: " + digits)]).requests[0].body == b"{}"
    assert read([request(b"Content-Length: 0" + digits)]).error == 400


def test_oldest_of_too_many_large_bodies_is_rejected() -> None:
    """The oldest body has stalled: a client that sends without a pause has finished by then."""
    oldest = Worker()
    workers = [oldest, *(Worker() for _ in range(9))]
    for worker in workers:
        worker.bodies = oldest.bodies
        worker.feed(request(b"Content-Length: 100000", body=b" " * 90_000))
    outputs = [worker.transport.written for worker in workers[1:]]

    assert oldest.transport.written.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nRetry-After: 1\r\n" in oldest.transport.written
    assert oldest.transport.closed
    assert outputs == [b""] * 9 or outputs.count(b"") == 8
    workers[-1].feed(b" " * 10_000)
    assert len(workers[-1].requests) == 1
