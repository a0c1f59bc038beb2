"""Start the tiny server, and connect to it."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from holdfast.certs.authority import KeyPair

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
"""Seconds to wait for something before the test fails."""

SHORT = {
    "host": "127.0.0.1",
    "port": 0,
    "handshake_timeout": 1.0,
    "shutdown_timeout": 0.5,
    "request_deadline": 1.0,
    "drain": 0.5,
}


@dataclass(frozen=True)
class Pair:
    certfile: Path
    keyfile: Path


def write_pair(folder: Path, name: str, pair: KeyPair) -> Pair:
    files = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    files.certfile.write_bytes(pair.certificate)
    files.keyfile.write_bytes(pair.key)
    return files


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def wait_until(
    description: str, condition: Callable[[], object], patience: float = PATIENCE
) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{description}: not within {patience:g} s")
        time.sleep(0.02)


class HttpsServer:
    """Connections to a server on this machine. Its certificate is not checked."""

    timeout = PATIENCE

    def __init__(self) -> None:
        self.tls = ssl._create_unverified_context()

    @property
    def port(self) -> int:
        raise NotImplementedError

    def client(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.tls, timeout=self.timeout
        )

    @contextmanager
    def served_clients(self, count: int) -> Iterator[list[http.client.HTTPSConnection]]:
        """Yield connections that have each had a response."""
        with ExitStack() as stack:
            clients = [stack.enter_context(closing(self.client())) for _ in range(count)]
            for client in clients:
                assert ask(client, "GET", "/healthz").status == 200
            yield clients

    def tcp(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # send each piece by itself
        return client

    def raw(self) -> ssl.SSLSocket:
        return self.tls.wrap_socket(self.tcp())

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        with closing(self.client()) as client:
            return ask(client, method, path, body, **options)


class Server(HttpsServer):
    """The server as a process, which ends with the context."""

    def __init__(
        self,
        folder: Path,
        pair: Pair,
        *,
        handler: dict[str, Any] | None = None,
        fault: str | None = None,
        cwd: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.ready_file = folder / "ready"
        self.stopped_file = folder / "stopped"
        self.log_file = folder / "log"
        orders = {
            "server": {
                **SHORT,
                "certfile": str(pair.certfile),
                "keyfile": str(pair.keyfile),
                "ready_file": str(self.ready_file),
                **settings,
            },
            "handler": handler or {},
            "fault": fault,
            "stopped_file": str(self.stopped_file),
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("tiny_app.py")), json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=cwd or folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            for worker in psutil.Process(self.process.pid).children():
                worker.kill()
            self.process.kill()
        self.process.wait(PATIENCE)
        if self.process.stdin is not None:
            self.process.stdin.close()

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    @property
    def port(self) -> int:
        return int(self.ready_file.read_text(encoding="utf-8").rpartition(":")[2])

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def wait_ready(self) -> Self:
        wait_until(
            "the server is ready",
            lambda: self.ready_file.exists() or self.process.poll() is not None,
        )
        assert self.process.poll() is None, self.log
        return self

    def open_connections(self) -> int:
        connections = self.worker.net_connections("tcp")
        return sum(connection.status == psutil.CONN_ESTABLISHED for connection in connections)

    def terminate(self) -> int:
        """Send SIGTERM to the master, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def review(self, **review: Any) -> Answer:
        return self.ask("POST", "/mutate", json.dumps(review).encode())


def ask(
    client: http.client.HTTPSConnection, method: str, path: str, body: Any = None, **options: Any
) -> Answer:
    """Send a request over a connection that stays open."""
    client.request(method, path, body, **options)
    response = client.getresponse()
    return Answer(response.status, response.headers, response.read())


def everything_from(connection: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    return received


def send_until_closed(connection: socket.socket, piece: bytes, *, limit: int, pause: float) -> int:
    """Send a piece repeatedly until the server closes the connection; return the bytes sent.

    Raises AssertionError if it is still open after `limit` bytes or PATIENCE seconds.
    """
    sent = 0
    end = time.monotonic() + PATIENCE
    while sent < limit and time.monotonic() < end:
        try:
            connection.sendall(piece)
        except (OSError, ssl.SSLError):
            return sent
        sent += len(piece)
        time.sleep(pause)
    raise AssertionError(f"still open after {sent} bytes")
