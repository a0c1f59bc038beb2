"""Requests to the API server by kept-alive HTTP/1.1 connections.

In a burst the HTTP client is most of what a release costs, and the standard library's takes more
than three times as long as this one for the same request; urllib3, which the `kubernetes` client
brings, still longer. That carries watches, and everything where there is a proxy. Nothing is sent
twice here: whoever asked knows what it means.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from webhook.answers import Answer, ExchangeError, Reading


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
        self._name = server.netloc.rpartition("@")[2]
        self._address = server.hostname or "", server.port or (443 if self._is_tls else 80)
        self._now = now
        self._connect_timeout = connect_timeout
        self._idle: deque[socket.socket] = deque(maxlen=size)

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
        request = _request(method, target, {"Host": self._name, **headers}, body)
        kept = self._kept()
        connection = kept or self._opened(min(timeout, self._connect_timeout))
        try:
            connection.settimeout(timeout)
            connection.sendall(request)
            reading = Reading(self._now)
            reading.read(connection)
        except BaseException:
            connection.close()
            if kept is not None:
                self.close()  # what cut this one off did so with all that were open
            raise
        if reading.ends_connection or len(self._idle) == self._idle.maxlen:
            connection.close()
        else:
            self._idle.append(connection)
        return reading.answer()

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self._kept()) is not None:
            connection.close()

    def _kept(self) -> socket.socket | None:
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

    def _opened(self, timeout: float) -> socket.socket:
        plain = socket.create_connection(self._address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_tls:
                return plain
            name = self._credentials.tls_server_name or self._address[0]
            return self._context().wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise

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


def _request(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Write a request. Raises ExchangeError where a value would be more than one line."""
    lines = [
        f"{method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""])
    if head.count("\n") != len(lines) + 1 or head.count("\r") != len(lines) + 1:
        raise ExchangeError(f"a line break within {method} {target[:200]!r} or its headers")
    try:
        return head.encode("latin-1") + (body or b"")
    except UnicodeEncodeError:
        raise ExchangeError(f"not Latin-1: {method} {target[:200]!r} or its headers") from None


def _has_something(connection: socket.socket) -> bool:
    """Tell whether bytes, or the end, have come though nothing was asked: it cannot be used."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    return bool(ready.poll(0))
