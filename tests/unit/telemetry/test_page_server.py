"""Hostile clients of the pages' port: each is bounded, and a probe is answered meanwhile."""

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

from holdfast.webhook.telemetry.pages import CONNECTIONS, DEADLINE, Page, PageServer, create_app
from tests.server.harness import PATIENCE, ROOT, everything_from, wait_until

HOST = "127.0.0.1"
SHORT = 1
"""Seconds of a deadline that is waited for."""
LARGE = 6 * 1024 * 1024
"""Bytes of an answer that the kernel does not take whole."""
SMALL = 100 * 1024
"""Bytes of an answer that it does take, and that a client's small window does not."""
CROWD = 1_000
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
APP = create_app(PAGES)
Serve = Callable[..., PageServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as servers:

        def started(*, connections: int = CONNECTIONS, deadline: int = DEADLINE) -> PageServer:
            server = PageServer(
                HOST, 0, APP, option="-p", connections=connections, deadline=deadline
            )
            server.start()
            servers.callback(server.stop)
            return server

        yield started


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Let this process open as many connections as the test wants."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < 4 * CROWD:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CROWD, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connected(server: PageServer, sent: bytes = b"") -> socket.socket:
    """Connect as somebody who takes little at a time."""
    client = socket.socket()
    client.settimeout(PATIENCE)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, server.port))
    client.sendall(sent)
    return client


def is_ended(client: socket.socket) -> bool:
    """Return whether the server has closed the connection; read what it sent."""
    client.settimeout(0.05)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def probe(server: PageServer, path: str = "/healthz", patience: float = PATIENCE) -> int:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=patience)
    try:
        connection.request("GET", path)
        with connection.getresponse() as response:
            response.read()
            return response.status
    finally:
        connection.close()


def test_dripping_head_is_ended_at_the_deadline(serve: Serve) -> None:
    server = serve(deadline=SHORT)
    with connected(server, DRIP) as client:
        for _ in range(200):
            if is_ended(client):
                return
            with contextlib.suppress(OSError):
                client.send(b"x")
    pytest.fail("it drips on")


def test_silent_client_is_ended_at_the_deadline(serve: Serve) -> None:
    server = serve(deadline=SHORT)
    with connected(server) as client:
        client.settimeout(3)
        assert everything_from(client) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the kernel's table of connections")
@pytest.mark.parametrize("path", ["/large", "/small"])
def test_nothing_stays_of_an_answer_that_is_not_read(serve: Serve, path: str) -> None:
    server = serve(deadline=SHORT)
    with connected(server, f"GET {path} HTTP/1.1\r\n\r\n".encode()):
        wait_until("it is served", lambda: waiting(server) > 0)
        wait_until("it is thrown away", lambda: waiting(server) == 0)


def waiting(server: PageServer) -> int:
    """Give how many bytes the kernel keeps for clients of a server."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] != "0A"]
    return sum(int(row[4].partition(":")[0], 16) for row in ours)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    ("crowd", "sent", "most"),
    [
        pytest.param(CROWD, SILENT, CONNECTIONS, id="silent"),
        pytest.param(CROWD, DRIP, CONNECTIONS, id="half-a-head"),
        pytest.param(100, UNREAD, 10, id="nothing-is-read"),
    ],
)
def test_crowd_is_bounded_and_a_probe_is_answered_in_its_midst(
    serve: Serve, crowd: int, sent: bytes, most: int
) -> None:
    itself = psutil.Process()
    threads, opened = threading.active_count(), itself.num_fds()
    server = serve(connections=most)

    with contextlib.ExitStack() as clients:
        for number in range(crowd):
            clients.enter_context(connected(server, sent))
            if number % (crowd // 10) == 0:
                assert probe(server, patience=5) == 200
        assert threading.active_count() <= threads + 2
        assert probe(server, patience=5) == 200
        assert itself.num_fds() <= opened + crowd + most + 8
    assert probe(server) == 200
    server.stop()

    wait_until("its threads end", lambda: threading.active_count() <= threads)
    assert itself.num_fds() <= opened


def test_the_oldest_makes_room(serve: Serve) -> None:
    server = serve(connections=2)
    with connected(server) as oldest, connected(server) as second, connected(server) as third:
        wait_until("the oldest is ended", lambda: is_ended(oldest))
        assert not is_ended(second)
        second.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert everything_from(second).endswith(b"ok\n")
        third.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert everything_from(third).endswith(b"ok\n")


def test_none_of_many_that_ask_at_once_is_pushed_out() -> None:
    server = PageServer(HOST, 0, APP, option="-p", connections=8)
    with contextlib.ExitStack() as stack:
        asked = b"GET /healthz HTTP/1.0\r\n\r\n"
        clients = [stack.enter_context(connected(server, asked)) for _ in range(100)]
        server.start()
        stack.callback(server.stop)
        assert [client for client in clients if not everything_from(client)] == []


def test_clients_that_leave_are_nothing_to_tell(
    serve: Serve, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    for sent in (DRIP, UNREAD, UNREAD):
        with connected(server, sent) as client:
            time.sleep(0.1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert probe(server) == 200
    server.stop()

    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_page_that_fails_is_answered_and_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()

    assert probe(server, "/broken") == 500
    assert probe(server) == 200
    assert [record.message for record in caplog.records] == ["Exception on /broken [GET]"]


def test_page_that_takes_its_time_is_served_whatever_the_deadline() -> None:
    def slow() -> tuple[bytes, int, dict[str, str]]:
        time.sleep(2 * SHORT)
        return b"slow", 200, {}

    server = PageServer(HOST, 0, create_app({"/": slow}), option="-p", deadline=SHORT)
    server.start()
    try:
        assert probe(server, "/") == 200
    finally:
        server.stop()


def test_page_that_takes_its_time_does_not_keep_the_end_waiting() -> None:
    go, begun, made = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> tuple[bytes, int, dict[str, str]]:
        begun.set()
        go.wait(PATIENCE)
        made.set()
        return b"", 200, {}

    server = PageServer(HOST, 0, create_app({"/": stuck}), option="-p")
    server.start()
    try:
        with connected(server, b"GET / HTTP/1.1\r\n\r\n"):
            assert begun.wait(PATIENCE)
            server.stop()
            assert not made.is_set()
    finally:
        go.set()


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
"""Serves; of three lines of input, takes all descriptors, gives them back, and ends."""


def test_no_descriptors_is_no_reason_to_spin_or_to_end() -> None:
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
            itself = psutil.Process(child.pid)
            before = itself.cpu_times().user + itself.cpu_times().system
            time.sleep(2)
            used = itself.cpu_times().user + itself.cpu_times().system - before
            print(file=child.stdin, flush=True)
            assert everything_from(client).endswith(b"ok")
        _, told = child.communicate("\n", timeout=PATIENCE)

    assert used < 0.5
    assert told.count("cannot accept connections for now: ") == 1
    assert len(told.splitlines()) == 1
