import http.client
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.webhook.errors import StartError
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.telemetry.pages import HealthServer, PageServer, create_app
from tests.server.harness import everything_from


class World:
    def __init__(self) -> None:
        self.ready = True
        self.server = HealthServer(
            "127.0.0.1", 0, ready=lambda: self.ready, exposition=ControllerMetrics().exposition
        )

    def request(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served() -> Iterator[World]:
    world = World()
    world.server.start()
    yield world
    world.server.stop()


@pytest.fixture
def world(served: World) -> World:
    served.ready = True
    return served


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/readyz?verbose"])
def test_probes_return_ok(world: World, path: str) -> None:
    assert world.request(path) == (200, "ok\n")


def test_not_ready(world: World) -> None:
    world.ready = False

    assert world.request("/readyz") == (503, "not ready\n")
    assert world.request("/healthz") == (200, "ok\n")


def test_waiting_requests_get_the_same_metrics() -> None:
    """Otherwise a flood of them keeps probes waiting for minutes."""
    made = itertools.count(1)

    def exposition() -> bytes:
        time.sleep(0.1)
        return b"%d" % next(made)

    server = HealthServer("127.0.0.1", 0, ready=lambda: True, exposition=exposition)
    server.start()
    try:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(20)
            ]
            for client in clients:
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            bodies = [everything_from(client).partition(b"\r\n\r\n")[2] for client in clients]
    finally:
        server.stop()
    assert set(bodies) <= {b"1", b"2", b"3"}
    assert len(bodies) == 20


def test_metrics(world: World) -> None:
    status, text = world.request("/metrics")

    assert status == 200
    assert "holdfast_held_pods 0.0" in text


@pytest.mark.parametrize("path", ["/", "/healthz/", "/../etc/passwd"])
def test_unknown_path_is_not_found(world: World, path: str) -> None:
    assert world.request(path) == (404, "not found\n")


def test_other_methods_are_not_allowed(world: World) -> None:
    for method in ("POST", "PUT", "OPTIONS", "MADE-UP"):
        assert world.request("/healthz", method)[0] == 405


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param(b"GET / HTTP/2.0", b" 404 ", id="unsupported version"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM", b" 404 ", id="HTTP/2"),
        pytest.param(b"GET / HTTP/x", b" 400 ", id="invalid version"),
        pytest.param(b"\x00\xff\r\n", b" 400 ", id="binary"),
        pytest.param(b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b" 431 ", id="long line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: [", b" 200 OK\r\n", id="invalid host"),
        pytest.param(b"GET //healthz?%00 HTTP/1.1", b" 200 OK", id="two slashes"),
        pytest.param(b"GET /\xb2 HTTP/1.1", b" 400 ", id="Latin-1 in the path"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nContent-Length: 999999", b" 413 ", id="large body"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 12_000, b" 431 ", id="many fields"),
    ],
)
def test_malformed_request_gets_a_response_and_no_log(
    world: World, head: bytes, expected: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=5) as client:
        client.sendall(head + b"\r\n\r\n")
        response = everything_from(client)

    assert expected in response, response
    assert capfd.readouterr() == ("", "")


def test_port_in_use_is_reported(world: World) -> None:
    port = world.server.port
    with pytest.raises(StartError) as caught:
        HealthServer("127.0.0.1", port, ready=lambda: True, exposition=lambda: b"")

    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with "
        "--health-port"
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("localhost:8082", 200, id="localhost"),
        pytest.param("[", 403, id="invalid host"),
        pytest.param("127.0.0.1", 200, id="IPv4"),
        pytest.param("[::1]:8082", 200, id="IPv6"),
        pytest.param("evil.example:8082", 403, id="foreign name"),
        pytest.param("", 403, id="empty"),
    ],
)
def test_local_page_rejects_other_host_headers(host: str, status: int) -> None:
    app = create_app({"/": lambda: (b"x", 200, {})}, local=True)
    server = PageServer("127.0.0.1", 0, app, option="-p")
    server.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("GET", "/", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()
    finally:
        server.stop()
