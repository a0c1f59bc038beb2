"""Requests of which two readers could disagree where they end: refused, with what lies behind."""

from __future__ import annotations

import pytest

from tests.server.conftest import Serve
from tests.server.harness import everything_from

HIDDEN = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request(*headers: bytes, line: bytes = b"POST /mutate HTTP/1.1", body: bytes = b"{}") -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers, b"", body])


SHAPES = {
    "both lengths": request(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "two lengths": request(b"Content-Length: 2", b"Content-Length: 200"),
    "a list of lengths": request(b"Content-Length: 2, 200"),
    "a signed length": request(b"Content-Length: +2"),
    "a negative length": request(b"Content-Length: -2"),
    "a hexadecimal length": request(b"Content-Length: 0x2"),
    "a length with a blank": request(b"Content-Length: 2 2"),
    "others' digits": request("Content-Length: \u0662".encode()),
    "a blank before the colon": request(b"Content-Length : 2"),
    "a folded header": request(b"Content-Length:", b" 2"),
    "an unknown coding": request(b"Transfer-Encoding: xchunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
    "chunked twice": request(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked not last": request(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "a coding in disguise": request(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "a chunk of hexadecimal notation": request(CHUNKED[:-2], body=b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a signed chunk": request(CHUNKED[:-2], body=b"+2\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than it says": request(CHUNKED[:-2], body=b"1\r\n{}\r\n0\r\n\r\n"),
    "NUL in a header": request(b"Content-Length: 2", b"X-A: a\x00b"),
    "a bare line feed in a header": request(b"Content-Length: 2", b"X-A: a\nContent-Length: 200"),
    "chunked in HTTP/1.0": request(
        CHUNKED[:-2], line=b"POST /mutate HTTP/1.0", body=b"2\r\n{}\r\n0\r\n\r\n"
    ),
    "chunked in two lines": request(CHUNKED[:-2], CHUNKED[:-2], body=b"2\r\n{}\r\n0\r\n\r\n"),
    "lines that end in a line feed alone": request(b"Content-Length: 2").replace(b"\r", b""),
    "a bare line feed behind a chunk's length": request(
        CHUNKED[:-2], body=b"2;a\nb\r\n{}\r\n0\r\n\r\n"
    ),
    "a bare carriage return behind a chunk's length": request(
        CHUNKED[:-2], body=b"2;a\rb\r\n{}\r\n0\r\n\r\n"
    ),
    "two hosts": request(b"Host: y", b"Content-Length: 2"),
    "no version": request(b"Content-Length: 2", line=b"POST /mutate"),
    "another version": request(b"Content-Length: 2", line=b"POST /mutate HTTP/9.9"),
    "a method of signs": request(b"Content-Length: 2", line=b"P(ST /mutate HTTP/1.1"),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ambiguous_request_is_refused_and_nothing_behind_it_is_served(
    serve: Serve, shape: bytes
) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(shape + HIDDEN)
        answers = everything_from(client)

    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert answers[9:12] in {b"400", b"405", b"501", b"505"}, answers
    assert server.get("/count").body == b"0"
    assert "Traceback" not in server.log


def test_endless_chunks_end_at_the_limit(serve: Serve) -> None:
    server = serve(bridge={"body_limit": 100_000}, request_deadline=20.0)
    before = server.worker.memory_info().rss
    with server.raw() as client:
        client.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\n")
        sent = 0
        try:
            while sent < 200_000_000:
                client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
                sent += 1024
        except OSError:
            pass
        answer = everything_from(client)

    assert sent < 200_000_000
    assert answer.startswith(b"HTTP/1.1 413 ") or not answer  # a reset can overtake the answer
    assert server.worker.memory_info().rss - before < 50 << 20
    assert server.get("/count").body == b"0"
