"""How the admission server serves: addresses, files, limits in time and number."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from webhook import listening

KEEPALIVE = 95.0
"""Seconds that an idle connection is kept: more than Go's 90 s, or requests race with the close."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How to serve. All times are in seconds."""

    certfile: Path
    """PEM: the certificate, and what leads from it to the CA."""
    keyfile: Path
    """PEM: the certificate's own key, not encrypted."""
    await_certificate: bool = False
    """Start without a usable certificate, and be ready when there is one."""
    client_ca: Path | None = None
    """PEM: who is served, namely clients with a certificate of this CA; None asks for none."""
    host: str = listening.ANY
    port: int = 8443
    """0 takes any free port; `ready_file` tells which."""
    max_connections: int = 1000
    """Open connections, those in the handshake too; one that stalls costs about 0.1 MB."""
    request_deadline: float = 5.0
    """From a request's first byte to its last."""
    answer_deadline: float = 10.0
    """From a request's last byte until its answer is taken."""
    keepalive: float = KEEPALIVE
    """How long a connection may ask nothing."""
    handshake_timeout: float = 3.0
    shutdown_timeout: float = 2.0
    """How long a closed connection waits for the client's own end of TLS."""
    drain: float = 2.0
    """How long after SIGTERM requests are still taken, each answered with Connection: close."""
    ready_file: Path | None = None
    """Where to write `host:port` once connections are accepted."""
    exit_with_stdin: bool = False
    """End when standard input ends, so that a parent that is killed takes its server with it."""
    on_tls: Callable[[ssl.SSLContext], None] | None = None
    """Called in the worker with the live TLS context, for `webhook.tls.load_pair` on it."""
    on_certificate: Callable[[float], None] = lambda _: None
    """Called in the worker with the expiry, seconds since 1970, of each certificate it serves."""
    on_reload_failure: Callable[[], None] = lambda: None
    """Called in the worker when the files have changed into a pair that cannot be used."""
