"""An answer of the API server: read from its connection, and what it says."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Protocol

import httptools
import msgspec

from webhook import values
from webhook.errors import ApiStatusError

CHUNK = 1 << 16
"""Bytes read at once."""
MESSAGE_CHARACTERS = 1_000
"""How much of a refusal is repeated: somebody's webhook may say as much as it likes, and it is
logged at each try. That an invalid pod is told all that is wrong takes some hundreds."""
_FINAL = 200
"""The first HTTP status that is no interim one."""


class ExchangeError(Exception):
    """A request that cannot be sent as it is, or an answer that breaks off."""


Failure = (OSError, httptools.HttpParserError, ExchangeError)
"""What an exchange raises where no whole answer came."""


class Headers(Protocol):
    """An answer's headers; names in any case."""

    def get(self, name: str, /) -> str | None:
        """Give a header's value."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `received` is when its head came, in seconds by the wire's clock."""

    status: int
    reason: str
    headers: Headers
    data: bytes
    received: float


class _Fields(dict[str, str]):
    """An answer's headers, by their names in lower case."""

    def get(self, name: str) -> str | None:  # type: ignore[override]
        return super().get(name.lower())


class Reading:
    """Reads one answer; the parser calls what begins with `on_`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._parser = httptools.HttpResponseParser(self)
        self._reason = b""
        self._fields = _Fields()
        self._received = 0.0
        self._parts: list[bytes] = []
        self._is_whole = False
        self.ends_connection = False
        """Whether the connection cannot be used again."""

    def read(self, connection: socket.socket) -> None:
        """Read to the answer's end. Raises one of Failure."""
        while True:
            data = connection.recv(CHUNK)
            if not data:
                self._end()
                return
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                if not self._is_whole:
                    raise
                self.ends_connection = True  # whatever came behind the answer
            if self._is_whole:
                return

    def answer(self) -> Answer:
        """Give what was read."""
        status, reason = self._parser.get_status_code(), self._reason.decode("latin-1")
        return Answer(status, reason, self._fields, b"".join(self._parts), self._received)

    def on_message_begin(self) -> None:
        """Refuse what nobody asked for."""
        if self._is_whole:
            raise ExchangeError("an answer that nobody has asked for")

    def on_status(self, reason: bytes) -> None:
        """Take the reason of the status."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note when the head was there."""
        self._received = self._now()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Note the end, unless the answer itself is still to come."""
        if self._parser.get_status_code() < _FINAL:
            self._reason, self._received = b"", 0.0
            self._fields.clear()
        else:
            self._is_whole = True
            self.ends_connection = not self._parser.should_keep_alive()  # known here alone

    def _end(self) -> None:
        """Take the connection's end for that of an answer which says nothing of its length."""
        says_length = {"content-length", "transfer-encoding"} & self._fields.keys()
        if not self._received or says_length:
            raise ExchangeError("the connection was closed before the end of the answer")
        self.ends_connection = True


def read_date(headers: Headers) -> float | None:
    """Give an answer's `Date` in seconds since 1970; None where it has none."""
    text = headers.get("Date")
    return None if text is None else _parsed_date(text)


@lru_cache(maxsize=8)  # it has whole seconds, so in a burst hundreds of answers have the same
def _parsed_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


def status_error(answer: Answer) -> ApiStatusError:
    """Say what an answer of an error status says."""
    try:
        status = msgspec.json.decode(answer.data, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status(answer.data[:200].decode(errors="replace"))
    said = " ".join(status.message.split()) or answer.reason
    return ApiStatusError(
        f"HTTP {answer.status}: {values.shortened(said, MESSAGE_CHARACTERS)}",
        status=answer.status,
        reason=status.reason,
        retry_after=_retry_after(answer.headers.get("Retry-After")),
    )


def _retry_after(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
