"""gunicorn's parser in C, which reads requests here, against its parser in Python.

What the one takes the other takes as well, and both find the same request in it, with the same
end: a client cannot hide one request in another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from gunicorn.asgi.parser import PythonProtocol
from gunicorn_h1c import H1CProtocol
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.server.test_smuggling import HIDDEN, SHAPES

LIMITS: dict[str, Any] = {
    "limit_request_line": 4094,
    "limit_request_fields": 64,
    "limit_request_field_size": 8190,
    "permit_unconventional_http_method": False,
    "permit_unconventional_http_version": False,
}
LINES = [b"POST /mutate?timeout=3s HTTP/1.1", b"GET / HTTP/1.0", b"POST http://a/b HTTP/1.1"]
FIELDS = [
    b"Host: x",
    b"Host: y",
    b"Content-Length: 2",
    b"Content-Length: 02",
    b"Content-Length: 2, 2",
    b"Content-Length: 0",
    b"content-length: 5",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Connection: close",
    b"Expect: 100-continue",
    b"X: \xe9",
    b"X_Y: z",
    b" folded",
]
BODIES = [b"", b"{}", b"2\r\n{}\r\n0\r\n\r\n", b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n"]
SIGNS = [b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"x", b"-", b"+", b"\xff"]


@dataclass
class Found:
    """What a parser makes of some bytes."""

    head: tuple[object, ...] = ()
    body: bytes = b""
    complete: bool = False
    refused: bool = False
    parser: Any = field(default=None, repr=False, compare=False)

    def on_headers_complete(self) -> bool:
        parser = self.parser
        headers = tuple((bytes(name).lower(), bytes(value)) for name, value in parser.headers)
        self.head = (bytes(parser.method), bytes(parser.path), parser.http_version, headers)
        return False

    def on_body(self, chunk: bytes) -> None:
        self.body += bytes(chunk)

    def on_message_complete(self) -> None:
        self.complete = True


def read(kind: type[Any], pieces: list[bytes]) -> Found:
    found = Found()
    found.parser = kind(
        on_headers_complete=found.on_headers_complete,
        on_body=found.on_body,
        on_message_complete=found.on_message_complete,
        **LIMITS,
    )
    for piece in pieces:
        if found.complete:
            break  # what lies behind is another request's
        try:
            found.parser.feed(piece)
        except Exception:  # noqa: BLE001 - each has errors of its own
            found.refused = True
            break
    return found


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


@settings(max_examples=2_000, deadline=None)
@given(requests(), st.lists(st.integers(0, 300), max_size=3))
@example(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", [])
def test_what_is_taken_is_what_gunicorn_s_own_parser_takes(whole: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in zip(edges, edges[1:], strict=False) if start < end]
    ours, oracle = read(H1CProtocol, pieces), read(PythonProtocol, [whole])

    if ours.complete:
        assert ours == oracle
    if ours.head:
        assert ours.head == oracle.head


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ambiguous_request_is_refused_by_the_parser_itself(shape: bytes) -> None:
    found = read(H1CProtocol, [shape])
    assert found.refused or not found.complete or found.parser.should_keep_alive is False
