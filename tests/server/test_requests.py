"""Requests as API servers send them: split anywhere, and pipelined."""

import time
from contextlib import suppress

import pytest

from tests.server.conftest import Serve
from tests.server.harness import everything_from
from tests.server.shapes import HIDDEN, request

REQUEST = request(b"Content-Length: 9", body=b'{"a":[1]}')
LAST = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
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


@pytest.mark.parametrize("cut", [0, 5, len(HIDDEN) - 1, len(HIDDEN), len(HIDDEN) + 5])
def test_pipelined_requests_are_answered(serve: Serve, cut: int) -> None:
    server = serve()
    stream = HIDDEN + HIDDEN + LAST
    with server.raw() as client:
        client.sendall(stream[:cut])
        time.sleep(0.05 if cut else 0.0)
        client.sendall(stream[cut:])
        answers = everything_from(client)

    assert statuses(answers) == [b"200"] * 3, answers
    assert answers.count(b"Connection: close") == 1


def test_draining_server_closes_the_connection_after_the_response(serve: Serve) -> None:
    server = serve(drain=5.0)
    with server.raw() as client:
        client.sendall(REQUEST[:-1])
        time.sleep(0.2)
        server.process.terminate()
        time.sleep(0.4)
        client.sendall(REQUEST[-1:])
        answers = everything_from(client)

    assert statuses(answers) == [b"200"]
    assert b"Connection: close" in answers


def blocking(seconds: float) -> bytes:
    body = b'{"block": true, "sleep": %f}' % seconds
    return request(b"Content-Length: %d" % len(body), body=body)


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
