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
        answer = self.connection.recv(65536)
        while not is_whole(answer):
            more = self.connection.recv(65536)
            if not more:
                raise RuntimeError(f"connection closed during the response: {answer[:200]!r}")
            answer += more
        elapsed = time.perf_counter() - self.sent
        if answer[9:12] != self.status:
            raise RuntimeError(f"expected status {self.status.decode()}: {answer[:600]!r}")
        return elapsed


def run(job: Job, *, core: int | None = None) -> Figures:
    """Run the load in a separate process, pinned to `core` if given. Raises CalledProcessError."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    done = subprocess.run(
        [*pinned, sys.executable, "-m", "bench.load"],
        input=msgspec.msgpack.encode(job),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parent.parent,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Figures)


def measure(job: Job) -> Figures:
    """Run the load in this process, and return the figures."""
    requests = cycle(job.requests)
    clients = [_connect(job) for _ in range(job.connections)]
    try:
        for client in clients:  # also reads TLS session tickets, which would wake select
            client.ask(next(requests))
            client.take()
        cpu, start = time.process_time(), time.perf_counter()
        took = sorted(_drive(clients, requests, job.number))
        elapsed = time.perf_counter() - start
        cpu = time.process_time() - cpu
    finally:
        for client in clients:
            client.connection.close()
    return Figures(
        mean_ms=sum(took) / len(took) * 1e3,
        p50_ms=took[len(took) // 2] * 1e3,
        p99_ms=took[len(took) * 99 // 100] * 1e3,
        per_second=len(took) / elapsed,
        client_cpu_us=cpu / len(took) * 1e6,
        number=len(took) + job.connections,
    )


def _connect(job: Job) -> Client:
    """Open a connection. The benchmark issues the server certificates, so none is verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if job.certificate:
        context.load_cert_chain(job.certificate, job.key)
    plain = socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Client(context.wrap_socket(plain), str(job.status).encode())


def _drive(clients: list[Client], requests: Iterator[bytes], number: int) -> list[float]:
    """Keep every connection busy for `number` responses, and return their latencies in seconds."""
    took: list[float] = []
    with selectors.DefaultSelector() as ready:
        for client in clients:
            ready.register(client.connection, selectors.EVENT_READ, client)
            client.ask(next(requests))
        waiting = len(clients)
        while waiting:
            for key, _ in ready.select(PATIENCE):
                took.append(key.data.take())
                if len(took) + waiting <= number:
                    key.data.ask(next(requests))
                else:
                    waiting -= 1
    return took


def is_whole(answer: bytes) -> bool:
    """Return whether a response is complete."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if not length:
        return body.endswith(b"\r\n0\r\n\r\n")  # chunked; JSON contains no such line
    return len(body) >= int(length)


if __name__ == "__main__":
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(measure(job)))
