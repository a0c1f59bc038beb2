"""Requests to the API server over persistent HTTP/1.1 connections.

In a burst, the HTTP client is most of the cost of a release. http.client takes three times as long
per request as this module, and urllib3 even longer; urllib3 is used for watches, and for all
requests through a proxy. This module never retries: only the caller knows whether that is safe.
"""

import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import ApiStatusError, CredentialsError, ResponseTooLargeError
from holdfast.webhook.model import messages

CHUNK = 1 << 16
"""Maximum bytes of one read."""
LARGEST = 1 << 24
"""Maximum bytes of a response. A larger list is read in smaller pages. One object has at most 9 MB,
because etcd accepts 1.5 MiB, and JSON needs six bytes for some characters."""
MESSAGE_CHARACTERS = 1_000
"""Maximum length of an error message. Another webhook's may be arbitrarily long, and is logged
at each retry. The validation errors of a pod take a few hundred characters."""
WARNING = "warning"
"""The name, in lower case, of the header with a warning for the user."""
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""A warning from an API server or from a webhook that it called, as in RFC 7234."""
_YEARS = range(1970, 3000)
"""Valid years of a `Date`; one close to 9999 leaves no room for the lifetime of a certificate."""
_FINAL = 200
"""The lowest HTTP status of a final response."""


class TransportError(Exception):
    """A request that cannot be sent, or an invalid or truncated response."""


TRANSPORT_ERRORS = (OSError, httptools.HttpParserError, TransportError, ResponseTooLargeError)
"""Errors that `Transport.send` raises if there is no complete response."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response, with lower-case header names.

    `received` is the time when its headers arrived, by the transport's clock.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    data: bytes
    received: float


class Transport:
    """Connections to a server, each used by one thread at a time. Safe to share.

    `credentials` is the `kubernetes` client's configuration. Its files are read for each new
    connection, because certificates are renewed in place. `size` is the maximum number of idle
    connections. `connect_timeout` is in seconds.
    """

    def __init__(
        self, credentials: Any, *, now: Callable[[], float], size: int, connect_timeout: float
    ) -> None:
        server = urlsplit(credentials.host)
        self._credentials = credentials
        self._is_tls = server.scheme == "https"
        self._name = server.netloc.rpartition("@")[2]
        self._address = server.hostname or "", server.port or (443 if self._is_tls else 80)
        self._now = now
        self._connect_timeout = connect_timeout
        self._idle: deque[ApiConnection] = deque(maxlen=size)

    def send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> Response:
        """Send a request and return the whole response. Raises one of TRANSPORT_ERRORS.

        `timeout`, in seconds, limits each pause.
        """
        request = self.format(method, target, headers, body)
        idle = self.take_idle()
        connection = idle or self._open(min(timeout, self._connect_timeout))
        try:
            connection.socket.settimeout(timeout)
            connection.socket.sendall(request)
            while (response := connection.receive()) is None:
                pass
        except BaseException:
            connection.close()
            if idle is not None:
                self.close()  # the others are probably closed, too
            raise
        self.give_back(connection)
        return response

    def format(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        """Return the bytes of a request. Raises TransportError."""
        return _request(method, target, [("Host", self._name), *headers.items()], body)

    def close(self) -> None:
        """Close all idle connections."""
        while (connection := self.take_idle()) is not None:
            connection.close()

    def give_back(self, connection: "ApiConnection") -> None:
        """Keep a connection for the next request, or close it if it cannot be reused."""
        # A full deque would drop the connection at its other end without closing it.
        if connection.parser.ends_connection or len(self._idle) == self._idle.maxlen:
            connection.close()
        else:
            connection.parser.reset()
            self._idle.append(connection)

    def take_idle(self) -> "ApiConnection | None":
        """Remove and return a usable idle connection, or None."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            # data or EOF that arrived without a request makes the connection unusable
            if not connection.ready.poll(0):
                return connection
            connection.close()
        return None

    def _open(self, timeout: float) -> "ApiConnection":
        plain = socket.create_connection(self._address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_tls:
                return ApiConnection(plain, self._now)
            name = self._credentials.tls_server_name or self._address[0]
            secured = self._context().wrap_socket(plain, server_hostname=name)
            return ApiConnection(secured, self._now)
        except BaseException:
            plain.close()
            raise

    def _context(self) -> ssl.SSLContext:
        credentials = self._credentials
        file = credentials.ssl_ca_cert
        try:
            context = ssl.create_default_context(cafile=file, cadata=credentials.ca_cert_data)
            if credentials.cert_file:
                file = f"{credentials.cert_file} with the key {credentials.key_file}"
                context.load_cert_chain(credentials.cert_file, credentials.key_file)
        except OSError as exc:
            raise CredentialsError(
                f"cannot use the certificate {file} ({exc.strerror}); correct the kubeconfig"
            ) from None
        context.set_alpn_protocols(["http/1.1"])
        if not credentials.verify_ssl or credentials.assert_hostname is False:
            context.check_hostname = False
        if not credentials.verify_ssl:
            context.verify_mode = ssl.CERT_NONE
        return context


def _request(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None
) -> bytes:
    """Return the bytes of a request. Raises TransportError if a value contains a line break."""
    lines = [
        f"{method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""])
    # A value with a line break could add a header, or a second request.
    if head.count("\n") != len(lines) + 1 or head.count("\r") != len(lines) + 1:
        raise TransportError(f"line break in {method} {target[:200]!r} or its headers")
    try:
        return head.encode("latin-1") + (body or b"")
    except UnicodeEncodeError:
        raise TransportError(f"not Latin-1: {method} {target[:200]!r} or its headers") from None


class ApiConnection:
    """A connection with its parser: creating a parser takes as long as parsing a response."""

    def __init__(self, peer: socket.socket, now: Callable[[], float]) -> None:
        self.socket = peer
        self.parser = _ResponseParser(now)
        self.ready = select.poll()
        self.ready.register(peer, select.POLLIN)

    def receive(self) -> Response | None:
        """Read once, and return the response if it is complete. Raises one of TRANSPORT_ERRORS."""
        return self.parser.feed(self.socket.recv(CHUNK))

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class _ResponseParser:
    """Parses responses; httptools calls the methods that start with `on_`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._parser = httptools.HttpResponseParser(self)
        self.ends_connection = False
        """Whether the connection cannot be reused."""
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response."""
        self._reason = b""
        self._fields: dict[str, str] = {}
        self._received = 0.0
        self._parts: list[bytes] = []
        self._size = 0
        self._is_complete = False

    def feed(self, data: bytes) -> Response | None:
        """Parse bytes, empty at EOF; return the response once it is complete.

        Raises HttpParserError, TransportError or ResponseTooLargeError.
        """
        if not data:
            self._end()
        else:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                if not self._is_complete:
                    raise
                self.ends_connection = True  # data followed the response
        require_size(self._size)
        if data and not self._is_complete:
            return None
        status, reason = self._parser.get_status_code(), self._reason.decode("latin-1")
        return Response(status, reason, self._fields, b"".join(self._parts), self._received)

    def on_message_begin(self) -> None:
        """Reject a response that was not requested."""
        if self._is_complete:
            raise TransportError("a response without a request")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        field, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if field == WARNING and field in self._fields:
            text = f"{self._fields[field]}, {text}"  # like urllib3; other headers occur once
        self._fields[field] = text

    def on_headers_complete(self) -> None:
        self._received = self._now()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def on_message_complete(self) -> None:
        """Mark the response as complete, unless it is an interim response."""
        # The headers of an interim response, such as `100 Continue`, are not part of the final one.
        if self._parser.get_status_code() < _FINAL:
            self._reason, self._received = b"", 0.0
            self._fields.clear()
        else:
            self._is_complete = True
            self.ends_connection = not self._parser.should_keep_alive()  # only known at this point

    def _end(self) -> None:
        """Accept EOF as the end of a response without a length. Raises TransportError otherwise."""
        says_length = {"content-length", "transfer-encoding"} & self._fields.keys()
        if not self._received or says_length:
            raise TransportError("the connection was closed before the end of the response")
        self.ends_connection = True


def require_size(size: int) -> None:
    """Raise ResponseTooLargeError if a response has too many bytes."""
    if size > LARGEST:
        raise ResponseTooLargeError(f"the response has more than {LARGEST >> 20} MiB")


def read_warnings(headers: Mapping[str, str]) -> list[str]:
    """Return the warnings of a response, as kubectl prints them."""
    texts = _WARNING.findall(headers.get(WARNING, ""))
    # header values are decoded as Latin-1, but the API server writes UTF-8
    plain = (re.sub(r"\\(.)", r"\1", text) for text in texts)
    return [text.encode("latin-1", "replace").decode(errors="replace") for text in plain]


def read_date(headers: Mapping[str, str]) -> float | None:
    """Return a response's `Date` in seconds since 1970, or None."""
    text = headers.get("date")
    return None if text is None else _parsed_date(text)


@lru_cache(maxsize=8)  # in a burst, hundreds of responses have the same `Date`
def _parsed_date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date.timestamp() if date.year in _YEARS else None


class _StatusBody(msgspec.Struct):
    message: str = ""
    reason: str = ""


_STATUS = msgspec.json.Decoder(_StatusBody)


def status_error(response: Response) -> ApiStatusError:
    """Return the exception for an error response."""
    try:
        status = safe_json.decode(_STATUS, response.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _StatusBody(response.data[:200].decode(errors="replace"))
    retry_after = response.headers.get("retry-after", "")
    message = " ".join(status.message.split()) or response.reason
    return ApiStatusError(
        f"HTTP {response.status}: {messages.shorten(message, MESSAGE_CHARACTERS)}",
        status=response.status,
        reason=status.reason,
        retry_after=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
    )
