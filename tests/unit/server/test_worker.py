import selectors
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.webhook.server.connection import Phase
from holdfast.webhook.server.worker import GRACE, FairSelector, HoldfastWorker


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(4)]
        for pair in made:
            for one in pair:
                stack.enter_context(one)
        yield made


def serve(chosen: FairSelector) -> str:
    return "".join(key.data for key, _ in chosen.select(0) if key.fileobj.recv(1))  # type: ignore[union-attr]


def test_client_that_missed_a_round_is_first_in_the_next(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    clients = dict(zip("abcd", (pair[0] for pair in pairs), strict=True))
    with FairSelector() as chosen:
        for name, (_, server) in zip("abcd", pairs, strict=True):
            chosen.register(server, selectors.EVENT_READ, name)
        served = []
        for asking in ("abc", "dab", "cda", "bcd", "abcd"):
            for name in asking:
                clients[name].send(b"x")
            served.append(serve(chosen))

    # the client that was served last skips the next round, and is first in the one after
    assert served == ["abc", "dab", "cda", "bcd", "abcd"]


def test_a_round_without_anybody(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    with FairSelector() as chosen:
        chosen.register(pairs[0][1], selectors.EVENT_READ)
        assert chosen.select(0) == []


class Client:
    """A connection that has just been accepted, and has had no response."""

    phase = Phase.HANDSHAKE
    accepted = 0.0

    def __init__(self, address: str) -> None:
        self.address = address
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def full_worker(*clients: Any, seconds: float) -> HoldfastWorker:
    """Make a worker at its limit, so many seconds after these clients came."""
    worker = HoldfastWorker.__new__(HoldfastWorker)
    worker.loop = SimpleNamespace(time=lambda: seconds)  # type: ignore[assignment]
    worker.settings = SimpleNamespace(max_connections=100)  # type: ignore[assignment]
    worker.newcomers = dict.fromkeys(clients)
    worker.connections = set(clients)
    worker._addresses = Counter(one.address for one in clients)
    return worker


@pytest.mark.parametrize(
    ("flooding", "seconds", "dropped"),
    [
        pytest.param(25, 0.0, False, id="few, in their grace"),
        pytest.param(25, GRACE, True, id="few, after it"),
        pytest.param(26, 0.0, True, id="more than a quarter"),
    ],
)
def test_flood_of_one_address_makes_room_at_once(
    flooding: int, seconds: float, dropped: bool
) -> None:
    server = [Client("10.0.0.1") for _ in range(20)]
    flood = [Client("10.0.0.66") for _ in range(flooding)]
    worker = full_worker(*server, *flood, seconds=seconds)
    assert worker._make_room() is dropped
    assert [one.dropped for one in flood] == [dropped] + [False] * (flooding - 1)
    assert not any(one.dropped for one in server)
