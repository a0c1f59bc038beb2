"""Parse chunks of bytes with a connection that has no socket."""

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from gunicorn.asgi.parser import (  # type: ignore[import-untyped]
    InvalidHeader,
    InvalidHeaderName,
    InvalidHTTPVersion,
    InvalidRequestLine,
    PythonProtocol,
    UnsupportedTransferCoding,
)

from holdfast.webhook.server.connection import BodyBudget, Connection, HttpRequest
from holdfast.webhook.server.handler import HttpResponse, text

BODY_LIMIT = 100_000
HARMLESS = InvalidHTTPVersion | InvalidRequestLine | UnsupportedTransferCoding
"""Errors of gunicorn that do not affect the end of a request, so Holdfast may answer it: several
spaces in the request line, and transfer codings before `chunked`."""
HARMLESS_FIELDS = re.compile(r"Duplicate [a-z-]+ header|Stacked chunked encoding|[a-z-]+")
"""Messages of gunicorn about such errors in fields: repeated ones, and forbidden trailers."""
TOO_MANY = 429
LIMITS: dict[str, Any] = {
    "limit_request_line": 8190,  # Holdfast limits the URL alone
    "limit_request_fields": 64,
    "limit_request_field_size": 8190,
    "permit_unconventional_http_method": False,
    "permit_unconventional_http_version": False,
}


class Transport:
    """Records what is written, and whether the connection is closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "written behind the end"
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    certificate = None


class Worker:
    """Responds to each request at once, and records it."""

    draining = False
    body_limit = BODY_LIMIT

    def __init__(self) -> None:
        self.loop: Any = self
        self.requests: list[HttpRequest] = []
        self.bodies = BodyBudget(8 * BODY_LIMIT)
        self.waiting: deque[Connection] = deque()
        self.transport = Transport()
        self.connection = Connection(cast("Any", self))
        self.connection.transport = self.transport
        self.connection.connection_made()

    def time(self) -> float:
        return 0.0

    def respond(self, request: HttpRequest, _peer: str) -> HttpResponse:
        self.requests.append(request)
        return text("fine")

    def allows(self, *_client: object) -> bool:
        return True

    def serve_later(self, connection: Connection) -> None:
        self.waiting.append(connection)

    def served(self, connection: Connection) -> None:
        """Ignore it."""

    def forget(self, connection: Connection) -> None:
        """Ignore it."""

    def feed(self, piece: bytes) -> None:
        """Receive a piece, and serve the requests that wait."""
        if not self.transport.closed:
            self.connection.data_received(piece)
        while self.waiting:
            self.waiting.popleft().serve_next()


@dataclass
class Found:
    """The requests and errors that a connection parsed."""

    requests: list[HttpRequest] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def error(self) -> int | None:
        return self.statuses[-1] if len(self.statuses) > len(self.requests) else None


def read(pieces: list[bytes]) -> Found:
    worker = Worker()
    for piece in pieces:
        worker.feed(piece)
    written, closed = worker.transport.written, worker.transport.closed
    written = written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    statuses = [int(response[:3]) for response in written.split(b"HTTP/1.1 ")[1:]]
    worker.connection.connection_lost(None)
    return Found(worker.requests, statuses, closed)


def read_by_gunicorn(stream: bytes) -> tuple[list[tuple[str, str, bytes]], Exception | None]:
    """Read requests with gunicorn's parser, which is strict too, until it rejects one or closes."""
    requests: list[tuple[str, str, bytes]] = []
    while stream := stream.lstrip(b"\r\n"):  # as llhttp; RFC 9112, 2.2 permits an empty line
        body: list[bytes] = []
        parser = PythonProtocol(on_body=body.append, **LIMITS)
        try:
            parser.feed(stream)
        except Exception as exc:  # noqa: BLE001 - any error is a rejection
            return requests, exc
        if not parser.is_complete:
            return requests, EOFError("incomplete request")
        path = parser.path.partition(b"?")[0].decode("latin-1")
        requests.append((parser.method.decode("latin-1"), path, b"".join(body)))
        if not parser.should_keep_alive:
            break  # Connection: close, or a transfer coding before `chunked`
        stream = parser.remaining()
    return requests, None


def is_harmless(error: Exception | None) -> bool:
    """Return whether gunicorn closed the connection, or its error does not affect the framing."""
    return isinstance(error, HARMLESS | None) or (
        isinstance(error, InvalidHeader | InvalidHeaderName)
        and HARMLESS_FIELDS.fullmatch(str(error)) is not None
    )


def check(pieces: list[bytes]) -> Found:
    """Check that each request is parsed as gunicorn parses it, or rejected."""
    result, stream = read(pieces), b"".join(pieces)
    assert len(result.statuses) in {len(result.requests), len(result.requests) + 1}
    assert result.error in {None, 400, 403, 413, 414, TOO_MANY, 431}
    assert result.error is None or result.closed
    unsplit = read([stream])
    count = len(result.requests)
    if unsplit.error == TOO_MANY:  # in one piece, more requests wait at once
        count = min(count, len(unsplit.requests))
    assert result.requests[: count - 1] == unsplit.requests[: count - 1]
    gunicorn_requests, gunicorn_error = read_by_gunicorn(stream)
    for index, request in enumerate(result.requests):
        if request.method == "POST":  # other requests are answered without their bodies
            if index >= len(gunicorn_requests):
                assert is_harmless(gunicorn_error), repr(gunicorn_error)
                break
            assert (request.method, request.path, request.body) == gunicorn_requests[index]
    return result


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(position, len(stream)) for position in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges) if start < end]
