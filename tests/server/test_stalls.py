import json
import socket
import time
from contextlib import ExitStack, closing

import pytest

from holdfast.webhook.server.connection import PIPELINE_LIMIT
from tests.server.conftest import Serve
from tests.server.harness import Server, ask, everything_from, send_until_closed, wait_until

HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def stall(server: Server, stack: ExitStack, number: int) -> list[socket.socket]:
    """Open connections that never finish their handshake; every other one has started it."""
    clients = [stack.enter_context(server.tcp()) for _ in range(number)]
    for client in clients[::2]:
        client.sendall(HALF_A_HELLO)
    return clients


def test_stalled_handshakes_are_closed_without_blocking_others(serve: Serve) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = stall(server, stack, 100)
        wait_until("all are accepted", lambda: server.open_connections() == 100)
        assert [server.review().status for _ in range(10)] == [200] * 10
        assert [everything_from(client) for client in clients] == [b""] * 100


def test_stalled_handshakes_use_little_memory(serve: Serve) -> None:
    server = serve(handshake_timeout=30.0)
    assert server.get("/healthz").status == 200
    memory_before = server.worker.memory_info().rss
    with ExitStack() as stack:
        stall(server, stack, 300)
        wait_until("all are accepted", lambda: server.open_connections() == 300)
        assert server.get("/healthz").status == 200
        assert (server.worker.memory_info().rss - memory_before) / 300 < 160 * 1024


def test_stalled_second_request_is_closed(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
        assert everything_from(client).count(b"HTTP/1.1 200 OK") == 1


def test_pipelined_requests_do_not_starve_other_clients(serve: Serve) -> None:
    server = serve()
    body = json.dumps({"sleep": 0.2}).encode()
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    other_client = server.client()
    assert ask(other_client, "GET", "/count").body == b"0"
    with server.raw() as client, closing(other_client):
        client.sendall(request * 20)
        time.sleep(0.1)  # the first of them is being answered
        assert int(ask(other_client, "GET", "/count").body) < 10


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(b"X-Slow: ", id="head"),
        pytest.param(b"Content-Length: 1000\r\n\r\n", id="body"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n", id="chunk"),
    ],
)
def test_slow_request_is_closed_at_the_deadline_and_not_served(serve: Serve, field: bytes) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\n" + field)
        send_until_closed(client, b"x", limit=1000, pause=0.1)
        assert everything_from(client) == b""
    assert server.get("/count").body == b"0"


def test_idle_connection_is_closed_after_keepalive(serve: Serve) -> None:
    server = serve(keepalive=1.5)
    with server.served_clients(1) as (client,):
        for _ in range(2):
            time.sleep(0.8)
            assert ask(client, "GET", "/healthz").status == 200
        assert isinstance(client.sock, socket.socket)
        assert everything_from(client.sock) == b""


def test_stalled_clients_at_the_cap_do_not_lock_others_out(serve: Serve) -> None:
    server = serve(max_connections=20, handshake_timeout=30.0)
    with server.served_clients(1) as (early_client,), ExitStack() as stack:
        clients = stall(server, stack, 60)
        wait_until("the cap is reached", lambda: server.open_connections() <= 20)
        assert [server.review().status for _ in range(10)] == [200] * 10
        assert ask(early_client, "GET", "/healthz").status == 200
        assert server.open_connections() <= 20
        assert everything_from(clients[0]) == b"", "the oldest is closed"
        clients[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[-1].recv(1)
    wait_until("it is logged", lambda: "20 connections are open, the most allowed" in server.log)


def test_longest_idle_client_is_closed_at_the_cap(serve: Serve) -> None:
    """The client that was idle longest is dropped, even if it has been served before."""
    server = serve(max_connections=3)
    with server.served_clients(3) as clients:
        assert ask(clients[0], "GET", "/healthz").status == 200
        assert server.get("/healthz").status == 200
        assert isinstance(clients[1].sock, socket.socket)
        assert everything_from(clients[1].sock) == b""
        assert [ask(clients[index], "GET", "/healthz").status for index in (0, 2)] == [200] * 2
    wait_until("there is room again", lambda: server.open_connections() == 0)
    assert server.get("/healthz").status == 200


@pytest.mark.parametrize(("path", "count"), [(b"/big", 20), (b"/huge", 1)], ids=["many", "one"])
def test_client_that_does_not_read_responses_is_closed(
    serve: Serve, path: bytes, count: int
) -> None:
    """The server has written everything, but most of it is still in its buffers."""
    server = serve(answer_deadline=1.0)
    raw = server.raw()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with raw as client:
        client.sendall((b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n") * count)
        time.sleep(0.2)
        assert server.open_connections() == 1
        wait_until("it is closed", lambda: server.open_connections() == 0)


@pytest.mark.parametrize("first", [b"/healthz", b"/huge"], ids=["served before", "newcomers"])
def test_clients_that_do_not_read_do_not_lock_others_out(serve: Serve, first: bytes) -> None:
    server = serve(max_connections=10, answer_deadline=60.0)
    requests = b"".join(
        b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n" for path in (first, b"/huge")
    )
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(server.raw())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(requests)
        wait_until("the cap is reached", lambda: server.open_connections() == 10)
        time.sleep(0.5)  # newcomers may stay for a while
        assert [server.review().status for _ in range(10)] == [200] * 10


def test_pipelined_requests_are_limited(serve: Serve) -> None:
    server = serve()
    with server.raw() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * (PIPELINE_LIMIT + 5))
        answers = everything_from(client)
    assert answers.count(b"HTTP/1.1 200 OK") == PIPELINE_LIMIT
    assert answers.count(b"HTTP/1.1 429 ") == 1


def test_client_that_keeps_sending_without_reading_is_closed(serve: Serve) -> None:
    server = serve(answer_deadline=1.0)
    raw = server.raw()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    closed = pytest.raises(OSError, match=r"(?i)broken|reset|eof|closed")
    with raw as client, closed:
        client.sendall(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(100):
            time.sleep(0.1)
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")


def test_concurrent_new_connections_are_served_at_the_cap(serve: Serve) -> None:
    """A busy API server opens several at once, and none of them may displace another."""
    server = serve(max_connections=20)
    with server.served_clients(20), ExitStack() as stack:
        new_sockets = [stack.enter_context(server.tcp()) for _ in range(5)]
        connected = [stack.enter_context(server.tls.wrap_socket(sock)) for sock in new_sockets]
        for client in connected:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert [everything_from(client)[:12] for client in connected] == [b"HTTP/1.1 200"] * 5


def test_clients_with_a_partial_second_request_are_closed_at_the_cap(serve: Serve) -> None:
    server = serve(max_connections=3)
    with ExitStack() as stack:
        clients = [stack.enter_context(server.raw()) for _ in range(3)]
        for client in clients:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            client.sendall(b"GET /he")
        assert server.get("/healthz").status == 200
