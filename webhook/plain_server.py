"""A server of plain HTTP in one thread: bounded in connections, in bytes and in time.

One thread, because a flood of requests then takes its turns with the rest of the process as one
thread, whatever its connections; and nothing that a client does can keep another from its turn.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from webhook import listening

CONNECTIONS = 64
"""Open connections; when one more comes, the oldest is closed."""
DEADLINE = 5.0
"""Seconds from a connection's beginning until its answer is sent, but for the page's making."""
HEAD_LIMIT = 64 * 1024
"""Bytes of a request's head that are read."""
BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""
TICK = 0.1
"""Seconds between two looks at the deadlines, and at whether to stop."""
ACCEPT_PAUSE = 0.1
"""Seconds without accepting after the system refused a descriptor."""
LOG_INTERVAL = 10.0
"""Seconds between two log lines about that."""

_AT_ONCE = 4
"""A newcomer is looked at so many times, at least, before newer ones can push it out."""
_RESET = struct.pack("ii", 1, 0)
_log = logging.getLogger("holdfast.pages")

Respond = Callable[[bytes], bytes]
"""Makes the answer to a request's head, which is longer than HEAD_LIMIT where it was cut."""


@dataclass(slots=True, eq=False)
class _Connection:
    """An open connection: what has come of its head, and then what is left of its answer."""

    peer: socket.socket
    deadline: float
    head: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


def listen(host: str, port: int, deadline: float) -> socket.socket:
    """Take the port. What a client does not acknowledge for `deadline` seconds is thrown away.

    Raises OSError.
    """
    listener = listening.bound(host, port, BACKLOG)
    try:
        # The kernel goes on sending after the close, for minutes, to a client that takes nothing;
        # what it sends counts as this process' memory.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            limit = int(deadline * 1_000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


class PlainServer:
    """Answers one request for each connection, until it is stopped; `deadline` is in seconds."""

    def __init__(
        self, listener: socket.socket, respond: Respond, *, connections: int, deadline: float
    ) -> None:
        self._listener = listener
        self._respond = respond
        self._most = connections
        self._deadline = deadline
        self._selector = selectors.PollSelector()
        self._open: dict[_Connection, None] = {}
        """The oldest first."""
        self._stopping = threading.Event()
        self._making = 0.0
        """Seconds that the making of answers has taken so far."""
        self._logged = float("-inf")

    def stop(self) -> None:
        """Have `run` end: soon, or after the answer that is being made."""
        self._stopping.set()

    def run(self) -> None:
        """Serve until told to stop, then close the port and every connection."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not self._stopping.is_set():
                self._round()
        finally:
            for connection in [*self._open]:
                self._close(connection)
            self._selector.close()
            self._listener.close()

    def _round(self) -> None:
        """Serve those that are ready, and only then let in newcomers, who push out the oldest."""
        ready = [key.data for key, _ in self._selector.select(TICK)]
        for connection in ready:
            if connection is not None:
                self._serve(connection)
        if None in ready:
            self._accept()
        now = self._now()
        for connection in [*self._open]:
            if connection.deadline <= now:
                self._give_up(connection)

    def _now(self) -> float:
        """Give the time by a clock that stands while an answer is made: nobody is late by it."""
        return time.monotonic() - self._making

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            if connection.answer is not None:
                self._write(connection, connection.answer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client has left
            self._close(connection)
        except Exception:  # noqa: BLE001 - one request must not end all
            _log.exception("a request could not be answered")
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        head = connection.head
        chunk = connection.peer.recv(HEAD_LIMIT + 1 - len(head))
        head += chunk
        if chunk and len(head) <= HEAD_LIMIT and not _ends_in(head, len(chunk)):
            return
        begun = time.monotonic()
        try:
            connection.answer = memoryview(self._respond(bytes(head)))
        finally:
            self._making += time.monotonic() - begun
        head.clear()
        self._selector.modify(connection.peer, selectors.EVENT_WRITE, connection)

    def _write(self, connection: _Connection, answer: memoryview) -> None:
        connection.answer = answer[connection.peer.send(answer) :]
        if not connection.answer:
            self._close(connection)

    def _accept(self) -> None:
        for _ in range(max(1, self._most // _AT_ONCE)):
            try:
                peer, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._pause(exc)
                return
            self._let_in(peer)

    def _pause(self, exc: OSError) -> None:
        """Wait a little, for a descriptor of the oldest connection, or of somebody else's."""
        now = time.monotonic()
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            _log.warning("cannot accept connections for now: %s", exc)
        if self._open:
            self._give_up(next(iter(self._open)))
        self._stopping.wait(ACCEPT_PAUSE)

    def _let_in(self, peer: socket.socket) -> None:
        while len(self._open) >= self._most:
            self._give_up(next(iter(self._open)))
        peer.settimeout(0)
        connection = _Connection(peer, self._now() + self._deadline)
        self._open[connection] = None
        self._selector.register(peer, selectors.EVENT_READ, connection)

    def _give_up(self, connection: _Connection) -> None:
        """Close a connection, and have the kernel throw away what its client has not taken."""
        with contextlib.suppress(OSError):
            connection.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._open[connection]
        self._selector.unregister(connection.peer)
        connection.peer.close()


def _ends_in(head: bytearray, size: int) -> bool:
    """Tell whether an empty line, which ends a head, is complete within its last `size` bytes."""
    begin = max(0, len(head) - size - 2)
    return head.find(b"\n\n", begin) >= 0 or head.find(b"\n\r\n", begin) >= 0
