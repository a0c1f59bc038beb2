"""Requests as API servers send them: split anywhere, and pipelined."""

import re
import time
from contextlib import suppress

import pytest

from tests.server.conftest import Serve
from tests.server.harness import everything_from
from tests.server.shapes import HIDDEN, request


def review(body: bytes, *fields: bytes) -> bytes:
    return request(b"Content-Length: %d" % len(body), *fields, body=body)


REQUEST = review(b'{"a":[1]}')
LAST = review(b"{}", b"Connection: close")
"""Closes the connection, so that all responses can be read."""


def statuses(answers: bytes) -> list[bytes]:
    return [response[:3] for response in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["without a pause", "with a pause"])
def test_request_is_answered_once_however_it_is_split(serve: Serve, pause: float) -> None:
    server = serve(request_deadline=20.0)
    with server.raw() as client:
        for position in range(1, len(REQUEST), 1 if pause == 0.0 else 9):
            client.sendall(REQUEST[:position])
            time.sleep(pause)
            client.sendall(REQUEST[position:])
            answer = client.recv(65536)
            assert statuses(answer) == [b"200"], (position, answer)


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    bodies = [b"{}", b'{"a": 1}', b'{"block": true, "sleep": 0.2}', b"{ }"]
    with serve().raw() as client:
        client.sendall(b"".join(map(review, bodies)) + review(b'{"last": 1}', b"Connection: close"))
        answers = everything_from(client)

    assert statuses(answers) == [b"200"] * 5
    sizes = re.findall(rb'"received": (\d+)', answers)
    assert [int(size) for size in sizes] == [len(body) for body in (*bodies, b'{"last": 1}')]
    assert answers.count(b"Connection: close") == 1


def test_content_length_over_the_limit_gets_413_before_the_body(serve: Serve) -> None:
    server = serve(handler={"body_limit": 100_000})
    with server.raw() as client:
        client.sendall(request(b"Content-Length: 100001", body=b""))
        answer = everything_from(client)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nthe body is larger than 100000 bytes\n")
    assert b"\r\nConnection: close\r\n" in answer
    assert server.get("/count").body == b"0"


def test_expect_100_continue_is_answered(serve: Serve) -> None:
    fields = (b"Connection: close", b"Expect: 100-continue", b"Content-Length: 2")
    with serve().raw() as client:
        client.sendall(request(*fields, body=b""))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert everything_from(client).startswith(b"HTTP/1.1 200 OK")


def blocking(seconds: float) -> bytes:
    return review(b'{"block": true, "sleep": %f}' % seconds)


def test_requests_sent_during_a_pending_response_are_answered_after_it(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(blocking(0.5))
        time.sleep(0.2)
        client.sendall(HIDDEN[:7])
        time.sleep(0.1)
        client.sendall(HIDDEN[7:] + LAST)
        answers = everything_from(client)

    assert statuses(answers) == [b"200"] * 3, answers
    assert answers.index(b"holdfast-review") < answers.index(b"MainThread")


def test_little_is_read_during_a_pending_response(serve: Serve) -> None:
    server = serve(handler={"deadline": 2.5})
    memory_before = server.worker.memory_info().rss
    with server.raw() as client:
        client.sendall(blocking(2.0))
        time.sleep(0.2)
        client.settimeout(0.5)
        sent_bytes = 0
        with suppress(TimeoutError):
            while sent_bytes < 200_000_000:
                sent_bytes += client.send(b" " * 65536)
        assert sent_bytes < 50_000_000
        assert server.worker.memory_info().rss - memory_before < 10 << 20


def test_client_that_disconnects_while_waiting_is_cleaned_up(serve: Serve) -> None:
    server = serve()
    client = server.raw()
    client.sendall(blocking(0.5))
    time.sleep(0.2)
    client.close()
    time.sleep(0.6)
    assert server.get("/count").body == b"1"
    assert server.open_connections() == 0
    assert "Traceback" not in server.log
