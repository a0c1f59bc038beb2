"""Hostile clients of the page server: each is limited, and probes are still answered."""

import contextlib
import http.client
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.webhook.telemetry.pages import CONNECTIONS, Page, PageServer, create_app
from tests.server.harness import PATIENCE, ROOT, everything_from, wait_until

HOST = "127.0.0.1"
SHORT = 1
"""Seconds of a deadline that a test waits for."""
LARGE = 6 * 1024 * 1024
"""Bytes of a response that the kernel does not buffer completely."""
SMALL = 100 * 1024
"""Bytes of a response that it does buffer, but that exceeds a client's small window."""
CLIENTS = 1_000
SILENT = b""
UNREAD = b"GET /large HTTP/1.1\r\n\r\n"
DRIP = b"GET /healthz HTTP/1.1\r\nX-Slow: "
RESET = struct.pack("ii", 1, 0)


def broken() -> tuple[bytes, int, dict[str, str]]:
    raise ValueError("broken")


PAGES: dict[str, Page] = {
    "/healthz": lambda: (b"ok\n", 200, {}),
    "/large": lambda: (bytes(LARGE), 200, {}),
    "/small": lambda: (bytes(SMALL), 200, {}),
    "/broken": broken,
}
Serve = Callable[..., PageServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as servers:

        def started(pages: dict[str, Page] = PAGES, **limits: int) -> PageServer:
            server = PageServer(HOST, 0, create_app(pages), option="-p", **limits)
            server.start()
            servers.callback(server.stop)
            return server

        yield started


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Raise this process's limit of open files to what the test needs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < 4 * CLIENTS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CLIENTS, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connected(server: PageServer, request: bytes = b"") -> socket.socket:
    """Connect with a small receive window."""
    client = socket.socket()
    client.settimeout(PATIENCE)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, server.port))
    client.sendall(request)
    return client


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed the connection; read what it sent."""
    client.settimeout(0.05)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def probe(server: PageServer, path: str = "/healthz", timeout: float = PATIENCE) -> int:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=timeout)
    try:
        connection.request("GET", path)
        with connection.getresponse() as response:
            response.read()
            return response.status
    finally:
        connection.close()


def test_connection_with_a_slow_head_is_closed_at_the_deadline(serve: Serve) -> None:
    server = serve(deadline=SHORT)
    with connected(server, DRIP) as client:
        for _ in range(200):
            if is_closed(client):
                return
            with contextlib.suppress(OSError):
                client.send(b"x")
    pytest.fail("the connection is still open")


def test_silent_client_is_disconnected_at_the_deadline(serve: Serve) -> None:
    server = serve(deadline=SHORT)
    with connected(server) as client:
        client.settimeout(3)
        assert everything_from(client) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's connection table")
@pytest.mark.parametrize("path", ["/large", "/small"])
def test_unread_response_is_discarded(serve: Serve, path: str) -> None:
    server = serve(deadline=SHORT)
    with connected(server, f"GET {path} HTTP/1.1\r\n\r\n".encode()):
        wait_until("the response is sent", lambda: unsent_bytes(server) > 0)
        wait_until("the response is discarded", lambda: unsent_bytes(server) == 0)


def unsent_bytes(server: PageServer) -> int:
    """Return how many bytes the kernel still holds for clients of a server."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    connections = [row for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] != "0A"]
    return sum(int(row[4].partition(":")[0], 16) for row in connections)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    ("count", "sent", "limit"),
    [
        pytest.param(CLIENTS, SILENT, CONNECTIONS, id="silent"),
        pytest.param(CLIENTS, DRIP, CONNECTIONS, id="partial-head"),
        pytest.param(100, UNREAD, 10, id="unread-response"),
    ],
)
def test_many_clients_use_bounded_resources_and_do_not_block_probes(
    serve: Serve, count: int, sent: bytes, limit: int
) -> None:
    process = psutil.Process()
    threads, file_descriptors = threading.active_count(), process.num_fds()
    server = serve(connections=limit)

    with contextlib.ExitStack() as clients:
        for number in range(count):
            clients.enter_context(connected(server, sent))
            if number % (count // 10) == 0:
                assert probe(server, timeout=5) == 200
        assert threading.active_count() <= threads + 2
        assert probe(server, timeout=5) == 200
        assert process.num_fds() <= file_descriptors + count + limit + 8
    assert probe(server) == 200
    server.stop()

    wait_until("the server's threads end", lambda: threading.active_count() <= threads)
    assert process.num_fds() <= file_descriptors


def test_oldest_connection_is_closed_at_the_limit(serve: Serve) -> None:
    server = serve(connections=2)
    with connected(server) as oldest, connected(server) as second, connected(server) as third:
        wait_until("the oldest connection is closed", lambda: is_closed(oldest))
        assert not is_closed(second)
        second.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert everything_from(second).endswith(b"ok\n")
        third.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert everything_from(third).endswith(b"ok\n")


def test_concurrent_requests_are_all_answered() -> None:
    server = PageServer(HOST, 0, create_app(PAGES), option="-p", connections=8)
    with contextlib.ExitStack() as stack:
        request = b"GET /healthz HTTP/1.0\r\n\r\n"
        clients = [stack.enter_context(connected(server, request)) for _ in range(100)]
        server.start()
        stack.callback(server.stop)
        assert [client for client in clients if not everything_from(client)] == []


def test_disconnecting_clients_are_not_logged(
    serve: Serve, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    for request in (DRIP, UNREAD, UNREAD):
        with connected(server, request) as client:
            time.sleep(0.1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert probe(server) == 200
    server.stop()

    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_failing_page_returns_500_and_is_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()

    assert probe(server, "/broken") == 500
    assert probe(server) == 200
    assert [record.message for record in caplog.records] == ["Exception on /broken [GET]"]


def test_slow_page_is_served_after_the_deadline(serve: Serve) -> None:
    def slow() -> tuple[bytes, int, dict[str, str]]:
        time.sleep(2 * SHORT)
        return b"slow", 200, {}

    assert probe(serve({"/": slow}, deadline=SHORT), "/") == 200


def test_slow_page_does_not_block_shutdown(serve: Serve) -> None:
    proceed, started, finished = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> tuple[bytes, int, dict[str, str]]:
        started.set()
        proceed.wait(PATIENCE)
        finished.set()
        return b"", 200, {}

    server = serve({"/": stuck})
    try:
        with connected(server, b"GET / HTTP/1.1\r\n\r\n"):
            assert started.wait(PATIENCE)
            server.stop()
            assert not finished.is_set()
    finally:
        proceed.set()


STARVED = """
import contextlib, resource, socket, sys
from holdfast.webhook.telemetry.pages import PageServer, create_app

app = create_app({"/healthz": lambda: (b"ok", 200, {})})
server = PageServer("127.0.0.1", 0, app, option="-p")
server.start()
print(server.port, flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
with contextlib.suppress(OSError):
    while True:
        taken.append(socket.socket())
print("taken", flush=True)
sys.stdin.readline()
for each in taken:
    each.close()
sys.stdin.readline()
"""
"""A server that, on three lines of input, takes all descriptors, frees them, and exits."""


def test_running_out_of_descriptors_neither_spins_nor_crashes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARVED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "taken\n"
        with socket.create_connection((HOST, port), timeout=PATIENCE) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            process = psutil.Process(child.pid)
            before = process.cpu_times().user + process.cpu_times().system
            time.sleep(2)
            cpu_seconds = process.cpu_times().user + process.cpu_times().system - before
            print(file=child.stdin, flush=True)
            assert everything_from(client).endswith(b"ok")
        _, stderr = child.communicate("\n", timeout=PATIENCE)

    assert cpu_seconds < 0.5
    assert stderr.count("cannot accept connections for now: ") == 1
    assert len(stderr.splitlines()) == 1
