"""Read-only pages over plain HTTP: a small Flask app under waitress, in separate threads."""

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, request
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import WSGITask
from werkzeug.exceptions import HTTPException

from holdfast.webhook import sockets
from holdfast.webhook.errors import StartError

TEXT = "text/plain; charset=utf-8"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

CONNECTIONS = 64
"""Maximum open connections. Beyond it, a new one closes the one that has been idle longest."""
DEADLINE = 5
"""Seconds for a client to send a whole request, and again to read the response."""
HEAD_LIMIT = 64 * 1024
"""Maximum size of a request's head, in bytes."""
BODY_LIMIT = 64 * 1024
"""Maximum size of a request's body, in bytes; pages do not read it."""
BACKLOG = 1024
"""Maximum connections that the kernel queues until they are accepted."""
ACCEPT_PAUSE = 0.1
"""Seconds to pause after running out of file descriptors."""
LOG_INTERVAL = 10.0
"""Minimum seconds between two log lines about failed accepts."""
STOP_TIMEOUT = 1.0
"""Seconds that `stop` waits for the server's thread."""

REUSE = 1.0
"""Seconds for which metrics are reused while requests wait."""

_IN_MEMORY = 1 << 30  # the container's file system is read-only: never spool a response to a file
_READ_ONCE = 2  # a poll accepts before it reads, so all were read by the second one
_RESET = struct.pack("ii", 1, 0)
_log = logging.getLogger("holdfast.pages")

_PLAIN = {"Content-Type": TEXT}

Page = Callable[[], tuple[bytes, int, Mapping[str, str]]]
"""Returns a page: its body, status and headers."""


def create_app(pages: Mapping[str, Page], *, local: bool = False) -> Flask:
    """Return an app that serves pages by path, to GET and HEAD.

    With `local`, requests with a Host header that is not in LOCAL_HOSTS are rejected, which
    prevents DNS rebinding.
    """
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    for path, page in pages.items():
        app.add_url_rule(
            path, path, lambda page=page: page(), methods=["GET"], provide_automatic_options=False
        )

    @app.before_request
    def reject_foreign_hosts() -> tuple[str, int, Mapping[str, str]] | None:
        if not local or urlsplit(f"//{request.host}").hostname in LOCAL_HOSTS:
            return None
        return "open this page at http://localhost\n", 403, {"Content-Type": TEXT}

    @app.errorhandler(HTTPException)
    def explain(error: HTTPException) -> tuple[str, int, Mapping[str, str]]:
        return f"{error.name.lower()}\n", error.code or 500, {"Content-Type": TEXT}

    return app


def query() -> Mapping[str, str]:
    """Return the query parameters of the current request."""
    return request.args


class _Task(WSGITask):
    """A response that closes its connection, because an idle client would keep it open."""

    def start(self) -> None:
        super().start()
        self.request.headers["CONNECTION"] = "close"


class _Channel(HTTPChannel):
    """A connection, with the time since which it has been waiting for its client."""

    task_class = _Task
    polls = 0
    """Number of times that the socket was polled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.idle_since = time.monotonic()
        super().__init__(*args, **kwargs)

    def readable(self) -> bool:
        self.polls += 1
        return bool(super().readable())

    def service(self) -> None:
        """Run the request; the client then has the deadline to read the response."""
        with contextlib.suppress(OSError):  # `stop` has closed the server in the meantime
            super().service()
        self.idle_since = time.monotonic()

    def drop(self) -> None:
        """Close the connection; the kernel discards what the client has not read."""
        if self.total_outbufs_len:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.handle_close()


class _Server(TcpWSGIServer):
    """A waitress server that, at its limit, evicts an idle connection to accept a new one.

    Otherwise clients that send nothing, or send slowly, could block the kubelet's probes.
    """

    channel_class = _Channel
    logged = float("-inf")

    def readable(self) -> bool:
        """Drop connections past their deadline, and return whether a new one can be accepted."""
        deadline = time.monotonic() - self.adj.channel_timeout
        for channel in self._idle():
            if channel.idle_since < deadline:
                channel.drop()
        return len(self.active_channels) < self.adj.connection_limit or bool(self._evictable())

    def handle_accept(self) -> None:
        if len(self.active_channels) >= self.adj.connection_limit:
            self._evictable()[0].drop()
        try:
            accepted = self.accept()
        except OSError as exc:
            self._pause(exc)
        else:
            if accepted is not None:
                self.channel_class(self, *accepted, self.adj, map=self._map)

    def _idle(self) -> list[_Channel]:
        return [channel for channel in self.active_channels.values() if not channel.requests]

    def _evictable(self) -> list[_Channel]:
        """Return the idle connections whose received data has been read at least once."""
        return [channel for channel in self._idle() if channel.polls >= _READ_ONCE]

    def _pause(self, exc: OSError) -> None:
        """Close an idle connection, if any, and wait for a file descriptor to become free."""
        now = time.monotonic()
        if now - self.logged >= LOG_INTERVAL:
            self.logged = now
            _log.warning("cannot accept connections for now: %s", exc)
        for channel in self._evictable()[:1]:
            channel.drop()
        time.sleep(ACCEPT_PAUSE)


class PageServer:
    """Serves an app on a port, with two threads: one for all connections, one for the pages.

    `option` is the command-line option for the port, which the error names. `deadline` is in
    seconds. Raises StartError if the port cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app: Flask,
        *,
        option: str,
        connections: int = CONNECTIONS,
        deadline: int = DEADLINE,
    ) -> None:
        try:
            listener = _listen(host, port, deadline)
        except OSError as exc:
            raise StartError(
                f"cannot listen on {sockets.written(host, port)}: {exc.strerror}; "
                f"choose another port with {option}"
            ) from None
        self.port: int = listener.getsockname()[1]
        """The port that it listens on."""
        self._server = _Server(
            app,
            _sock=listener,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            adj=_adjustments(listener, connections, deadline),
        )
        logging.getLogger("waitress").setLevel(logging.ERROR)  # else many clients flood the log
        self._thread = threading.Thread(target=self._server.run, name="pages", daemon=True)

    @property
    def has_queue(self) -> bool:
        """Whether requests wait for another one."""
        return bool(self._server.task_dispatcher.queue)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections, without waiting for a page in progress."""
        self._server.task_dispatcher.set_thread_count(0)
        if not self._thread.is_alive():
            return
        with contextlib.suppress(OSError):  # already stopped, and about to exit
            self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._server._map))
        self._thread.join(STOP_TIMEOUT)


def _listen(host: str, port: int, deadline: int) -> socket.socket:
    listener = sockets.bound(host, port, BACKLOG)
    # Otherwise the kernel retries for minutes after the close, and uses this process's memory.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, deadline * 1_000)
    return listener


def _adjustments(listener: socket.socket, connections: int, deadline: int) -> Adjustments:
    adjustments = Adjustments(
        sockets=[listener],
        threads=1,
        ident="holdfast",
        backlog=BACKLOG,
        connection_limit=connections,
        channel_timeout=deadline,
        max_request_header_size=HEAD_LIMIT,
        max_request_body_size=BODY_LIMIT,
        outbuf_overflow=_IN_MEMORY,
        asyncore_use_poll=True,
        log_socket_errors=False,
    )
    # the thread that makes the page also sends it, before the connection can be evicted
    adjustments.send_bytes = 1
    return adjustments


class HealthServer(PageServer):
    """Serves /healthz, /readyz and /metrics, and /conditions if `digest` is not empty."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], bool],
        exposition: Callable[[], bytes],
        digest: str = "",
    ) -> None:
        pages: dict[str, Page] = {
            "/healthz": lambda: (b"ok\n", 200, _PLAIN),
            "/readyz": lambda: (b"ok\n", 200, _PLAIN) if ready() else (b"not ready\n", 503, _PLAIN),
            "/metrics": lambda: (self._metrics(), 200, {"Content-Type": CONTENT_TYPE_LATEST}),
        }
        self._exposition = exposition
        self._last, self._made_at = b"", float("-inf")
        if digest:
            pages["/conditions"] = lambda: (f"{digest}\n".encode(), 200, _PLAIN)
        super().__init__(host, port, create_app(pages), option="--health-port")

    def _metrics(self) -> bytes:
        """Return the metrics. While others wait, they are those of the last second.

        Otherwise, a flood of requests would keep probes waiting until they fail.
        """
        now = time.monotonic()
        if not self.has_queue or now - self._made_at >= REUSE:
            self._last, self._made_at = self._exposition(), now
        return self._last
