"""A proxy in front of the API server that can be slow, gone, busy, silent, or forgetful.

It ends TLS and speaks to the API server for its clients: they show tokens, not certificates. The
response heads, `Date` above all, pass unchanged.
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
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from controlplane.launcher import ControlPlane

_HOP = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
_CHUNK = 1 << 16
_RETRY_AFTER = 1
"""Seconds that a refusal asks its client to wait."""
_EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Expired",
    "message": "too old resource version",
    "code": 410,
}


@dataclass(frozen=True)
class Weather:
    """How the API server is, as the proxy's clients see it."""

    delay: float = 0.0
    """Seconds that each request takes longer."""
    unreachable: bool = False
    """New connections are closed at once."""
    hanging: bool = False
    """Requests are taken, and never answered."""
    status: int = 0
    """Answered to every request, unless it is 0."""
    silent: bool = False
    """Watches stay open, and say nothing."""
    expired: bool = False
    """Watches expire with 410: by status and by event, in turn."""


FINE = Weather()


@dataclass
class Proxy:
    """The proxy; a context manager that serves while it is entered."""

    plane: ControlPlane
    weather: Weather = FINE
    told: Counter[int] = field(default_factory=Counter)
    """How often it has answered each status by itself."""
    hasty: int = 0
    """Releases that were tried again before the time which their refusal had named."""
    refused: dict[str, float] = field(default_factory=dict)
    """When each release was refused last, by its path: monotonic seconds."""
    muted: set[int] = field(default_factory=set)
    """Watches that will never say anything again."""
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
        """Change the weather; what is not named becomes fine."""
        self.weather = replace(FINE, **change)
        if self.weather.unreachable:
            self.cut()

    def mute(self) -> int:
        """Let every watch that is open now be silent for ever, and count them."""
        with self.lock:
            self.muted |= self.watches
            return len(self.watches)

    def cut(self) -> None:
        with self.lock:
            connections, self.connections = self.connections, set()
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: Proxy, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.context = context
        self.upstream = ssl.create_default_context(cafile=str(proxy.plane.ca))
        self.port = int(proxy.plane.server.rpartition(":")[2])

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread, so that a stalled client blocks no other."""
        if self.proxy.weather.unreachable:
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
        """Say nothing: a connection that breaks is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.behind = http.client.HTTPSConnection(
            "127.0.0.1", self.server.port, context=self.server.upstream, timeout=90
        )

    def finish(self) -> None:
        self.behind.close()
        with suppress(OSError):
            super().finish()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException, ValueError):
            self.close_connection = True

    def _serve(self) -> None:
        proxy, body = self.server.proxy, self._body()
        refused = proxy.refused.pop(self.path, None)
        if refused is not None and time.monotonic() - refused < _RETRY_AFTER:
            proxy.hasty += 1
        weather = proxy.weather
        if weather.unreachable:  # a connection whose handshake ended when the others were cut
            raise ConnectionError("cut")
        watch = "watch" in parse_qs(urlsplit(self.path).query)
        while proxy.weather.hanging:
            time.sleep(0.1)
        time.sleep(weather.delay)
        if weather.status:
            self._refuse(weather.status)
        elif watch and weather.expired:
            self._expire(by_event=proxy.told[410] % 2 == 1)
        else:
            self._forward(body, watch)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - as the base wants

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _refuse(self, status: int) -> None:
        if self.command == "PATCH" and "/pods/" in self.path:
            self.server.proxy.refused[self.path] = time.monotonic()
        self.server.proxy.told[status] += 1
        said = {"kind": "Status", "apiVersion": "v1", "message": "busy", "code": status}
        self._answer(status, json.dumps(said).encode(), retry=True)

    def _expire(self, *, by_event: bool) -> None:
        self.server.proxy.told[410] += 1
        if by_event:
            event = {"type": "ERROR", "object": _EXPIRED}
            self._answer(200, json.dumps(event).encode() + b"\n")
        else:
            self._answer(410, json.dumps(_EXPIRED).encode())

    def _answer(self, status: int, body: bytes, *, retry: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry:
            self.send_header("Retry-After", str(_RETRY_AFTER))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self, body: bytes, watch: bool) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP}
        self._drop_ended()
        self.behind.request(self.command, self.path, body or None, headers)
        answer = self.behind.getresponse()
        self.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() not in _HOP:
                self.send_header(key, value)
        if watch and answer.status == 200:
            self._stream(answer)
            return
        content = answer.read()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _drop_ended(self) -> None:
        """Leave a connection that the API server has closed: it keeps idle ones for 90 s."""
        if self.behind.sock is not None:
            look = select.poll()
            look.register(self.behind.sock, select.POLLIN)
            if look.poll(0):  # nothing but its end can come before a request
                self.behind.close()

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        proxy, me = self.server.proxy, id(self)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with proxy.lock:
            proxy.watches.add(me)
        try:
            while chunk := answer.read1(_CHUNK):
                if not proxy.weather.silent and me not in proxy.muted:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            while proxy.weather.silent or me in proxy.muted:  # not even the end is sent
                time.sleep(0.1)
                self._still_there()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with proxy.lock:
                proxy.watches.discard(me)
                proxy.muted.discard(me)

    def _still_there(self) -> None:
        """Raise OSError when the client has gone; no write would reveal it."""
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
