"""Requests to the API server by kept-alive HTTP/1.1 connections, of the standard library.

In a burst the HTTP client is most of what a release costs, and urllib3, which the `kubernetes`
client brings, takes more than twice as long as http.client for the same request. It still carries
watches, and everything where there is a proxy. Nothing is sent twice here: whoever asked knows
what it means.
"""

from __future__ import annotations

import http.client
import select
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from webhook.errors import ApiStatusError

Failure = (OSError, http.client.HTTPException)
"""What an exchange raises where no whole answer came."""


class Credentials(Protocol):
    """What has to be known of the server: a part of the `kubernetes` client's configuration.

    Files are read again for each new connection: certificates are renewed in place.
    """

    host: str
    verify_ssl: bool
    ssl_ca_cert: str | None
    ca_cert_data: str | bytes | None
    cert_file: str | None
    key_file: str | None
    assert_hostname: bool | None
    tls_server_name: str | None


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


class Wire:
    """Connections to one server, each used by one thread at a time. Safe to share.

    `size` is how many are kept when they are idle, `connect_timeout` in seconds.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        now: Callable[[], float],
        size: int,
        connect_timeout: float,
    ) -> None:
        server = urlsplit(credentials.host)
        self._credentials = credentials
        self._is_tls = server.scheme == "https"
        self._host = server.hostname or ""
        self._port = server.port
        self._now = now
        self._connect_timeout = connect_timeout
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=size)

    def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> Answer:
        """Send a request and read its whole answer. Raises one of Failure.

        `timeout`, in seconds, bounds each silence.
        """
        connection = self._kept() or self._opened(min(timeout, self._connect_timeout))
        try:
            connection.sock.settimeout(timeout)
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            received = self._now()
            data = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) == self._idle.maxlen:
            connection.close()
        else:
            self._idle.append(connection)
        return Answer(response.status, response.reason, response.headers, data, received)

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self._kept()) is not None:
            connection.close()

    def _kept(self) -> http.client.HTTPConnection | None:
        """Take an idle connection that the server has not closed meanwhile."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if not _has_something(connection):
                return connection
            connection.close()
        return None

    def _opened(self, timeout: float) -> http.client.HTTPConnection:
        if not self._is_tls:
            plain = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            plain.connect()
            return plain
        name = self._credentials.tls_server_name or self._host
        connection = _Connection(self._host, self._port, timeout=timeout, context=self._context())
        connection.server_name = name
        connection.connect()
        return connection

    def _context(self) -> ssl.SSLContext:
        known = self._credentials
        context = ssl.create_default_context(cafile=known.ssl_ca_cert, cadata=known.ca_cert_data)
        context.set_alpn_protocols(["http/1.1"])
        if not known.verify_ssl or known.assert_hostname is False:
            context.check_hostname = False
        if not known.verify_ssl:
            context.verify_mode = ssl.CERT_NONE
        if known.cert_file:
            context.load_cert_chain(known.cert_file, known.key_file)
        return context


class _Connection(http.client.HTTPSConnection):
    """One connection whose certificate may have to bear another name than its address."""

    server_name = ""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(self.sock, server_hostname=self.server_name)


def _has_something(connection: http.client.HTTPConnection) -> bool:
    """Tell whether bytes, or the end, have come though nothing was asked: it cannot be used."""
    ready = select.poll()
    ready.register(connection.sock, select.POLLIN)
    return bool(ready.poll(0))


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
    message = f"HTTP {answer.status}: {' '.join(status.message.split()) or answer.reason}"
    return ApiStatusError(
        message,
        status=answer.status,
        reason=status.reason,
        retry_after=_retry_after(answer.headers.get("Retry-After")),
    )


def _retry_after(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
