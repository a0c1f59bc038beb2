"""Settings of the admission server: addresses, files, deadlines and limits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.webhook import sockets

KEEPALIVE = 95.0
"""Seconds that an idle connection is kept: more than Go's 90 s, to avoid a race with requests."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of the admission server. Times are in seconds."""

    certfile: Path
    """PEM: the certificate and its chain."""
    keyfile: Path
    """PEM: the certificate's key, unencrypted."""
    await_certificate: bool = False
    """Start even without a usable certificate, and become ready when there is one."""
    client_ca: Path | None = None
    """PEM: only clients with a certificate from this CA are served; None serves all."""
    client_names: frozenset[str] = frozenset()
    """A client's certificate must have one of these names; empty accepts all names."""
    host: str = sockets.ANY
    port: int = 8443
    """0 selects a free port, which is written to `ready_file`."""
    max_connections: int = 1000
    """Maximum open connections, including handshakes; a stalled one costs about 0.1 MB."""
    request_deadline: float = 5.0
    """From a request's first byte to its last."""
    answer_deadline: float = 10.0
    """From a request's last byte until the client has read the response."""
    keepalive: float = KEEPALIVE
    """How long an idle connection is kept."""
    handshake_timeout: float = 3.0
    shutdown_timeout: float = 2.0
    """How long a closed connection waits for the client's close_notify."""
    drain: float = 2.0
    """How long requests are accepted after SIGTERM, each answered with Connection: close."""
    ready_file: Path | None = None
    """Where to write `host:port` once connections are accepted."""
    exit_with_stdin: bool = False
    """Stop when standard input is closed, so the server exits with its parent."""
    on_certificate: Callable[[float], None] = lambda _: None
    """Called in the worker with the expiry, seconds since 1970, of each certificate it serves."""
    on_reload_failure: Callable[[], None] = lambda: None
    """Called in the worker when the files change to an unusable pair."""
