"""Clients that misbehave, in their own process.

`python -m tests.faults.client_load HOST:PORT KIND=COUNT...` prints "ready" when each has connected
once. Clients reconnect as often as they are closed, until standard input ends; then what they saw
since all were connected is printed as JSON.
"""

import asyncio
import errno
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat

from tests.support.builders import make_pod, make_review

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Act = Callable[[Streams], Awaitable[None]]
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""Failures on the clients' side, which the server did not cause."""
PAUSE = 0.05
"""Seconds until a client that was closed comes again."""


@dataclass
class Account:
    clients: int = 0
    answers: int = 0
    ended: set[int] = field(default_factory=set)
    """The clients whose connection the server has ended at least once."""
    came: set[int] = field(default_factory=set)
    """The clients that have tried at least once to connect."""
    open: int = 0
    """The clients that are connected, where they begin with TLS by that."""
    most: int = 0
    """How many were at the same time."""
    began: float = 0.0
    """When all of them had, by the monotonic clock."""

    def come(self, number: int) -> None:
        """Note that a client has tried to connect; the last of them begins the account."""
        self.came.add(number)
        if not self.began and len(self.came) == self.clients:
            self.began, self.answers = time.monotonic(), 0
            print("ready", flush=True)

    @contextmanager
    def connected(self) -> Iterator[None]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            yield
        finally:
            self.open -= 1

    def shown(self) -> str:
        seconds = time.monotonic() - self.began if self.began else 0.0
        never = self.clients - len(self.ended)
        return json.dumps(
            {
                "answers": self.answers,
                "seconds": seconds,
                "never ended": never,
                "at once": self.most,
            }
        )


account = Account()


async def bare(streams: Streams) -> None:
    await streams[0].read()


async def half_a_hello(streams: Streams) -> None:
    streams[1].write(HALF_A_HELLO)
    await streams[0].read()


async def half_a_header(streams: Streams) -> None:
    streams[1].write(HEAD + b"Content-Le")
    await streams[0].read()


async def half_a_body(streams: Streams) -> None:
    streams[1].write(HEAD + b"Content-Length: 1000\r\n\r\n{")
    await streams[0].read()


async def knock(_streams: Streams) -> None:
    """Go at once."""


async def dripped(streams: Streams, content: Iterable[int]) -> None:
    """Send a byte a second, until the server has ended the connection."""
    for byte in content:
        streams[1].write(bytes([byte]))
        await streams[1].drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # wait_for may swallow a cancellation
                await streams[0].read(1)
        if streams[0].at_eof():
            return


async def drip_a_hello(streams: Streams) -> None:
    """Send a handshake's first bytes, and then zeros, one a second."""
    await dripped(streams, chain(HALF_A_HELLO, repeat(0)))


async def drip_a_header(streams: Streams) -> None:
    """Send a request's head, which does not end, one byte a second."""
    await dripped(streams, chain(HEAD, cycle(b"X-More: a\r\n")))


async def drip_a_body(streams: Streams) -> None:
    """Send a request's body, one byte a second."""
    streams[1].write(HEAD + b"Content-Length: 1000\r\n\r\n")
    await dripped(streams, repeat(0x20))


def review() -> bytes:
    body = json.dumps(make_review(make_pod({"delay": "60"}))).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    account.answers += 1


async def ask(streams: Streams) -> None:
    """Ask for review after review, as fast as they are answered."""
    request = review()
    while True:
        streams[1].write(request)
        await answer(streams[0])


KINDS: dict[str, tuple[Act, bool]] = {
    "bare": (bare, False),
    "half-a-hello": (half_a_hello, False),
    "half-a-header": (half_a_header, True),
    "half-a-body": (half_a_body, True),
    "knock": (knock, False),
    "drip-a-hello": (drip_a_hello, False),
    "drip-a-header": (drip_a_header, True),
    "drip-a-body": (drip_a_body, True),
    "ask": (ask, True),
}
"""The behaviour of each kind, and whether it uses TLS."""


async def client(address: str, act: Act, *, tls: bool, number: int) -> None:
    """Be one client, again and again. Raises OSError for what this side has too little of."""
    host, _, port = address.rpartition(":")
    context = ssl._create_unverified_context() if tls else None
    while True:
        try:
            try:
                streams = await asyncio.open_connection(host, int(port), ssl=context)
            finally:
                account.come(number)
            try:
                with account.connected():
                    await act(streams)
            finally:
                streams[1].transport.abort()
        except ConnectionRefusedError:
            pass
        except (OSError, EOFError) as exc:
            if getattr(exc, "errno", None) in OURS:
                raise
            account.ended.add(number)
        else:
            account.ended.add(number)
        await asyncio.sleep(PAUSE)


async def main(address: str, orders: list[str]) -> None:
    """Run as many clients of each kind as are ordered."""
    kinds = [order.partition("=") for order in orders]
    acts = [KINDS[kind] for kind, _, count in kinds for _ in range(int(count))]
    account.clients = len(acts)
    tasks = [
        asyncio.create_task(client(address, act, tls=tls, number=number))
        for number, (act, tls) in enumerate(acts)
    ]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, Exception):
            raise end
    print(account.shown())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
