"""Load generator: one process, one thread and a few kept-alive TLS connections.

Each connection sends its next request as soon as it has a response. `python -m bench.load` reads a
Job from standard input and writes one line of JSON. Requests are serialised in advance, so the
client uses little CPU compared with the server.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgspec

PATIENCE = 60.0
"""Timeout of a response, in seconds."""


class Job(msgspec.Struct, frozen=True):
    """The requests, the server's port and the number of requests. Requests are sent in a cycle."""

    port: int
    requests: list[bytes]
    number: int
    connections: int = 4
    status: int = 200
    """The expected status of every response."""
    certificate: str = ""
    """Path of a PEM client certificate, with its key in `key`; empty for none."""
    key: str = ""


class Figures(msgspec.Struct, frozen=True):
    """Results: latencies in milliseconds, the client's CPU per request in microseconds."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    per_second: float
    client_cpu_us: float
    number: int
    """Number of requests, including those that warm up the connections."""


@dataclass
class Client:
    """A connection, and the time of its last request."""

    connection: ssl.SSLSocket
    status: bytes
    sent: float = 0.0

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.sent = time.perf_counter()
        self.connection.sendall(request)

    def take(self) -> float:
        """Read the whole response, and return the seconds since the request.

        Raises RuntimeError if the connection is closed early, or for an unexpected status.
        """
        response = self.connection.recv(65536)
        while not is_whole(response):
            chunk = self.connection.recv(65536)
            if not chunk:
                raise RuntimeError(f"connection closed during the response: {response[:200]!r}")
            response += chunk
        elapsed = time.perf_counter() - self.sent
        if response[9:12] != self.status:
            raise RuntimeError(f"expected status {self.status.decode()}: {response[:600]!r}")
        return elapsed


def run(job: Job, *, core: int | None = None) -> Figures:
    """Run the load in a separate process, pinned to `core` if given. Raises CalledProcessError."""
    taskset = [] if core is None else ["taskset", "-c", str(core)]
    result = subprocess.run(
        [*taskset, sys.executable, "-m", "bench.load"],
        input=msgspec.msgpack.encode(job),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parent.parent,
        check=True,
    )
    return msgspec.json.decode(result.stdout, type=Figures)


def measure(job: Job) -> Figures:
    """Run the load in this process, and return the figures."""
    requests = cycle(job.requests)
    clients = [_connect(job) for _ in range(job.connections)]
    try:
        for client in clients:  # also reads TLS session tickets, which would wake select
            client.ask(next(requests))
            client.take()
        cpu, start = time.process_time(), time.perf_counter()
        latencies = sorted(_drive(clients, requests, job.number))
        elapsed = time.perf_counter() - start
        cpu = time.process_time() - cpu
    finally:
        for client in clients:
            client.connection.close()
    return Figures(
        mean_ms=sum(latencies) / len(latencies) * 1e3,
        p50_ms=latencies[len(latencies) // 2] * 1e3,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
        per_second=len(latencies) / elapsed,
        client_cpu_us=cpu / len(latencies) * 1e6,
        number=len(latencies) + job.connections,
    )


def _connect(job: Job) -> Client:
    """Open a connection. The benchmark issues the server certificates, so none is verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if job.certificate:
        context.load_cert_chain(job.certificate, job.key)
    connection = socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Client(context.wrap_socket(connection), str(job.status).encode())


def _drive(clients: list[Client], requests: Iterator[bytes], number: int) -> list[float]:
    """Keep every connection busy for `number` responses, and return their latencies in seconds."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.connection, selectors.EVENT_READ, client)
            client.ask(next(requests))
        pending = len(clients)
        while pending:
            for key, _ in selector.select(PATIENCE):
                latencies.append(key.data.take())
                if len(latencies) + pending <= number:
                    key.data.ask(next(requests))
                else:
                    pending -= 1
    return latencies


def is_whole(response: bytes) -> bool:
    """Return whether a response is complete."""
    head, separator, body = response.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if not length:
        return body.endswith(b"\r\n0\r\n\r\n")  # chunked; JSON contains no such line
    return len(body) >= int(length)


if __name__ == "__main__":
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(measure(job)))
