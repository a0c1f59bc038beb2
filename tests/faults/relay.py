"""A TCP relay from an address that is valid in EndpointSlices to a server on loopback."""

import socket
import socketserver
import threading
from contextlib import suppress
from typing import Self

from tests.e2e.installed import endpoint_address

_BYTES = 1 << 16


class Relay:
    """Relays connections; a context manager."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._server = _Server((endpoint_address(), 0), _Handler)
        self._server.target = target
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    target: tuple[str, int]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: broken connections are expected."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with socket.create_connection(self.server.target, timeout=10) as upstream:
            upstream.settimeout(None)
            responses = threading.Thread(target=_copy, args=(upstream, self.request), daemon=True)
            responses.start()
            _copy(self.request, upstream)
            responses.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
