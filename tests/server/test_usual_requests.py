"""Requests as API servers send them, in all the pieces in which they may come.

Seen to fail with a body taken for whole when its first piece had come; with what lay behind a
request lost; with the rest of a usual request given to gunicorn without its beginning.
"""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from tests.server.conftest import Serve
from tests.server.harness import everything_from
from tests.server.shapes import HIDDEN, request

USUAL = request(b"Content-Length: 9", body=b'{"a":[1]}')
LEFT = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
"""Behind which the connection ends, so that all answers can be read."""


def statuses(answers: bytes) -> list[bytes]:
    return [one[:3] for one in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["at once", "one by one"])
def test_a_request_is_answered_once_wherever_it_is_cut(serve: Serve, pause: float) -> None:
    server = serve(request_deadline=20.0)
    with server.raw() as client:
        for at in range(1, len(USUAL), 1 if pause == 0.0 else 9):
            client.sendall(USUAL[:at])
            time.sleep(pause)
            client.sendall(USUAL[at:])
            answer = client.recv(65536)
            assert statuses(answer) == [b"200"], (at, answer)


def test_a_request_that_comes_byte_by_byte_is_answered(serve: Serve) -> None:
    server = serve(request_deadline=20.0)
    head = USUAL.index(b"\r\n\r\n") + 4
    with server.raw() as client:
        client.sendall(USUAL[:head])
        for byte in USUAL[head:]:
            client.sendall(bytes([byte]))
            time.sleep(0.01)
        assert statuses(client.recv(65536)) == [b"200"]


@pytest.mark.parametrize("cut", [0, 5, len(HIDDEN) - 1, len(HIDDEN), len(HIDDEN) + 5])
def test_what_lies_behind_a_request_is_answered_too(serve: Serve, cut: int) -> None:
    server = serve()
    sent = HIDDEN + HIDDEN + LEFT
    with server.raw() as client:
        client.sendall(sent[:cut])
        time.sleep(0.05 if cut else 0.0)
        client.sendall(sent[cut:])
        answers = everything_from(client)

    assert statuses(answers) == [b"200"] * 3, answers
    assert answers.count(b"Connection: close") == 1


def test_after_another_request_usual_ones_are_answered_as_before(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        for each in (HIDDEN, request(b"Content-Length: 2", b"X-A: y"), HIDDEN):
            client.sendall(each)
            assert statuses(client.recv(65536)) == [b"200"]
        client.sendall(LEFT)
        assert statuses(everything_from(client)) == [b"200"]


def test_a_request_whose_rest_does_not_come_is_ended(serve: Serve) -> None:
    server = serve(request_deadline=0.5)
    with server.raw() as client:
        client.sendall(USUAL[:-1])
        began = time.monotonic()
        assert everything_from(client) == b""
    assert 0.4 < time.monotonic() - began < 5


def test_a_client_that_leaves_in_the_middle_leaves_nothing(serve: Serve) -> None:
    server = serve()
    client = server.raw()
    client.sendall(USUAL[:-1])
    client.close()
    server.get("/healthz")
    assert "Traceback" not in server.log


def test_a_draining_server_says_so_to_a_usual_request(serve: Serve) -> None:
    server = serve(drain=5.0)
    with server.raw() as client:
        client.sendall(USUAL[:-1])
        time.sleep(0.2)
        server.process.terminate()
        time.sleep(0.4)
        client.sendall(USUAL[-1:])
        answers = everything_from(client)

    assert statuses(answers) == [b"200"]
    assert b"Connection: close" in answers


def waits(seconds: float) -> bytes:
    body = b'{"block": true, "sleep": %f}' % seconds
    return request(b"Content-Length: %d" % len(body), body=body)


def test_what_comes_while_an_answer_is_waited_for_is_answered_after_it(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(waits(0.5))
        time.sleep(0.2)
        client.sendall(HIDDEN[:7])
        time.sleep(0.1)
        client.sendall(HIDDEN[7:] + LEFT)
        answers = everything_from(client)

    assert statuses(answers) == [b"200"] * 3, answers
    assert answers.index(b"holdfast-review") < answers.index(b"MainThread")


def test_while_an_answer_is_waited_for_no_more_than_a_little_is_read(serve: Serve) -> None:
    server = serve(bridge={"deadline": 2.5})
    before = server.worker.memory_info().rss
    with server.raw() as client:
        client.sendall(waits(2.0))
        time.sleep(0.2)
        client.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 200_000_000:
                sent += client.send(b" " * 65536)
        assert sent < 50_000_000
        assert server.worker.memory_info().rss - before < 10 << 20


def test_a_client_that_leaves_while_it_waits_leaves_nothing(serve: Serve) -> None:
    server = serve()
    client = server.raw()
    client.sendall(waits(0.5))
    time.sleep(0.2)
    client.close()
    time.sleep(0.6)
    assert server.get("/count").body == b"1"
    assert server.open_connections() == 0
    assert "Traceback" not in server.log


def test_an_answer_that_is_waited_for_while_the_server_drains_says_so(serve: Serve) -> None:
    server = serve(drain=2.0)
    with server.raw() as client:
        client.sendall(waits(1.0))
        time.sleep(0.3)
        server.process.terminate()
        answers = everything_from(client)

    assert statuses(answers) == [b"200"]
    assert b"holdfast-review" in answers
    assert b"Connection: close" in answers


def test_a_body_that_is_too_large_for_the_application_ends_the_connection(serve: Serve) -> None:
    server = serve(bridge={"body_limit": 100})
    with server.raw() as client:
        client.sendall(request(b"Content-Length: 101", body=b" " * 101))
        answers = everything_from(client)

    assert statuses(answers) == [b"413"]
    assert b"connection: close" in answers
