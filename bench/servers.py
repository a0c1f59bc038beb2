"""The compared admission servers, each in its own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.peers import build
from controlplane.ports import free_ports
from holdfast.certs import authority

OURS, GO, KOPF, FLASK = "Holdfast", "controller-runtime", "kopf", "Flask on gthread"
FIXED = "fixed answer"
"""Not a peer, but the lower bound for any webhook."""
GTHREAD_THREADS = 4
"""One thread per measured connection."""
START_SECONDS, STOP_SECONDS = 60.0, 20.0

_ROOT = Path(__file__).resolve().parent.parent


class BenchError(Exception):
    """A measured component did not behave as expected."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The serving certificate, and the CA that signed it."""

    folder: Path
    ca: bytes

    @property
    def cert(self) -> str:
        """Path of the certificate."""
        return str(self.folder / "tls.crt")

    @property
    def key(self) -> str:
        """Path of the private key."""
        return str(self.folder / "tls.key")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    port: int
    process: psutil.Process

    @property
    def processes(self) -> list[psutil.Process]:
        """Its process and all child processes."""
        return [self.process, *self.process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far, in seconds."""
        return cpu_seconds(self.processes)

    def pss_mb(self) -> float:
        """Return the memory of its processes in MiB; shared pages count once."""
        return sum(process.memory_full_info().pss for process in self.processes) / 2**20


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the total CPU time of the processes, in seconds."""
    usages = [process.cpu_times() for process in processes]
    return sum(usage.user + usage.system for usage in usages)


def certificate(folder: Path) -> Certificate:
    """Issue a certificate for 127.0.0.1, and write it and its key to `folder`."""
    now = datetime.now(UTC)
    ca = authority.new_ca("bench", now=now)
    pair = authority.issue(ca, common_name="bench", now=now, ip_addresses=["127.0.0.1"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return Certificate(folder, ca.certificate)


def commands(tls: Certificate, port: int, kubeconfig: Path) -> dict[str, Sequence[str]]:
    """Return the command that starts each server on `port`, by name."""
    python = str(build.interpreter(lambda _: None))
    gunicorn = [python, "-m", "gunicorn", "--chdir", str(build.PYTHON), "--log-level=warning"]
    gunicorn += ["--worker-class=gthread", f"--threads={GTHREAD_THREADS}", "--keep-alive=95"]
    gunicorn += [f"--bind=127.0.0.1:{port}", f"--certfile={tls.cert}", f"--keyfile={tls.key}"]
    kopf = [python, "-m", "kopf", "run", "--quiet", "--standalone", "--all-namespaces"]
    return {
        OURS: holdfast(tls, port, kubeconfig),
        GO: [
            str(build.binary(build.CONTROLLER_RUNTIME)),
            f"-port={port}",
            f"-cert={tls.cert}",
            f"-key={tls.key}",
        ],
        KOPF: [*kopf, str(build.PYTHON / "kopf_webhook.py")],
        FIXED: [python, str(build.PYTHON / "fixed_answer.py")],
        FLASK: [*gunicorn, "--no-control-socket", "flask_webhook:app"],
    }


def holdfast(
    tls: Certificate, port: int, kubeconfig: Path, config: Path | None = None
) -> list[str]:
    """Return the command that starts Holdfast's admission server on `port`."""
    command = [sys.executable, "-m", "holdfast.webhook", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--cert", tls.cert, "--key", tls.key]
    command += ["--kubeconfig", str(kubeconfig), "--log-level", "warning"]
    return [*command, *([] if config is None else ["--config", str(config)])]


@contextmanager
def running(
    names: Sequence[str], tls: Certificate, kubeconfig: Path, *, core: int | None = None
) -> Iterator[list[Server]]:
    """Run several servers until the context exits, all pinned to `core` if it is given."""
    with ExitStack() as stack:
        servers = []
        for name in names:
            port = free_ports(1)[0]
            taskset = [] if core is None else ["taskset", "-c", str(core)]
            command = [*taskset, *commands(tls, port, kubeconfig)[name]]
            environment = {
                "KUBECONFIG": str(kubeconfig),
                "PEER_PORT": str(port),
                "PEER_CERT": tls.cert,
                "PEER_KEY": tls.key,
            }
            servers.append(stack.enter_context(serving(name, port, command, environment)))
        yield servers


@contextmanager
def serving(
    name: str, port: int, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server until the context exits, and yield it once it listens.

    Raises BenchError if it exits or does not listen in time.
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, cwd=_ROOT, env=variables, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError(f"{name} did not start: check its output above")
            time.sleep(0.05)
        yield Server(name, port, psutil.Process(process.pid))
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
