"""Clients that misbehave, in a process of their own: `python -m tests.faults.crowd HOST:PORT KIND`.

They come back as often as they are closed, until standard input ends; then the number of answers is
printed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.unit.builders import make_pod, make_review

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PAUSE = 0.05
"""Seconds until a client that was closed comes again."""
answers = 0


async def bare(streams: Streams) -> None:
    """Say nothing at all."""
    await streams[0].read()


async def half_a_hello(streams: Streams) -> None:
    """Begin a handshake."""
    streams[1].write(HALF_A_HELLO)
    await streams[0].read()


async def half_a_header(streams: Streams) -> None:
    """Begin a request's head."""
    streams[1].write(HEAD + b"Content-Le")
    await streams[0].read()


async def half_a_body(streams: Streams) -> None:
    """Begin a request's body."""
    streams[1].write(HEAD + b"Content-Length: 1000\r\n\r\n{")
    await streams[0].read()


async def drip(streams: Streams) -> None:
    """Send a byte a second."""
    streams[1].write(HEAD + b"Content-Length: 1000\r\n\r\n")
    while not streams[0].at_eof():
        streams[1].write(b" ")
        await streams[1].drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(streams[0].read(1), 1.0)


async def flood(streams: Streams) -> None:
    """Ask for review after review, as fast as they are answered."""
    global answers  # noqa: PLW0603 - one process, one figure
    body = json.dumps(make_review(make_pod({"delay": "60"}))).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = streams
    while True:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        answers += 1


KINDS: dict[str, tuple[Callable[[Streams], Awaitable[None]], bool]] = {
    "bare": (bare, False),
    "half-a-hello": (half_a_hello, False),
    "half-a-header": (half_a_header, True),
    "half-a-body": (half_a_body, True),
    "drip": (drip, True),
    "flood": (flood, True),
}
"""What each does, and whether it does so within TLS."""


async def client(address: str, kind: str) -> None:
    """Be one client, again and again."""
    host, _, port = address.rpartition(":")
    act, tls = KINDS[kind]
    context = ssl._create_unverified_context() if tls else None
    while True:
        with suppress(OSError, EOFError, TimeoutError):
            streams = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                await act(streams)
            finally:
                streams[1].transport.abort()
        await asyncio.sleep(PAUSE)


async def main(address: str, orders: list[str]) -> None:
    """Run as many clients of each kind as are ordered, as KIND=COUNT."""
    tasks = [
        asyncio.create_task(client(address, kind))
        for kind, _, count in (order.partition("=") for order in orders)
        for _ in range(int(count))
    ]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(answers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
