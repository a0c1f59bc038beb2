"""Clients that misbehave, in their own process.

`python -m tests.faults.client_load HOST:PORT KIND=COUNT...` prints "ready" when each has connected
once. Clients reconnect whenever they are disconnected, until standard input ends. Then the counts
since all were connected are printed as JSON.
"""

import asyncio
import errno
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle

from tests.support.builders import make_pod, make_review

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Behaviour = Callable[[Streams], Awaitable[None]]
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HALF_REQUEST = HEAD + b"Content-Length: 1000\r\n\r\n"
LOCAL_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""Errors on the clients' side, which the server did not cause."""
PAUSE = 0.05
"""Seconds until a disconnected client reconnects."""


@dataclass
class Counters:
    clients: int = 0
    answers: int = 0
    """Responses to reviews."""
    disconnected: set[int] = field(default_factory=set)
    """The clients that the server has disconnected at least once."""
    tried: set[int] = field(default_factory=set)
    """The clients that have tried to connect at least once."""
    open: int = 0
    """The clients that are connected, with TLS if they use it."""
    max_open: int = 0
    """The most clients that were connected at the same time."""
    began: float = 0.0
    """When all of them had tried, by the monotonic clock."""

    def note_try(self, number: int) -> None:
        """Note that a client has tried to connect; start counting when all clients have."""
        self.tried.add(number)
        if not self.began and len(self.tried) == self.clients:
            self.began, self.answers = time.monotonic(), 0
            print("ready", flush=True)

    @contextmanager
    def connected(self) -> Iterator[None]:
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            yield
        finally:
            self.open -= 1

    def to_json(self) -> str:
        seconds = time.monotonic() - self.began if self.began else 0.0
        not_disconnected = self.clients - len(self.disconnected)
        return json.dumps(
            {
                "answers": self.answers,
                "seconds": seconds,
                "not disconnected": not_disconnected,
                "connected at once": self.max_open,
            }
        )


counters = Counters()


def send(content: bytes) -> Behaviour:
    """Return a client that sends this, and then nothing more."""

    async def behave(streams: Streams) -> None:
        streams[1].write(content)
        await streams[0].read()

    return behave


async def disconnect(_streams: Streams) -> None:
    """Disconnect at once."""


def drip(start: bytes, repeated: bytes, *, at_once: bytes = b"") -> Behaviour:
    """Return a client that sends `at_once`, then a byte a second until the server disconnects."""

    async def behave(streams: Streams) -> None:
        streams[1].write(at_once)
        for byte in chain(start, cycle(repeated)):
            streams[1].write(bytes([byte]))
            await streams[1].drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # wait_for may swallow a cancellation
                    await streams[0].read(1)
            if streams[0].at_eof():
                return

    return behave


def review() -> bytes:
    body = json.dumps(make_review(make_pod({"delay": "60"}))).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def read_response(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    counters.answers += 1


async def send_reviews(streams: Streams) -> None:
    """Send one review after another, each as soon as the response to the last has arrived."""
    request = review()
    while True:
        streams[1].write(request)
        await read_response(streams[0])


KINDS: dict[str, tuple[Behaviour, bool]] = {
    "silent": (send(b""), False),
    "half-hello": (send(HALF_HELLO), False),
    "half-header": (send(HEAD + b"Content-Le"), True),
    "half-body": (send(HALF_REQUEST + b"{"), True),
    "disconnect": (disconnect, False),
    "drip-hello": (drip(HALF_HELLO, b"\0"), False),
    "drip-header": (drip(HEAD, b"X-More: a\r\n"), True),
    "drip-body": (drip(b"", b" ", at_once=HALF_REQUEST), True),
    "reviews": (send_reviews, True),
}
"""The behaviour of each kind of client, and whether it uses TLS."""


async def client(address: str, behave: Behaviour, *, tls: bool, number: int) -> None:
    """Run one client, which reconnects. Raises OSError if this side lacks resources."""
    host, _, port = address.rpartition(":")
    context = ssl._create_unverified_context() if tls else None
    while True:
        try:
            try:
                streams = await asyncio.open_connection(host, int(port), ssl=context)
            finally:
                counters.note_try(number)
            try:
                with counters.connected():
                    await behave(streams)
            finally:
                streams[1].transport.abort()
        except ConnectionRefusedError:
            pass
        except (OSError, EOFError) as exc:
            if getattr(exc, "errno", None) in LOCAL_ERRORS:
                raise
            counters.disconnected.add(number)
        else:
            counters.disconnected.add(number)
        await asyncio.sleep(PAUSE)


async def main(address: str, orders: list[str]) -> None:
    """Run clients; each order is KIND=COUNT."""
    kinds = [order.partition("=") for order in orders]
    behaviours = [KINDS[kind] for kind, _, count in kinds for _ in range(int(count))]
    counters.clients = len(behaviours)
    tasks = [
        asyncio.create_task(client(address, behave, tls=tls, number=number))
        for number, (behave, tls) in enumerate(behaviours)
    ]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    print(counters.to_json())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
