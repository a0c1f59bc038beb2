from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from webhook.errors import StartError
from webhook.health import HealthServer
from webhook.metrics import ControllerMetrics


class World:
    def __init__(self) -> None:
        self.ready = True
        self.server = HealthServer(
            "127.0.0.1",
            0,
            ready=lambda: self.ready,
            exposition=ControllerMetrics().exposition,
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
    assert world.ask("/healthz", "POST")[0] == 501


def test_port_that_is_taken(world: World) -> None:
    port = world.server.port
    with pytest.raises(StartError) as caught:
        HealthServer("127.0.0.1", port, ready=lambda: True, exposition=lambda: b"")

    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with "
        "--health-port"
    ) == str(caught.value)
