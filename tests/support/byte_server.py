"""A server that answers with given bytes, which need not be HTTP."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: Thu, 24 Dec 2026 17:00:00 GMT\r\n\r\n{}"
PATIENCE = 20.0
Serve = Callable[..., "Server"]


@dataclass
class Credentials:
    """The fields of a kubeconfig that the tests need."""

    host: str
    verify_ssl: bool = True
    ssl_ca_cert: str | None = None
    ca_cert_data: str | bytes | None = None
    cert_file: str | None = None
    key_file: str | None = None
    assert_hostname: bool | None = None
    tls_server_name: str | None = None


class Server:
    """Answers each connection's requests in turn with these bytes; then closes it."""

    def __init__(self, *scripts: list[bytes], context: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.closed = threading.Semaphore(0)
        self._scripts = scripts
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        for script in self._scripts:
            with contextlib.suppress(OSError):  # the client hung up, or does not trust us
                self._converse(script)
            self.closed.release()

    def _converse(self, script: list[bytes]) -> None:
        plain, _ = self._socket.accept()
        with ExitStack() as stack:
            peer = stack.enter_context(plain)
            if self._context is not None:
                peer = stack.enter_context(self._context.wrap_socket(plain, server_side=True))
            for response in script:
                self.requests.append(_request(peer))
                peer.sendall(response)


def _request(peer: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = peer.recv(65536)
        if not chunk:
            raise ConnectionError("no more requests")
        received += chunk
    return received
