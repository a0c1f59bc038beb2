"""One client's connection: gunicorn's asgi protocol, with the phase that it is in and its limits.

It builds on private names of gunicorn 27.0.1, each marked with "private:" and why it is used;
gunicorn is pinned to that version, and tests/server holds each point.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import Any, Protocol

from gunicorn.asgi import protocol  # type: ignore[import-untyped]

from webhook.request_parser import RequestParser
from webhook.runner import described

_logger = logging.getLogger("holdfast.server")

# private: the class of parsers that gunicorn's connections make, and know again.
protocol.PythonProtocol = RequestParser
READ_AHEAD = 64 * 1024
"""Bytes that are held of requests that a client sends before it has its answers."""
UNDECIPHERED = 32 * 1024
"""Bytes that asyncio holds beside those; its own 256 KiB are kept for each client that floods."""


class Phase(enum.Enum):
    """What a connection waits for; each phase has a limit in time."""

    HANDSHAKE = enum.auto()
    """TLS is being set up; asyncio itself ends this one."""
    IDLE = enum.auto()
    """The first byte of a request."""
    READING = enum.auto()
    """The end of a request whose first byte has come."""
    ANSWERING = enum.auto()
    """The application, and the client's taking of the answer."""
    CLOSING = enum.auto()
    """The client's consent to the end."""


_BETWEEN_REQUESTS = frozenset({Phase.IDLE, Phase.ANSWERING})


class Host(Protocol):
    """What a connection needs of the worker that it belongs to."""

    loop: asyncio.AbstractEventLoop
    alive: bool
    draining: bool
    sent_ahead: asyncio.Lock
    """Who of those that send requests ahead is next."""

    def served(self, connection: Connection) -> None:
        """Take note that a connection has had an answer."""

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer."""


class Connection(protocol.ASGIProtocol):  # type: ignore[misc]
    """One client's connection, from accept to close, and how long it has been in its phase."""

    worker: Host
    # private: both ends of the connection, the parser, the request that is read now, its body, and
    # what wakes gunicorn's task for it.
    transport: Any
    writer: Any
    _flow_control: Any
    _callback_parser: Any
    _current_request: Any
    _body_receiver: Any
    _request_ready: Any

    def __init__(self, worker: Host) -> None:
        super().__init__(worker)
        self.opening: asyncio.Task[None] | None = None
        self._owes_since: float | None = None
        self.enter(Phase.HANDSHAKE)
        self._said_close = False

    def enter(self, phase: Phase) -> None:
        """Begin a phase now."""
        self.phase = phase
        self.since: float = self.worker.loop.time()

    def finish(self) -> None:
        """Close in the orderly way; what has been written is still sent."""
        if self.phase is Phase.HANDSHAKE:
            self.drop()
            return
        self.enter(Phase.CLOSING)
        # private: also what gunicorn calls at its keep-alive limit.
        self._close_transport()
        # private: wakes gunicorn's task for this connection, which then sees that it is closed.
        self._request_ready.set()

    def drop(self) -> None:
        """Close at once and forget the connection, whatever it is doing."""
        self.worker.forget(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def has_owed_for(self, now: float) -> float:
        """Tell for how many seconds something of an answer has waited here for the client.

        As far as this was asked all the time. What TLS has made of an answer, which is all of it at
        once, is with the socket's transport, and counts for nothing in what asyncio says of its
        own: private, as there is no other way.
        """
        outer = getattr(self.transport, "_ssl_protocol", None)
        inner = getattr(outer, "_transport", None)
        if inner is None or not inner.get_write_buffer_size():
            self._owes_since = None
            return 0.0
        if self._owes_since is None:
            self._owes_since = now
        return now - self._owes_since

    def connection_made(self, transport: Any) -> None:
        """TLS is set up."""
        self.enter(Phase.IDLE)
        self._names = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        transport.set_read_buffer_limits(high=UNDECIPHERED)
        super().connection_made(transport)
        # private: how much gunicorn holds before it reads no further, 256 KiB otherwise.
        self._max_buffer_size = READ_AHEAD

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind; gunicorn alone would keep its task for another three seconds."""
        super().connection_lost(exc)
        self.worker.forget(self)
        self._request_ready.set()  # private: see finish()
        # private: gunicorn's task for this connection, which is at its end now, or soon.
        if self._task is None or self._task.done():
            self._let_go()
        else:
            self._task.add_done_callback(lambda _: self._let_go())

    def _let_go(self) -> None:
        """Keep none of what was read ahead: this and its parser know one another.

        So they would stay until the collector comes, which it hardly ever does (worker.py), and
        with each of them up to a megabyte: clients that come and go would take all memory.
        """
        # private: what knows this connection, or holds what was read.
        self._callback_parser = self._body_receiver = self._current_request = None
        self.transport = self.writer = self._flow_control = None

    def _feed_callback_parser(self, data: bytes) -> bool:
        # private: gets all bytes of requests, from the socket and those read ahead. The event is
        # set from a request's last header until its answer: bytes that come then are read ahead.
        if self.phase in _BETWEEN_REQUESTS and not self._request_ready.is_set():
            self.enter(Phase.READING)
        try:
            return bool(super()._feed_callback_parser(data))
        except Exception as error:  # noqa: BLE001 - asyncio would cut the connection, and log it all
            _logger.warning("cannot read a request: %.200s", described(error))
            self._send_error_response(400, "the request cannot be read")
            self._close_transport()
            return False

    def _send_error_response(
        self, status: int, message: str, extra_headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        # private: answers what is no request. gunicorn has 501 for a coding that it does not know;
        # nothing that a client sends is a fault of ours.
        super()._send_error_response(400 if status == 501 else status, message, extra_headers)

    def _on_message_complete(self) -> None:
        # private: the parser's callback at a request's last byte.
        self.enter(Phase.ANSWERING)
        super()._on_message_complete()

    def _arm_keepalive_timer(self) -> None:
        # private: called after an answer, before waiting for the next request. In the place of a
        # timer for each request, the worker looks at all connections every TICK.
        if self.phase is Phase.ANSWERING:
            self.enter(Phase.IDLE)
            self.worker.served(self)

    async def _serve_http_request(
        self, request: object, sockname: object, peername: object
    ) -> bool:
        # private: gunicorn makes a task of each request, for applications that go on after their
        # answer. Ours does not, and the task with its callbacks costs as much as the parsing.
        keep = bool(await self._handle_http_request(request, sockname, peername))
        keep = keep and not self._said_close
        # private: the bytes of requests that were sent ahead. gunicorn would answer all of them
        # before it looks at another connection. Of all such requests one is answered between two
        # looks at the sockets, so that whoever waits for its answers does not wait for these.
        if self._http1_buffered():
            async with self.worker.sent_ahead:
                await asyncio.sleep(0)
        return keep

    def _resume_reading(self) -> None:
        # private: called after each answer. gunicorn reads on then, however much a client has sent
        # ahead: 32 KiB more for each of its answers, without end.
        if not self._is_buffer_full():
            super()._resume_reading()

    def _will_close(self, request: object, response_requires_close: object) -> bool:
        # private: gunicorn's one place where "Connection: close" is decided. worker.alive stays
        # True while draining: gunicorn closes by it also where it has promised to keep alive.
        # Nobody reads the rest of a body that has not come whole: there the connection ends.
        unread = self._body_receiver is not None and not self._body_receiver._complete
        closes = super()._will_close(request, response_requires_close)
        return self.worker.draining or unread or bool(closes)

    def _send_response_start(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        request: object,
        close: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        # private: writes an answer's head. Where the application itself says "Connection: close",
        # gunicorn would keep the connection all the same, and serve what lies behind.
        super()._send_response_start(status, headers, request, close)
        self._said_close = close or (b"connection", b"close") in headers
