"""The load: one process, one thread, a few kept-alive TLS connections, the next review at once.

`python -m bench.load PORT REQUESTS` writes one line of JSON. Requests are serialised beforehand:
a review costs this process about a third of what it costs the cheapest server with Flask in it.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any

CONNECTIONS = 4
BODY_SIZE = 4096
"""Bytes of a review: a small Deployment's pod."""
PATIENCE = 30.0
"""Seconds for any one answer."""


def make_request() -> bytes:
    """Serialise a POST of a review of BODY_SIZE bytes, with an API server's headers."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "bench-",
            "namespace": "default",
            "annotations": {"delay": "15", "pad": ""},
        },
        "spec": {"containers": [{"name": "main", "image": "busybox", "args": ["sleep", "1"]}]},
    }
    review: dict[str, Any] = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "operation": "CREATE",
            "userInfo": {"username": "bench", "groups": ["system:authenticated"]},
            "object": pod,
        },
    }
    missing = BODY_SIZE - len(json.dumps(review))
    review["request"]["object"]["metadata"]["annotations"]["pad"] = "x" * missing
    body = json.dumps(review).encode()
    head = (
        "POST /mutate?timeout=3s HTTP/1.1\r\nHost: holdfast.holdfast.svc:443\r\n"
        "User-Agent: kube-apiserver-admission\r\nAccept: application/json, */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Accept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Client:
    """One connection and when its last request was sent."""

    connection: ssl.SSLSocket
    sent: float = 0.0

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.sent = time.perf_counter()
        self.connection.sendall(request)

    def take(self) -> float:
        """Read the whole answer; the seconds since the request. Raises RuntimeError if not 200."""
        answer = self.connection.recv(65536)
        while not _is_whole(answer):
            more = self.connection.recv(65536)
            if not more:
                raise RuntimeError(f"cut off: {answer[:200]!r}")
            answer += more
        elapsed = time.perf_counter() - self.sent
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not 200: {answer[:200]!r}")
        return elapsed


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def connect(port: int) -> Client:
    """Open one connection; the bench's certificate is its own, so it is not verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Client(context.wrap_socket(plain))


def drive(clients: list[Client], request: bytes, number: int) -> list[float]:
    """Keep every connection busy until so many answers have come; the seconds each one took."""
    took: list[float] = []
    with selectors.DefaultSelector() as ready:
        for client in clients:
            ready.register(client.connection, selectors.EVENT_READ, client)
            client.ask(request)
        waiting = len(clients)
        while waiting:
            for key, _ in ready.select(PATIENCE):
                took.append(key.data.take())
                if len(took) + waiting <= number:
                    key.data.ask(request)
                else:
                    waiting -= 1
    return took


def measure(port: int, number: int) -> dict[str, float]:
    """Run the load; latencies in milliseconds, client CPU in microseconds per request."""
    request = make_request()
    clients = [connect(port) for _ in range(CONNECTIONS)]
    try:
        for client in clients:  # reads the TLS session tickets too, which select would stumble on
            client.ask(request)
            client.take()
        cpu, start = time.process_time(), time.perf_counter()
        took = sorted(drive(clients, request, number))
        elapsed = time.perf_counter() - start
        cpu = time.process_time() - cpu
    finally:
        for client in clients:
            client.connection.close()
    return {
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "per_second": len(took) / elapsed,
        "client_cpu_us": cpu / len(took) * 1e6,
        "requests": len(took) + CONNECTIONS,
    }


if __name__ == "__main__":
    json.dump(measure(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
