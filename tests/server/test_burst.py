"""A burst of connects that send nothing, at the connection cap, resets no real client."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.server.conftest import Serve
from tests.server.harness import PATIENCE, Server

CAP, SERVED, BARE, CLIENTS = 100, 78, 300, 40
"""Connections: the cap, those of clients that have been served, those of the burst, and those
that are opened during the burst. A cap of 1,000 with 780 and 3,000 behaves the same."""


@contextmanager
def burst(server: Server, source: str) -> Iterator[None]:
    """Open connections from an address as fast as possible, and send nothing."""
    with ExitStack() as stack:
        stop = threading.Event()

        def connect() -> None:
            for _ in range(BARE):
                if stop.is_set():
                    return
                client = stack.enter_context(socket.socket())
                client.bind((source, 0))
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", server.port))

        thread = threading.Thread(target=connect)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["same", "another"])
def test_burst_of_bare_connects_resets_no_handshake(serve: Serve, source: str) -> None:
    server = serve(max_connections=CAP, handshake_timeout=PATIENCE, request_deadline=PATIENCE)
    with server.served_clients(SERVED):
        with ThreadPoolExecutor(8) as pool, burst(server, source):
            answers = list(pool.map(lambda _: server.get("/healthz").status, range(CLIENTS)))
        assert answers == [200] * CLIENTS
        assert server.open_connections() <= CAP
