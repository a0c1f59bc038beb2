import json
from collections.abc import Iterator

import pytest

from tests.server.conftest import Serve
from tests.server.harness import ask, everything_from

LIMIT = 100_000
SMALL_LIMIT = {"body_limit": LIMIT}


def chunked(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize(
    "size", [pytest.param(4096, id="4 KiB"), pytest.param(5_000_000, id="5 MB")]
)
@pytest.mark.parametrize("pieces", [pytest.param(0, id="whole"), pytest.param(3000, id="chunked")])
def test_body_arrives_complete(serve: Serve, size: int, pieces: int) -> None:
    server = serve(request_deadline=20.0)
    body = json.dumps({"pad": "x" * size}).encode()
    client = server.client()
    try:
        for _ in range(2):
            content = chunked(body, pieces) if pieces else body
            answer = ask(client, "POST", "/mutate", content, encode_chunked=bool(pieces))
            assert answer.json()["received"] == len(body)
    finally:
        client.close()


HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
CLOSING = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def received(answers: bytes) -> list[int]:
    """Return the lengths of the bodies that the application received, in order."""
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b'"received":')
    return [int(part.partition(b",")[0]) for part in answers.split(b'"received":')[1:]]


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    server = serve()
    blocking = b'{"block": true, "sleep": 0.2}'
    bodies = [b"{}", b'{"a": 1}', blocking, b"{ }", b'{"last": 1}']
    *first_requests, last_request = [
        head % len(body) + body for head, body in zip([HEAD] * 4 + [CLOSING], bodies, strict=True)
    ]
    with server.raw() as client:
        client.sendall(b"".join(first_requests) + last_request)
        answers = everything_from(client)
    assert received(answers) == [len(body) for body in bodies]


def test_content_length_over_the_limit_gets_413_before_the_body(serve: Serve) -> None:
    server = serve(handler=SMALL_LIMIT)
    with server.raw() as client:
        client.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1)
        )
        answer = everything_from(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nthe body is larger than 100000 bytes\n")
    assert b"connection: close" in answer.lower()
    assert server.get("/count").body == b"0"


def test_incomplete_request_is_not_served(serve: Serve) -> None:
    server = serve()
    for _ in range(5):
        with server.raw() as client:
            client.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{}")
    with server.raw() as client:
        client.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
        )
    assert server.review().status == 200
    assert server.get("/count").body == b"1"
    assert "Traceback" not in server.log


def test_expect_100_continue_is_answered(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert everything_from(client).startswith(b"HTTP/1.1 200 OK")
