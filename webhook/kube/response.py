"""Responses of the API server: read from the connection, and converted to errors."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache

import httptools
import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.model import messages

CHUNK = 1 << 16
"""Bytes read at once."""
MESSAGE_CHARACTERS = 1_000
"""Length of an error message: another webhook's may be arbitrarily long, and is logged at each
retry. The list of what is wrong with an invalid pod takes some hundreds."""
_FINAL = 200
"""The first HTTP status that is not interim."""


class TransportError(Exception):
    """A request that cannot be sent, or a response that is cut off."""


TRANSPORT_ERRORS = (OSError, httptools.HttpParserError, TransportError)
"""What `Transport.send` raises if there is no complete response."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response, with lower-case names of headers.

    `received` is when its head arrived, by the transport's clock.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    data: bytes
    received: float


class ResponseParser:
    """Reads a response; the parser calls the methods that start with `on_`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._parser = httptools.HttpResponseParser(self)
        self._reason = b""
        self._fields: dict[str, str] = {}
        self._received = 0.0
        self._parts: list[bytes] = []
        self._is_complete = False
        self.ends_connection = False
        """Whether the connection cannot be reused."""

    def read(self, connection: socket.socket) -> None:
        """Read the whole response. Raises one of TRANSPORT_ERRORS."""
        while True:
            data = connection.recv(CHUNK)
            if not data:
                self._end()
                return
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                if not self._is_complete:
                    raise
                self.ends_connection = True  # something followed the response
            if self._is_complete:
                return

    def response(self) -> Response:
        """Return the response."""
        status, reason = self._parser.get_status_code(), self._reason.decode("latin-1")
        return Response(status, reason, self._fields, b"".join(self._parts), self._received)

    def on_message_begin(self) -> None:
        """Reject a response that was not requested."""
        if self._is_complete:
            raise TransportError("a response without a request")

    def on_status(self, reason: bytes) -> None:
        """Store the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Record when the head arrived."""
        self._received = self._now()

    def on_body(self, part: bytes) -> None:
        """Store a part of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Finish, unless this is an interim response."""
        # The headers of an interim response, as `100 Continue`, do not belong to the final one.
        if self._parser.get_status_code() < _FINAL:
            self._reason, self._received = b"", 0.0
            self._fields.clear()
        else:
            self._is_complete = True
            self.ends_connection = not self._parser.should_keep_alive()  # only known at this point

    def _end(self) -> None:
        """Accept EOF as the end of a response that has no length."""
        says_length = {"content-length", "transfer-encoding"} & self._fields.keys()
        if not self._received or says_length:
            raise TransportError("the connection was closed before the end of the response")
        self.ends_connection = True


def read_date(headers: Mapping[str, str]) -> float | None:
    """Return a response's `Date` in seconds since 1970, or None."""
    text = headers.get("date")
    return None if text is None else _parsed_date(text)


@lru_cache(maxsize=8)  # whole seconds: in a burst, hundreds of responses have the same
def _parsed_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


class _StatusBody(msgspec.Struct):
    message: str = ""
    reason: str = ""


def status_error(response: Response) -> ApiStatusError:
    """Convert an error response to an exception."""
    try:
        status = msgspec.json.decode(response.data, type=_StatusBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _StatusBody(response.data[:200].decode(errors="replace"))
    asked = response.headers.get("retry-after", "")
    said = " ".join(status.message.split()) or response.reason
    return ApiStatusError(
        f"HTTP {response.status}: {messages.shorten(said, MESSAGE_CHARACTERS)}",
        status=response.status,
        reason=status.reason,
        retry_after=float(asked) if asked.isascii() and asked.isdigit() else None,
    )
