import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from holdfast.webhook.errors import StartError
from holdfast.webhook.server import gunicorn_app
from holdfast.webhook.server.settings import ServerSettings
from holdfast.webhook.server.worker import FINISH
from tests.server.conftest import Serve
from tests.server.harness import PATIENCE, Pair, Server, everything_from, wait_until


def exit_status(server: Server) -> int:
    return server.process.wait(PATIENCE)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_invalid_certificate_stops_the_server_before_it_listens(
    start: Serve, pair: Pair, free_port: int
) -> None:
    pair.certfile.write_text("not a certificate", encoding="utf-8")
    server = start(port=free_port)
    assert exit_status(server) == 1
    (line,) = server.log.splitlines()
    assert line.startswith(f"Error: cannot use the certificate {pair.certfile}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", free_port))


def test_certificate_lost_after_the_fork_never_causes_plaintext(
    start: Serve, free_port: int
) -> None:
    server = start(port=free_port, fault="certificate")
    received = b""
    while server.process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", free_port), timeout=PATIENCE) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                received += everything_from(client)
        except ConnectionError:
            time.sleep(0.02)
    assert (exit_status(server), received) == (3, b"")
    assert "cannot start: cannot use the certificate" in server.log
    assert not server.ready_file.exists()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param("startup", "startup failed on purpose; remove the fault", id="lifespan"),
        pytest.param("factory", "the factory failed on purpose; remove the fault", id="factory"),
    ],
)
def test_failed_startup_stops_the_server(start: Serve, fault: str, text: str) -> None:
    server = start(fault=fault)
    assert exit_status(server) == 3
    assert sum(text in line for line in server.log.splitlines()) == 1, server.log
    assert "Traceback" not in server.log
    assert not server.ready_file.exists()


def test_port_in_use_is_reported_on_one_line(start: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = start(port=port)
        assert exit_status(server) == 1
    assert server.log == (
        f"Error: cannot listen on 127.0.0.1:{port}: address already in use; "
        "stop the other process or choose another port with --port\n"
    )


def test_unavailable_address_error_names_the_option() -> None:
    with pytest.raises(StartError, match=r"no such address; choose another with --host"):
        gunicorn_app.listen("198.51.100.1", 0)


def test_gunicorn_gets_safe_settings(pair: Pair) -> None:
    settings = ServerSettings(certfile=pair.certfile, keyfile=pair.keyfile)
    options = gunicorn_app._gunicorn_settings(settings, 3)
    assert (options["control_socket_disable"], options["accesslog"]) == (True, None)
    # otherwise SIGKILL overtakes the end of the worker
    assert options["graceful_timeout"] >= settings.drain + FINISH + gunicorn_app.SHUTDOWN
    assert settings.keepalive > 90  # after which Go's clients close idle connections


def test_server_works_in_a_read_only_directory(serve: Serve) -> None:
    server = serve(cwd=Path("/proc"))
    assert server.get("/healthz").status == 200
    open_paths = {
        file.path
        for process in (psutil.Process(server.process.pid), server.worker)
        for file in process.open_files()
    }
    assert {path for path in open_paths if not path.startswith("/dev/shm/")} <= {
        str(server.log_file)
    }


def test_server_exits_when_stdin_closes(serve: Serve) -> None:
    server = serve(exit_with_stdin=True)
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert exit_status(server) == 0
    assert server.stopped_file.exists()


def test_worker_exits_when_its_master_is_killed(serve: Serve) -> None:
    server = serve()
    worker = server.worker
    server.process.send_signal(signal.SIGKILL)
    wait_until("the worker is gone", lambda: not worker.is_running())
    assert server.stopped_file.exists()
