"""After a flood of pipelined requests, `holdfast serve` keeps nothing of it in memory."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.certs.authority import KeyPair
from tests.faults.flood import Flood
from tests.server.serving import serve

RATE = 200_000.0
MANY, GONE = 20, 60
"""Clients at once, and how often one of them has gone until the flood ends."""
GROWTH = 12 << 20
"""Bytes by which a second flood may make the worker grow. It does not grow at all; where each
client leaves what it has sent, it grows by several times as much."""
PATIENCE = 60.0
"""Seconds in which so many have gone, and their connections are closed."""


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
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not so within {PATIENCE:.0f} s"
        time.sleep(0.05)
