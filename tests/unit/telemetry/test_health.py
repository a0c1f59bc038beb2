import http.client
import socket
from collections.abc import Iterator

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

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
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
def test_well(world: World, path: str) -> None:
    assert world.ask(path) == (200, "ok\n")


def test_not_ready(world: World) -> None:
    world.ready = False

    assert world.ask("/readyz") == (503, "not ready\n")
    assert world.ask("/healthz") == (200, "ok\n")


def test_metrics(world: World) -> None:
    status, text = world.ask("/metrics")

    assert status == 200
    assert "holdfast_held_pods 0.0" in text


@pytest.mark.parametrize("path", ["/", "/healthz/", "/../etc/passwd"])
def test_other_paths(world: World, path: str) -> None:
    assert world.ask(path) == (404, "not found\n")


def test_nothing_can_be_written(world: World) -> None:
    for method in ("POST", "PUT", "OPTIONS", "MADE-UP"):
        assert world.ask("/healthz", method)[0] == 405


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        pytest.param(b"GET / HTTP/2.0", b" 404 ", id="another version"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM", b" 404 ", id="HTTP/2"),
        pytest.param(b"GET / HTTP/x", b" 400 ", id="no version"),
        pytest.param(b"\x00\xff\r\n", b" 400 ", id="bytes"),
        pytest.param(b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b" 431 ", id="a long line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: [", b" 200 OK\r\n", id="no host"),
        pytest.param(b"GET //healthz?%00 HTTP/1.1", b" 200 OK", id="two slashes"),
        pytest.param(b"GET /\xb2 HTTP/1.1", b" 400 ", id="Latin-1 in the path"),
        pytest.param(
            b"GET /healthz HTTP/1.1\r\nContent-Length: 999999", b" 413 ", id="a large body"
        ),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 12_000, b" 431 ", id="many fields"),
    ],
)
def test_what_is_no_request_is_a_client_error(
    world: World, head: bytes, shown: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=5) as client:
        client.sendall(head + b"\r\n\r\n")
        answer = everything_from(client)

    assert shown in answer, answer
    assert capfd.readouterr() == ("", "")


def test_port_that_is_taken(world: World) -> None:
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
        pytest.param("[", 403, id="no host"),
        pytest.param("127.0.0.1", 200, id="address"),
        pytest.param("[::1]:8082", 200, id="IPv6"),
        pytest.param("evil.example:8082", 403, id="a name of somebody else's"),
        pytest.param("", 403, id="none"),
    ],
)
def test_a_local_page_is_for_who_calls_it_by_a_name_of_this_machine(host: str, status: int) -> None:
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
