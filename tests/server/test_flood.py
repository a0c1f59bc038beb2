"""`holdfast serve` frees all memory that a flood of pipelined requests needed."""

import threading
from pathlib import Path

from holdfast.certs.authority import KeyPair
from tests.faults.flood import Flood
from tests.server.harness import wait_until
from tests.server.serving import serve_holdfast

RATE = 200_000.0
CLIENTS, DISCONNECTS = 20, 60
"""Concurrent clients, and the number of disconnects after which the flood ends."""
GROWTH = 12 << 20
"""Bytes by which a second flood may make the worker grow. It should not grow at all; a leak of
each client's unread input makes it grow by several times as much."""
PATIENCE = 60.0
"""Seconds to wait for the disconnects, and for all connections to close."""


def test_disconnected_pipelining_clients_leak_no_memory(
    tmp_path: Path, issued: list[KeyPair]
) -> None:
    with serve_holdfast(tmp_path, issued[0]) as serving:
        sizes = []
        for _ in range(2):
            flood_server(serving.command.address)
            wait_until(
                "all connections are closed",
                lambda: not any(peer.raddr for peer in serving.worker.net_connections("tcp")),
                PATIENCE,
            )
            sizes.append(serving.worker.memory_info().rss)
        assert sizes[1] - sizes[0] < GROWTH, [size >> 20 for size in sizes]
        serving.check_healthy()


def flood_server(address: str) -> None:
    """Flood a server until enough clients have disconnected."""
    flood, stop = Flood(address, CLIENTS, RATE), threading.Event()
    thread = threading.Thread(target=flood.run, args=(stop,))
    thread.start()
    try:
        wait_until("clients have disconnected", lambda: flood.account.full >= DISCONNECTS, PATIENCE)
    finally:
        stop.set()
        thread.join()
