"""A flood of reviews from its own process, sent without waiting for responses.

`python -m tests.faults.flood HOST:PORT CLIENTS@RATE` sends RATE requests a second in total, over
CLIENTS connections. A client whose connection accepts no more data reconnects. Only complete
requests count whose bytes the server's kernel has acknowledged. It prints "ready" when all clients
have been connected once, and the counts since then as JSON when standard input ends.
"""

import fcntl
import json
import math
import selectors
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

from tests.faults.client_load import review
from tests.support.background import in_background

RECORD = 16 * 1024
"""Bytes of a TLS record: a socket accepts a record completely, or wants it again."""
SEND_BUFFER = 16 * 1024
"""Bytes that this side's kernel may buffer: nearly everything it accepts is sent at once."""
STALL_SECONDS = 0.1
"""Seconds until a client reconnects whose connection accepts no more data, if the flood is behind
its rate."""
MAX_RECONNECTING = 0.25
"""The share of the clients that may reconnect at the same time, while the others send."""
MAX_BEHIND = 0.05
"""Seconds by which the flood may be behind its rate."""
POLL_SECONDS = 0.01
"""Timeout of the selector, after which due requests are counted again."""
MAX_SENDS = 64
"""Pieces that are sent before responses are read again."""
RECEIVE = 256 * 1024
STATUS = b"HTTP/1.1 200"


@dataclass
class Account:
    offered: int = 0
    """Complete requests that the server's kernel has acknowledged."""
    answers: int = 0
    connections: int = 0
    """Connections with a complete TLS handshake."""
    full: int = 0
    """Connections that were closed because they accepted no more data."""
    seconds: float = 0.0


class Client:
    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        raw_socket = socket.socket()
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        raw_socket.setblocking(False)
        raw_socket.connect_ex(address)
        self.socket = context.wrap_socket(raw_socket, do_handshake_on_connect=False)
        self.is_open = False
        self.sent = 0
        """Requests that this side's kernel has accepted, and that are not counted yet."""
        self.full_since = 0.0
        """When it first accepted no more data, by the monotonic clock; 0 before that."""

    def unacknowledged(self, size: int) -> int:
        """Count the requests of that size that the server's kernel has not fully acknowledged."""
        queued_bytes: int
        (queued_bytes,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
        return math.ceil(queued_bytes / size)


class Flood:
    def __init__(self, address: str, count: int, rate: float) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.count, self.rate = (host, int(port)), count, rate
        self.context = ssl._create_unverified_context()
        self.selector = selectors.DefaultSelector()
        self.account = Account()
        self.clients: set[Client] = set()
        self.ready: deque[Client] = deque()
        """Clients that may accept more data, round-robin; some of them may have been closed."""
        self.request = review()
        self.per_piece = RECORD // len(self.request)
        self.piece = self.request * self.per_piece

    def run(self, stop: threading.Event) -> None:
        """Send until stopped; `account` then has the counts since all clients were connected."""
        began, sent, ready = time.monotonic(), 0, False
        while not stop.is_set():
            due = int((time.monotonic() - began) * self.rate) - sent
            self._replace_stalled(behind=due > self.rate * MAX_BEHIND)
            for key, events in self.selector.select(POLL_SECONDS):
                self._handle(key.data, events)
            sent += self._offer(due)
            if not ready and self.account.connections >= self.count:
                print("ready", flush=True)
                for client in self.clients:
                    self._count(client)
                self.account, ready = Account(), True
                began, sent = time.monotonic(), 0
        self.account.seconds = time.monotonic() - began
        for client in list(self.clients):
            self._end(client)

    def _replace_stalled(self, *, behind: bool) -> None:
        """Close stalled clients if `behind`, and add new clients up to `count`."""
        reconnecting = sum(not peer.is_open for peer in self.clients)
        latest = time.monotonic() - STALL_SECONDS
        full_clients = [peer for peer in self.clients if behind and 0 < peer.full_since < latest]
        full_clients.sort(key=lambda peer: peer.full_since)
        for client in full_clients[: max(0, int(self.count * MAX_RECONNECTING) - reconnecting)]:
            self.account.full += 1
            self._end(client)
        while len(self.clients) < self.count:
            client = Client(self.address, self.context)
            self.clients.add(client)
            self.selector.register(client.socket, selectors.EVENT_WRITE, client)

    def _handle(self, client: Client, events: int) -> None:
        """Continue a client's handshake, or read its responses, and note whether it can send."""
        try:
            if not client.is_open:
                self._shake_hands(client)
                return
            self._read(client)
            if events & selectors.EVENT_WRITE:
                self._mark_ready(client)
        except (OSError, EOFError):
            self._end(client)

    def _shake_hands(self, client: Client) -> None:
        try:
            client.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.selector.modify(client.socket, selectors.EVENT_READ, client)
        except ssl.SSLWantWriteError:
            self.selector.modify(client.socket, selectors.EVENT_WRITE, client)
        else:
            client.is_open = True
            self.account.connections += 1
            self._mark_ready(client)

    def _read(self, client: Client) -> None:
        try:
            while responses := client.socket.recv(RECEIVE):
                self.account.answers += responses.count(STATUS)
        except ssl.SSLWantReadError:
            return
        raise EOFError

    def _mark_ready(self, client: Client) -> None:
        self.selector.modify(client.socket, selectors.EVENT_READ, client)
        self.ready.append(client)

    def _offer(self, due: int) -> int:
        """Send due requests that the connections accept, and return how many were sent."""
        sent = 0
        for _ in range(MAX_SENDS):
            if sent >= due or not self.ready:
                break
            client = self.ready.popleft()
            if client not in self.clients or not self._send(client):
                continue
            sent += self.per_piece
            self.ready.append(client)
        return sent

    def _send(self, client: Client) -> bool:
        try:
            client.socket.send(self.piece)
        except ssl.SSLWantWriteError:
            client.full_since = client.full_since or time.monotonic()
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(client.socket, events, client)
            return False
        except OSError:
            self._end(client)
            return False
        client.sent += self.per_piece
        return True

    def _end(self, client: Client) -> None:
        self._count(client)
        self.selector.unregister(client.socket)
        self.clients.discard(client)
        client.socket.close()

    def _count(self, client: Client) -> None:
        unacknowledged = min(client.sent, client.unacknowledged(len(self.request)))
        self.account.offered += client.sent - unacknowledged
        client.sent = unacknowledged


def main(address: str, order: str) -> None:
    """Flood until standard input ends."""
    count, _, rate = order.partition("@")
    flood = Flood(address, int(count), float(rate))
    with in_background(flood.run):
        sys.stdin.read()
    print(json.dumps(asdict(flood.account)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
