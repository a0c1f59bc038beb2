"""A flood of connections from one address, in its own process.

`python -m tests.server.connect_flood HOST PORT SOURCE RATE`: so many a second, that never end their
handshake, until standard input ends. "ready" is printed after the first `KEPT`.
"""

import contextlib
import select
import socket
import struct
import sys
import time
from collections import deque

KEPT = 2_000
"""Connections that stay open; the oldest is closed for the next one."""
BIND_ADDRESS_NO_PORT = 24
"""Linux's IP_BIND_ADDRESS_NO_PORT."""
BEAT = 0.005
"""Seconds between two looks at how many are due."""
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def connect(target: tuple[str, int], source: str) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    # A reset on closing, and no port before the connect: the kernel runs out of ports otherwise.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if sys.platform == "linux":
        client.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
    client.bind((source, 0))
    client.connect_ex(target)
    return client


def main(host: str, port: str, source: str, rate: str) -> None:
    target = host, int(port)
    clients: deque[socket.socket] = deque()
    began, made = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], BEAT)[0]:
        for _ in range(int((time.monotonic() - began) * int(rate)) - made):
            clients.append(connect(target, source))
            made += 1
            if made % 2 and len(clients) > 100:
                with contextlib.suppress(OSError):  # not accepted yet, or closed by the server
                    clients[-100].send(HALF_A_HELLO)
            if len(clients) > KEPT:
                clients.popleft().close()
            if made == KEPT:
                print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
