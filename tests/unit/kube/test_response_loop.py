"""Requests over a pair of sockets; one thread waits for all responses."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.webhook.kube.response_loop import ResponseLoop
from holdfast.webhook.kube.transport import ApiConnection, Response, Transport, TransportError
from tests.support.byte_server import OK, PATIENCE, Credentials

REQUEST = b"PATCH /x HTTP/1.1\r\n\r\n"


class World:
    """Sends requests, and receives until all have ended."""

    def __init__(self) -> None:
        self.now = 0.0
        self.results: list[object] = []
        self.transport = Transport(
            Credentials("http://localhost"), now=self.clock, size=4, connect_timeout=PATIENCE
        )
        self.loop = ResponseLoop(self.transport, now=self.clock)
        self._stop = threading.Event()
        self._stop.set()

    def clock(self) -> float:
        return self.now

    def connect(self) -> socket.socket:
        """Keep a connection, and return the server's end."""
        client_end, server_end = socket.socketpair()
        self.transport.give_back(ApiConnection(client_end, self.clock))
        return server_end

    def send(self) -> bool:
        return self.loop.send(REQUEST, timeout=10.0, on_end=self.end)

    def end(self, result: Response | Exception) -> None:
        self.results.append(result.data if isinstance(result, Response) else type(result))

    def receive(self) -> list[object]:
        self.loop.run(self._stop)
        return self.results


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with closing(made.transport):
        yield made


def test_idle_connection_is_needed_and_reused(world: World) -> None:
    assert not world.send()
    assert world.receive() == []
    with world.connect() as server:
        for _ in range(2):
            assert world.send()
            assert server.recv(100) == REQUEST
            server.sendall(OK)
            world.receive()
    assert world.results == [b"{}"] * 2


def test_response_is_assembled_from_parts(world: World) -> None:
    with world.connect() as server:
        world.send()
        server.sendall(OK[:-1])
        (key,) = world.loop._selector.select(0)
        world.loop._receive(key[0].data)
        assert world.results == []

        server.sendall(OK[-1:])
        assert world.receive() == [b"{}"]


def test_pending_response_does_not_block_others(world: World) -> None:
    with world.connect() as answered, world.connect() as pending:
        world.send()
        world.send()
        pending.recv(100)
        answered.recv(100)
        answered.sendall(OK)
        (key,) = world.loop._selector.select(0)
        world.loop._receive(key[0].data)
        assert world.results == [b"{}"]
        pending.sendall(OK)
        world.receive()


def test_broken_connection_closes_idle_connections(world: World) -> None:
    idle = world.connect()
    with world.connect() as server:
        world.send()
        server.recv(100)
    assert world.receive() == [TransportError]
    with idle:
        assert idle.recv(100) == b""
    assert not world.send()


def test_send_returns_false_on_a_broken_connection(world: World) -> None:
    with world.connect():
        (connection,) = world.transport._idle
        connection.socket.shutdown(socket.SHUT_WR)
        assert not world.send()
    assert world.receive() == []


def test_missing_response_times_out(world: World) -> None:
    with world.connect():
        world.send()
        world.now = 10.0
        assert world.receive() == [TimeoutError]
