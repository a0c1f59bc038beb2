import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.webhook.server.worker import FairSelector


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        connections = [socket.socketpair() for _ in range(4)]
        for pair in connections:
            for end in pair:
                stack.enter_context(end)
        yield connections


def serve(selector: FairSelector) -> str:
    return "".join(key.data for key, _ in selector.select(0) if key.fileobj.recv(1))  # type: ignore[union-attr]


def test_client_that_missed_a_round_is_first_in_the_next(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    clients = dict(zip("abcd", (pair[0] for pair in pairs), strict=True))
    with FairSelector() as selector:
        for name, (_, server) in zip("abcd", pairs, strict=True):
            selector.register(server, selectors.EVENT_READ, name)
        rounds = []
        for names in ("abc", "dab", "cda", "bcd", "abcd"):
            for name in names:
                clients[name].send(b"x")
            rounds.append(serve(selector))

    # the client that was served last skips the next round, and is first in the one after
    assert rounds == ["abc", "dab", "cda", "bcd", "abcd"]


def test_select_without_ready_connections(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    with FairSelector() as selector:
        selector.register(pairs[0][1], selectors.EVENT_READ)
        assert selector.select(0) == []
