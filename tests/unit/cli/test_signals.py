"""A signal ends a command during imports, while a library hangs, and during requests."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubeconfigs import write_kubeconfig

TIMEOUT = 10.0
"""Seconds: a command may take three; the rest is margin for a busy machine."""
BOTH = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=lambda value: getattr(value, "name", "")
)
IMPORTING = """
import os, sys
from holdfast.webhook import __main__

class Finder:
    def find_spec(self, name, *_):
        if name == "holdfast.webhook.cli.main":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
__main__.main()
"""
STUCK = """
import atexit, ctypes
from holdfast.webhook import process

process.exit_on_signals()
process.stop_in_time(0.1)
atexit.register(print, "cleaned", flush=True)
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(mutex)
print("locked", flush=True)
library.pthread_mutex_lock(mutex)  # blocks in C, like a name lookup that hangs
"""


@BOTH
def test_signal_during_imports(number: signal.Signals) -> None:
    code = IMPORTING.format(number=int(number))
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stderr) == (128 + number, "")


def test_signal_while_a_library_hangs() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        process.send_signal(signal.SIGTERM)

        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM
        assert process.stdout.read() == "cleaned\n"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """Create a kubeconfig of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield write_kubeconfig(tmp_path / "config", address), server


@BOTH
@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("doctor",),
        ("controller", "--health-port", "0"),
        ("controller", "--health-port", "0", "--leader-elect", "--namespace", "apart"),
        ("dev",),
    ],
    ids=lambda value: " ".join(value[:1] + value[3:4]) if isinstance(value, tuple) else "",
)
def test_signal_while_the_api_server_hangs(
    kubeconfig: tuple[Path, socket.socket], arguments: tuple[str, ...], number: signal.Signals
) -> None:
    file, server = kubeconfig
    command = [sys.executable, "-m", "holdfast.webhook", *arguments, "--kubeconfig", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        connection, _ = server.accept()
        with connection:
            process.send_signal(number)
            process.communicate(timeout=TIMEOUT)

    assert process.returncode in {0, 1, 128 + number}
