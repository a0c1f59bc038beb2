"""One client's connection: HTTP/1.1 on llhttp in strict mode, with a time limit for each phase.

llhttp rejects a request if two parsers could disagree on where it ends. This module adds the checks
that llhttp leaves to its caller: size limits, a second Host, chunked bodies in HTTP/1.0, and
upgrades to other protocols.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools

from holdfast.webhook.errors import described
from holdfast.webhook.server.handler import HttpResponse, text

if TYPE_CHECKING:
    from holdfast.webhook.server.worker import HoldfastWorker

URL_LIMIT = 4_094
"""Maximum bytes of a URL."""
FIELD_LIMIT = 8_190
"""Maximum bytes of a header field, name and value together."""
FIELDS_LIMIT = 64
"""Maximum header fields and trailers of a request, together."""
LENGTH_DIGITS = 19
"""Maximum digits of a Content-Length; llhttp accepts any number of leading zeros."""
PIPELINE_LIMIT = 32
"""Maximum requests of a connection that wait for an earlier one. API servers send none; each takes
twenty times its size in memory."""
UNPRODUCTIVE_LIMIT = 64 * 1024
"""Maximum bytes that a client may send without completing a header or adding to a body."""
PIECE = 64 * 1024
"""Bytes of a response passed to asyncio at once, so asyncio can report a slow reader."""
RETRY_AFTER = 1
"""Seconds in the Retry-After header; the API server retries once by itself."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_KNOWN = frozenset(
    (b"host", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
) | {b"expect"}
_START = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: ".encode()
    for status in HTTPStatus
}

_log = logging.getLogger("holdfast.server")


class Phase(enum.Enum):
    """The phase of a connection; each has a time limit."""

    HANDSHAKE = enum.auto()
    """Waiting for the end of the TLS handshake."""
    IDLE = enum.auto()
    """Waiting for the first byte of a request."""
    READING = enum.auto()
    """Waiting for the last byte of a request."""
    ANSWERING = enum.auto()
    """Waiting for the response, and for the client to read it."""
    CLOSING = enum.auto()
    """Waiting for the client to close the connection."""


class HttpRequest(NamedTuple):
    """A complete request; `close` means that the connection closes after the response."""

    method: str
    path: str
    content_type: str
    content_encoding: str
    body: bytes
    close: bool


class BodyBudget:
    """Limits the total bytes of bodies being read; beyond the limit, rejects the oldest body.

    The oldest body is a stalled one: a client that sends without a pause is soon done.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Connection, int] = {}
        self._total = 0

    def update(self, connection: Connection, size: int) -> None:
        """Set the bytes of a body that a connection has read so far."""
        self._total += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while self._total > self._limit:
            next(iter(self._sizes)).reject(429, "too many large bodies at once; try again")

    def release(self, connection: Connection) -> None:
        """Forget the body of a connection."""
        self._total -= self._sizes.pop(connection, 0)


class Connection:
    """One client's connection, from accept to close, and how long it has been in its phase."""

    def __init__(self, worker: HoldfastWorker, address: str = "") -> None:
        self.worker = worker
        self.address = address
        self.transport: Any = None
        """A TlsTransport; None once the connection is lost."""
        self.phase = Phase.HANDSHAKE
        self.accepted = self.since = worker.loop.time()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._requests: deque[HttpRequest | HttpResponse] = deque()
        """Requests to answer. A response in the queue is an error, which closes the connection."""
        self._task: asyncio.Task[None] | None = None
        self._input_closed = False
        """Whether input is ignored: an error is queued, or the connection is closing."""
        self._unsent: memoryview | bytes = b""
        self._write_paused = False
        self._closes = False
        self._unproductive = 0
        self._made_progress = False
        self._message_begun = False
        self._abort_reason: tuple[int, str] | None = None
        self._start_message()

    def _start_message(self) -> None:
        self._url = b""
        self._fields = 0
        self._known: dict[bytes, bytes] = {}
        self._method = b""
        self._version = ""
        self._in_body = False
        self._body: bytes | bytearray = b""

    def enter(self, phase: Phase) -> None:
        """Enter a phase, and start its time limit."""
        self.phase = phase
        self.since = self.worker.loop.time()

    def finish(self) -> None:
        """Close in order, after sending all buffered output."""
        if self.phase is Phase.HANDSHAKE:
            self.drop()
            return
        self.enter(Phase.CLOSING)
        self._input_closed = True
        self._requests.clear()
        self.transport.close()

    def drop(self) -> None:
        """Close at once, in any phase."""
        self.worker.forget(self)
        self.transport.abort()

    @property
    def awaits_review(self) -> bool:
        """Whether a plugin that may block decides about its request."""
        return self._task is not None

    @property
    def is_reading(self) -> bool:
        """Whether its client has to read a response."""
        return self.phase is Phase.ANSWERING and self._task is None

    def connection_made(self) -> None:
        """Start reading, after the TLS handshake."""
        if not self.worker.allows(self.transport.certificate, self.address):
            self._input_closed = True  # a request may have come with the end of the handshake
            self.drop()
            return
        self.enter(Phase.IDLE)

    def connection_lost(self, _error: Exception | None) -> None:
        """Free all resources; the parser and this connection refer to each other."""
        self._input_closed = True
        self._requests.clear()
        self._body = self._unsent = b""
        self.transport = self._parser = None
        self.worker.bodies.release(self)
        self.worker.forget(self)

    def pause_writing(self) -> None:
        """Stop writing until the client reads."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Continue to write the response."""
        self._write_paused = False
        if self.phase is Phase.ANSWERING and self._task is None:
            self._flush()

    def data_received(self, data: bytes) -> None:
        """Parse input, and answer a complete request."""
        if self._input_closed:
            return
        if self.phase is Phase.IDLE:
            self.enter(Phase.READING)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._on_parse_error(error)
        self._account(len(data))
        if self._requests and self.phase is not Phase.ANSWERING:
            self.serve_next()
        if self.phase is Phase.ANSWERING:
            self.transport.pause_reading()

    def _on_parse_error(self, error: Exception) -> None:
        reason, self._abort_reason = self._abort_reason, None
        if reason is None and isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
            text_of_cause = described(cause if isinstance(cause, Exception) else error)
            _log.warning("cannot read a request: %.200s", text_of_cause)
            reason = 400, "the request cannot be read"
        self.reject(*(reason or (400, f"invalid request: {error}")))

    def _account(self, size: int) -> None:
        """Limit the input and the memory of an incomplete request."""
        self._unproductive = 0 if self._made_progress else self._unproductive + size
        self._made_progress = False
        if self._input_closed or not self._message_begun:
            return
        if self._unproductive > UNPRODUCTIVE_LIMIT:
            self.reject(431, "the header, or the framing of the body, is too long")
        elif self._in_body and self._method != b"POST":
            # Only a POST needs its body: do not read the rest.
            self._requests.append(self._request(close=True))
            self._input_closed = True
        elif self._body:
            self.worker.bodies.update(self, len(self._body))

    def reject(self, status: int, message: str) -> None:
        """Queue an error response, after which the connection is closed."""
        self._input_closed = True
        self._body = b""
        self.worker.bodies.release(self)
        self._requests.append(text(message, status))
        # While another request is answered, the error waits for its turn.
        if self.phase is Phase.READING:
            self.serve_next()

    def _abort_parsing(self, status: int, message: str) -> None:
        self._abort_reason = status, message
        raise ValueError(message)  # an exception is the only way to stop the parser

    def on_message_begin(self) -> None:
        """Record the start of a request."""
        self._message_begun = True

    def on_url(self, url: bytes) -> None:
        """Append a part of the URL."""
        self._url += url
        if len(self._url) > URL_LIMIT:
            self._abort_parsing(414, "the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field that this module uses; count trailers, but ignore them."""
        self._fields += 1
        if self._fields > FIELDS_LIMIT or len(name) + len(value) > FIELD_LIMIT:
            self._abort_parsing(431, "the header has too many fields, or a field that is too long")
        key = name.lower()
        if key not in _KNOWN or self._in_body:
            return
        if key in self._known:
            # llhttp accepts a second Host, and two parsers could choose different ones.
            if key == b"host":
                self._abort_parsing(400, "invalid request: more than one Host")
            value = self._known[key] + b"," + value
        self._known[key] = value

    def on_headers_complete(self) -> None:
        """Reject a request whose body must not be read, based on its header."""
        self._in_body = True
        self._method = self._parser.get_method()
        self._version = version = self._parser.get_http_version()
        headers = self._known
        # HTTP/1.0 has no chunked bodies: two parsers could disagree on where the body ends.
        if version != "1.1" and (version != "1.0" or b"transfer-encoding" in headers):
            self._abort_parsing(400, "invalid request: use HTTP/1.1")
        # llhttp skips the body of an upgrade, so the next request would begin at the wrong byte.
        if self._parser.should_upgrade():
            self._abort_parsing(
                405 if self._method == b"CONNECT" else 403, "no other protocol is served here"
            )
        length = headers.get(b"content-length", b"0")
        if len(length) > LENGTH_DIGITS:
            self._abort_parsing(400, "invalid request: Content-Length is too long")
        if self._method != b"POST":
            return
        if int(length) > self.worker.body_limit:
            self._abort_parsing(413, f"the body is larger than {self.worker.body_limit} bytes")
        # While another request is answered, 100 Continue would come ahead of its response.
        idle = not self._requests and self.phase is Phase.READING
        if idle and headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Append a part of the body."""
        self._made_progress = True
        if not self._body:
            self._body = data
        else:
            # Most bodies arrive in one piece, which is kept as is; only the others are copied.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > self.worker.body_limit:
            self._abort_parsing(413, f"the body is larger than {self.worker.body_limit} bytes")

    def on_message_complete(self) -> None:
        """Queue the request."""
        if len(self._requests) >= PIPELINE_LIMIT:
            self._abort_parsing(429, "too many requests at once; wait for their responses")
        keep = self._version == "1.1" and self._parser.should_keep_alive()
        self._requests.append(self._request(close=not keep))
        self.worker.bodies.release(self)
        self._made_progress, self._message_begun = True, False
        self._start_message()

    def _request(self, *, close: bool) -> HttpRequest:
        headers = self._known
        return HttpRequest(
            self._method.decode("latin-1"),
            self._url.partition(b"?")[0].decode("latin-1"),
            headers.get(b"content-type", b"").decode("latin-1"),
            headers.get(b"content-encoding", b"identity").decode("latin-1"),
            bytes(self._body),
            close,
        )

    def serve_next(self) -> None:
        """Answer the next request in the queue."""
        if not self._requests or self.transport is None:
            return
        request = self._requests.popleft()
        self.enter(Phase.ANSWERING)
        if isinstance(request, HttpResponse):
            self._send(request, close=True)
            return
        response = self.worker.respond(request, self.address)
        if isinstance(response, HttpResponse):
            self._send(response, close=request.close, is_head=request.method == "HEAD")
        else:
            # Only a POST is awaited, so this is never a HEAD.
            self._task = self.worker.loop.create_task(
                self._send_later(response, close=request.close)
            )

    async def _send_later(
        self, coroutine: Coroutine[Any, Any, HttpResponse], *, close: bool
    ) -> None:
        response = await coroutine
        self._task = None
        if self.transport is not None and self.phase is Phase.ANSWERING:
            self._send(response, close=close)

    def _send(self, response: HttpResponse, *, close: bool, is_head: bool = False) -> None:
        self._closes = close or self.worker.draining
        status, body, content_type, allow = response
        headers = b"\r\nConnection: close" if self._closes else b""
        if allow:
            headers += b"\r\nAllow: " + allow.encode()
        if status == 429:
            headers += b"\r\nRetry-After: %d" % RETRY_AFTER
        head = b"%b%b\r\nContent-Length: %d%b\r\n\r\n" % (
            _START[status],
            content_type.encode(),
            len(body),
            headers,
        )
        data = head if is_head else head + body
        if len(data) <= PIECE:
            self.transport.write(data)
        else:
            self._unsent = memoryview(data)
        self._flush()

    def _flush(self) -> None:
        """Write the rest of the response as the client reads, then go on to the next request."""
        while self._unsent and not self._write_paused:
            self.transport.write(self._unsent[:PIECE])
            self._unsent = self._unsent[PIECE:]
        if self._unsent or self._write_paused:
            return
        self._unsent = b""
        self.worker.served(self)
        if self._closes:
            self.finish()
        elif self._requests:
            self.worker.serve_later(self)
        else:
            self.enter(Phase.READING if self._message_begun else Phase.IDLE)
            self.transport.resume_reading()
