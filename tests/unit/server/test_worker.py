import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.webhook.server.worker import FairSelector


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


def test_select_without_ready_connections(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    with FairSelector() as chosen:
        chosen.register(pairs[0][1], selectors.EVENT_READ)
        assert chosen.select(0) == []
