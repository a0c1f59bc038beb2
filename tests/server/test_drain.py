import http.client
import signal
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from tests.server.conftest import Serve
from tests.server.harness import PATIENCE, Server, ask, everything_from, wait_until

BUSY = 8
REVIEW = b'{"pad": "%s"}' % (b"x" * 4000)


class Load:
    """A client that sends requests back to back on a keep-alive connection until the server stops.

    A request has failed if its connection was established but no complete response arrived. After
    Connection: close, http.client opens a new connection. If that one is refused or ends during
    the handshake, the server has stopped and no request was lost.
    """

    def __init__(self, server: Server) -> None:
        self.client = server.client()
        self.answered = 0
        self.announced = 0
        self.failed: list[str] = []

    def run(self) -> None:
        try:
            while self._connect():
                self._ask()
        finally:
            self.client.close()

    def _connect(self) -> bool:
        try:
            if self.client.sock is None:
                self.client.connect()
        except (OSError, ssl.SSLError):
            return False
        return True

    def _ask(self) -> None:
        try:
            answer = ask(self.client, "POST", "/mutate", REVIEW)
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(f"after {self.answered} answers: {error!r}")
            self.client.close()
            return
        if answer.status != 200:
            self.failed.append(f"status {answer.status}")
        self.answered += 1
        self.announced += answer.headers["Connection"] == "close"


# If a connection is reset before its handshake starts, ssl.SSLSocket._create raises without
# closing the socket it made (CPython 3.11 to 3.13). No other code has a reference to close it.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("attempt", range(4))
def test_no_request_is_lost_at_sigterm(serve: Serve, attempt: int) -> None:
    server = serve(drain=0.4 + 0.1 * attempt)
    loads = [Load(server) for _ in range(BUSY)]
    with ThreadPoolExecutor(BUSY) as pool:
        runs = [pool.submit(load.run) for load in loads]
        wait_until("all are busy", lambda: all(load.answered > 20 for load in loads))
        assert server.terminate() == 0
        for run in runs:
            run.result(PATIENCE)
    assert [load.failed for load in loads] == [[]] * BUSY
    assert all(load.announced for load in loads)
    assert server.stopped_file.exists(), "lifespan shutdown ran"


def test_idle_connections_do_not_delay_shutdown(serve: Serve) -> None:
    server = serve()
    worker = server.worker
    with ExitStack() as stack:
        stack.enter_context(server.served_clients(10))
        for _ in range(10):
            stack.enter_context(server.raw())
            stack.enter_context(server.tcp())
        assert server.terminate() == 0
    assert not worker.is_running()
    assert server.stopped_file.exists(), "the worker ended by itself and was not killed"


def test_idle_connection_is_closed_with_close_notify(serve: Serve) -> None:
    server = serve()
    with server.tcp() as plain, server.tls.wrap_socket(plain, suppress_ragged_eofs=False) as idle:
        server.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b"", "a TLS close_notify, or this raises"
    assert server.process.wait(PATIENCE) == 0


def test_review_in_flight_is_answered_before_shutdown(serve: Serve) -> None:
    server = serve(drain=0.2)
    started = threading.Event()

    def review() -> tuple[int, str | None]:
        with closing(server.client()) as client:
            client.connect()
            started.set()
            answer = ask(client, "POST", "/mutate", b'{"block": true, "sleep": 1.5}')
        return answer.status, answer.headers["Connection"]

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(review)
        assert started.wait(PATIENCE)
        wait_until("it is running", lambda: server.get("/count").body == b"1")
        assert server.terminate() == 0
        assert future.result(PATIENCE) == (200, "close")


def test_new_connections_are_served_during_the_drain(serve: Serve) -> None:
    server = serve(drain=1.5)
    server.process.send_signal(signal.SIGTERM)
    wait_until("it drains", lambda: server.get("/healthz").headers["Connection"] == "close")
    assert server.review().status == 200
    assert server.process.wait(PATIENCE) == 0


def test_bare_connects_do_not_prevent_a_clean_shutdown(serve: Serve) -> None:
    server = serve()
    for _ in range(200):
        server.tcp().close()
    assert server.get("/healthz").status == 200
    wait_until("none is open", lambda: server.open_connections() == 0)
    assert server.terminate() == 0
    assert server.stopped_file.exists()
    assert "Traceback" not in server.log


def test_sigint_shuts_down_at_once_and_cleanly(serve: Serve) -> None:
    server = serve(drain=60.0)
    with server.raw() as idle:
        server.process.send_signal(signal.SIGINT)
        assert everything_from(idle) == b""
    assert server.process.wait(PATIENCE) == 0
    assert server.stopped_file.exists()
