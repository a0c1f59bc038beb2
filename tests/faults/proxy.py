"""A proxy in front of the API server that can be slow, unreachable, busy, or silent.

It terminates TLS: clients use tokens, not certificates. Response headers are forwarded unchanged,
`Date` in particular.
"""

import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from controlplane.launcher import ControlPlane

_HOP = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
_CHUNK = 1 << 16
_RETRY_AFTER = 1
"""Seconds in the Retry-After header of injected errors."""
_EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Expired",
    "message": "too old resource version",
    "code": 410,
}


@dataclass(frozen=True)
class Conditions:
    """The state of the API server, as the proxy's clients see it."""

    delay: float = 0.0
    """Seconds by which each request is delayed."""
    unreachable: bool = False
    """New connections are closed at once."""
    hanging: bool = False
    """Requests are accepted, and get no response."""
    status: int = 0
    """The status of every response; 0 forwards requests."""
    silent: bool = False
    """Watches stay open, and send no events."""
    expired: bool = False
    """Watches expire with 410: by status and by event, in turn."""


@dataclass
class Proxy:
    """The proxy; a context manager that serves inside its block."""

    plane: ControlPlane
    conditions: Conditions = Conditions()
    injected: Counter[int] = field(default_factory=Counter)
    """How often the proxy itself has sent each status."""
    early_retries: int = 0
    """Releases that were retried before the time in Retry-After."""
    rejected_at: dict[str, float] = field(default_factory=dict)
    """When each release was last rejected, by its path: monotonic seconds."""
    muted: set[int] = field(default_factory=set)
    """Watches that never send anything again."""
    watches: set[int] = field(default_factory=set)
    """Watches that are open."""
    connections: set[socket.socket] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        pair = self.plane.certificate("proxy")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = _Server(self, context)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self.cut()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def turn(self, **change: Any) -> None:
        """Set the conditions; those that are not named become healthy."""
        self.conditions = Conditions(**change)
        if self.conditions.unreachable:
            self.cut()

    def mute(self) -> int:
        """Silence every watch that is open now permanently, and return their number."""
        with self.lock:
            self.muted |= self.watches
            return len(self.watches)

    def cut(self) -> None:
        """Close all connections."""
        with self.lock:
            connections, self.connections = self.connections, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: Proxy, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.context = context
        self.upstream_context = ssl.create_default_context(cafile=str(proxy.plane.ca))
        self.port = int(proxy.plane.server.rpartition(":")[2])

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in this thread, so that a stalled client does not block others."""
        if self.proxy.conditions.unreachable:
            return
        with suppress(OSError), self.context.wrap_socket(request, server_side=True) as tls:
            with self.proxy.lock:
                self.proxy.connections.add(tls)
            try:
                _Handler(tls, client_address, self)
            finally:
                with self.proxy.lock:
                    self.proxy.connections.discard(tls)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: broken connections are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPSConnection(
            "127.0.0.1", self.server.port, context=self.server.upstream_context, timeout=90
        )

    def finish(self) -> None:
        self.upstream.close()
        with suppress(OSError):
            super().finish()

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException, ValueError):
            self.close_connection = True

    def _serve(self) -> None:
        proxy, body = self.server.proxy, self._body()
        rejection_time = proxy.rejected_at.pop(self.path, None)
        if rejection_time is not None and time.monotonic() - rejection_time < _RETRY_AFTER:
            proxy.early_retries += 1
        conditions = proxy.conditions
        if conditions.unreachable:  # its handshake ended when the other connections were cut
            raise ConnectionError("cut")
        watch = "watch" in parse_qs(urlsplit(self.path).query)
        while proxy.conditions.hanging:
            time.sleep(0.1)
        time.sleep(conditions.delay)
        if conditions.status:
            self._reject(conditions.status)
        elif watch and conditions.expired:
            self._expire(by_event=proxy.injected[410] % 2 == 1)
        else:
            self._forward(body, watch)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the base class

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _reject(self, status: int) -> None:
        if self.command == "PATCH" and "/pods/" in self.path:
            self.server.proxy.rejected_at[self.path] = time.monotonic()
        self.server.proxy.injected[status] += 1
        error = {"kind": "Status", "apiVersion": "v1", "message": "busy", "code": status}
        self._respond(status, json.dumps(error).encode(), retry=True)

    def _expire(self, *, by_event: bool) -> None:
        self.server.proxy.injected[410] += 1
        if by_event:
            event = {"type": "ERROR", "object": _EXPIRED}
            self._respond(200, json.dumps(event).encode() + b"\n")
        else:
            self._respond(410, json.dumps(_EXPIRED).encode())

    def _respond(self, status: int, body: bytes, *, retry: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry:
            self.send_header("Retry-After", str(_RETRY_AFTER))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self, body: bytes, watch: bool) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP}
        self._drop_closed()
        self.upstream.request(self.command, self.path, body or None, headers)
        response = self.upstream.getresponse()
        self.send_response_only(response.status, response.reason)
        for key, value in response.getheaders():
            if key.lower() not in _HOP:
                self.send_header(key, value)
        if watch and response.status == 200:
            self._stream(response)
            return
        content = response.read()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _drop_closed(self) -> None:
        """Drop a connection that the API server has closed: it closes idle ones after 90 s."""
        if self.upstream.sock is not None:
            poll = select.poll()
            poll.register(self.upstream.sock, select.POLLIN)
            if poll.poll(0):  # before a request, only the end of the stream can arrive
                self.upstream.close()

    def _stream(self, response: http.client.HTTPResponse) -> None:
        proxy, watch = self.server.proxy, id(self)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with proxy.lock:
            proxy.watches.add(watch)
        try:
            while chunk := response.read1(_CHUNK):
                if not proxy.conditions.silent and watch not in proxy.muted:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            while proxy.conditions.silent or watch in proxy.muted:  # not even the end is sent
                time.sleep(0.1)
                self._check_client()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with proxy.lock:
                proxy.watches.discard(watch)
                proxy.muted.discard(watch)

    def _check_client(self) -> None:
        """Raise OSError if the client has disconnected: nothing is written that would show it."""
        if self.connection not in self.server.proxy.connections:
            raise ConnectionError("cut")
        self.connection.settimeout(0.01)
        try:
            if not self.connection.recv(1):
                raise ConnectionError("closed")
        except TimeoutError:
            pass
        finally:
            self.connection.settimeout(None)
