"""A flood of reviews, in its own process: asked for whether there are answers or not.

`python -m tests.faults.flood HOST:PORT CLIENTS@RATE`: over so many connections, so many requests a
second, all together. A client of whom no more is taken comes again over another connection. Only
whole requests count whose bytes the server's kernel has acknowledged. "ready" is printed when all
have been connected once; when standard input ends, the account of the time from then on, as JSON.
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

RECORD = 16 * 1024
"""Bytes that TLS sends as one: a socket takes such a piece as a whole, or asks for it again."""
SEND_BUFFER = 16 * 1024
"""Bytes that this side's kernel may keep back: nearly all that it takes is the server's at once."""
PATIENCE = 0.1
"""Seconds for which a client stays that could not send all it wanted; then it comes again over
another connection, unless all keep up with what is due."""
COMING = 0.25
"""The share of the clients that may be about to come again at once: the others go on sending."""
BEHIND = 0.05
"""Seconds by which they may be behind with what is due."""
BEAT = 0.01
"""Seconds between two looks at how many requests are due."""
MOST_AT_ONCE = 64
"""Pieces that are sent between two looks at what has come."""
RECEIVE = 256 * 1024
STATUS = b"HTTP/1.1 200"


@dataclass
class Account:
    offered: int = 0
    """Whole requests that the server's kernel has acknowledged."""
    answers: int = 0
    connections: int = 0
    """On which TLS was set up."""
    full: int = 0
    """Connections that were given up since no more was taken of them."""
    ended: int = 0
    """Connections that the server has ended, or that never came about."""
    seconds: float = 0.0


class Client:
    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        raw.setblocking(False)
        raw.connect_ex(address)
        self.socket = context.wrap_socket(raw, do_handshake_on_connect=False)
        self.is_open = False
        self.sent = 0
        """Requests that this side's kernel has taken, and that are not counted yet."""
        self.full_since = 0.0
        """When it took no more for the first time, by the monotonic clock; 0 before that."""

    def unacknowledged(self, size: int) -> int:
        """Count the requests of that size of which a byte has not come to the server's kernel."""
        left: int
        (left,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
        return math.ceil(left / size)


class Flood:
    def __init__(self, address: str, count: int, rate: float) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.count, self.rate = (host, int(port)), count, rate
        self.context = ssl._create_unverified_context()
        self.selector = selectors.DefaultSelector()
        self.account = Account()
        self.clients: set[Client] = set()
        self.ready: deque[Client] = deque()
        """Those that may take more, by turns; some of them may have been given up."""
        self.request = review()
        self.each = RECORD // len(self.request)
        self.piece = self.request * self.each

    def run(self, stop: threading.Event) -> None:
        """Continue until stopped, and return the account of the time since all were connected."""
        began, sent, ready = time.monotonic(), 0, False
        while not stop.is_set():
            due = int((time.monotonic() - began) * self.rate) - sent
            self._replace(behind=due > self.rate * BEHIND)
            for key, events in self.selector.select(BEAT):
                self._attend(key.data, events)
            sent += self._offer(due)
            if not ready and self.account.connections >= self.count:
                print("ready", flush=True)
                self._settle()
                self.account, ready = Account(), True
                began, sent = time.monotonic(), 0
        self.account.seconds = time.monotonic() - began
        for client in list(self.clients):
            self._end(client)

    def _replace(self, *, behind: bool) -> None:
        """Close clients that do not keep up, if `behind`, and add new ones up to `count`."""
        coming = sum(not one.is_open for one in self.clients)
        full_since = time.monotonic() - PATIENCE
        full = [one for one in self.clients if behind and 0 < one.full_since < full_since]
        full.sort(key=lambda one: one.full_since)
        for client in full[: max(0, int(self.count * COMING) - coming)]:
            self.account.full += 1
            self._end(client)
        while len(self.clients) < self.count:
            client = Client(self.address, self.context)
            self.clients.add(client)
            self.selector.register(client.socket, selectors.EVENT_WRITE, client)

    def _attend(self, client: Client, events: int) -> None:
        """Go on with a client's handshake, or read its answers, and see whether it takes more."""
        try:
            if not client.is_open:
                self._greet(client)
                return
            self._read(client)
            if events & selectors.EVENT_WRITE:
                self._takes_more(client)
        except (OSError, EOFError):
            self.account.ended += 1
            self._end(client)

    def _greet(self, client: Client) -> None:
        try:
            client.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.selector.modify(client.socket, selectors.EVENT_READ, client)
        except ssl.SSLWantWriteError:
            self.selector.modify(client.socket, selectors.EVENT_WRITE, client)
        else:
            client.is_open = True
            self.account.connections += 1
            self._takes_more(client)

    def _read(self, client: Client) -> None:
        try:
            while answers := client.socket.recv(RECEIVE):
                self.account.answers += answers.count(STATUS)
        except ssl.SSLWantReadError:
            return
        raise EOFError

    def _takes_more(self, client: Client) -> None:
        self.selector.modify(client.socket, selectors.EVENT_READ, client)
        self.ready.append(client)

    def _offer(self, due: int) -> int:
        """Send as many requests as are due and taken, and return how many; the rest stays due."""
        sent = 0
        for _ in range(MOST_AT_ONCE):
            if sent >= due or not self.ready:
                break
            client = self.ready.popleft()
            if client not in self.clients or not self._send(client):
                continue
            sent += self.each
            self.ready.append(client)
        return sent

    def _send(self, client: Client) -> bool:
        try:
            client.socket.send(self.piece)
        except ssl.SSLWantWriteError:
            client.full_since = client.full_since or time.monotonic()
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(client.socket, both, client)
            return False
        except OSError:
            self.account.ended += 1
            self._end(client)
            return False
        client.sent += self.each
        return True

    def _end(self, client: Client) -> None:
        self._count(client)
        self.selector.unregister(client.socket)
        self.clients.discard(client)
        client.socket.close()

    def _settle(self) -> None:
        """Count what is on its way over the connections that are open."""
        for client in self.clients:
            self._count(client)

    def _count(self, client: Client) -> None:
        left = min(client.sent, client.unacknowledged(len(self.request)))
        self.account.offered += client.sent - left
        client.sent = left


def main(address: str, order: str) -> None:
    """Flood until standard input ends."""
    count, _, rate = order.partition("@")
    flood, stop = Flood(address, int(count), float(rate)), threading.Event()
    thread = threading.Thread(target=flood.run, args=(stop,))
    thread.start()
    sys.stdin.read()
    stop.set()
    thread.join()
    print(json.dumps(asdict(flood.account)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
