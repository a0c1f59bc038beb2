"""The flood of the fault rows counts what has come to the server, and nothing else.

And nothing of it stays with `holdfast serve`.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from certs.authority import KeyPair
from tests.faults.flood import Flood
from tests.server.harness import Pair
from tests.server.serving import serve

CLIENTS, RATE, SECONDS = 4, 200_000.0, 1.0
MANY, GONE = 20, 60
"""Clients at once, and how often one of them has gone until the flood ends."""
GROWTH = 12 << 20
"""Bytes by which a second flood may make the worker grow. It does not grow at all; where each
client leaves what it has sent, it grows by several times as much."""
PATIENCE = 60.0
"""Seconds in which so many have gone, and their connections are closed."""


class Deaf:
    """Sets up TLS, and reads nothing until it is told to."""

    def __init__(self, pair: Pair, stack: ExitStack) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certfile, pair.keyfile)
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._stack = stack
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.clients: list[ssl.SSLSocket] = []
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(1.0)
            with suppress(OSError):
                client = self._context.wrap_socket(peer, server_side=True)
                self.clients.append(self._stack.enter_context(client))

    def close(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()

    def whole(self, request: bytes) -> int:
        """Read all that has come, and count the requests of which every byte has."""
        return sum(_read(client) // len(request) for client in self.clients)


def _read(client: ssl.SSLSocket) -> int:
    """Read until there is no more, and count the bytes."""
    size = 0
    with suppress(OSError):
        while part := client.recv(1 << 16):
            size += len(part)
    return size


@pytest.fixture
def deaf(pair: Pair) -> Iterator[Deaf]:
    with ExitStack() as stack:
        yield Deaf(pair, stack)


def test_what_is_never_taken_is_not_counted(deaf: Deaf) -> None:
    flood, stop = Flood(deaf.address, CLIENTS, RATE), threading.Event()
    thread = threading.Thread(target=flood.run, args=(stop,))
    thread.start()
    time.sleep(SECONDS)
    stop.set()
    thread.join()
    deaf.close()

    account = flood.account
    assert 0 < account.offered < RATE * account.seconds / 2
    assert account.full > 0, "nobody came again over another connection"
    assert account.answers == 0
    assert account.offered <= deaf.whole(flood.request)


def test_clients_that_send_ahead_and_go_leave_nothing_behind(
    tmp_path: Path, issued: list[KeyPair]
) -> None:
    with serve(tmp_path, issued[0]) as serving:
        sizes = []
        for _ in range(2):
            flooded(serving.command.address)
            eventually(lambda: not any(one.raddr for one in serving.worker.net_connections("tcp")))
            sizes.append(serving.worker.memory_info().rss)
        assert sizes[1] - sizes[0] < GROWTH, [size >> 20 for size in sizes]
        serving.check_unharmed()


def flooded(address: str) -> None:
    """Flood a server until many clients have gone."""
    flood, stop = Flood(address, MANY, RATE), threading.Event()
    thread = threading.Thread(target=flood.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: flood.account.full >= GONE)
    finally:
        stop.set()
        thread.join()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not so within {PATIENCE:.0f} s"
        time.sleep(0.05)
