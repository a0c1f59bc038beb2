"""Requests with an ambiguous end are rejected, and nothing after them is served."""

import pytest

from tests.server.conftest import Serve
from tests.server.harness import everything_from
from tests.server.shapes import CHUNKED, HIDDEN, request


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        pytest.param(b"Content-Length: 101\r\n", b" " * 101, id="length"),
        pytest.param(CHUNKED, b"65\r\n" + b" " * 101 + b"\r\n0\r\n\r\n", id="chunked"),
        pytest.param(CHUNKED, b"1\r\n \r\n" * 101 + b"0\r\n\r\n", id="small chunks"),
    ],
)
def test_request_after_an_oversized_body_is_not_served(
    serve: Serve, framing: bytes, body: bytes
) -> None:
    server = serve(handler={"body_limit": 100})
    with server.raw() as client:
        client.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n" + body + HIDDEN)
        answers = everything_from(client)

    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert answers.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nConnection: close\r\n" in answers
    assert server.get("/count").body == b"0"


def test_unexpected_parser_error_is_400_and_logged_on_one_line(serve: Serve) -> None:
    server = serve(fault="parser")
    with server.raw() as client:
        client.sendall(request(b"Content-Length: 2", b"X-A: y"))
        answers = everything_from(client)

    assert answers.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answers.endswith(b"\r\n\r\nthe request cannot be read\n")
    (line,) = [line for line in server.log.splitlines() if "cannot read a request" in line]
    assert "KeyError: 'the parser is" in line
    assert "Traceback" not in server.log
