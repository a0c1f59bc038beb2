"""gunicorn's worker for the admission server: accept, enforce limits, drain.

It is a subclass of gunicorn's documented `Worker`. All connections use TLS, each phase of a
connection has a time limit, and `Connection: close` announces the shutdown.
"""

import asyncio
import gc
import logging
import os
import selectors
import socket
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from typing import Any

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.workers.base import Worker  # type: ignore[import-untyped]

from holdfast.webhook.errors import HoldfastError
from holdfast.webhook.process import write_whole
from holdfast.webhook.server.connection import BodyBudget, Connection, HttpRequest, Phase
from holdfast.webhook.server.handler import HttpResponse
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.server.peer_log import PeerLogLimit
from holdfast.webhook.server.settings import ServerSettings
from holdfast.webhook.server.tls import CertWatcher, find_name_problem
from holdfast.webhook.server.tls_transport import TlsTransport
from holdfast.webhook.sockets import written

TICK = 0.25
"""Seconds between checks of all connections and of the master: the precision of the limits."""
FINISH = 3.0
"""Seconds after the drain for requests in flight; more than a review's limit of 2.5 s."""
QUIET = 0.5
"""Seconds that a connection opened at the end of the drain has to send its request."""
ACCEPTS_AT_ONCE = 10
"""Connections accepted per pass of the event loop, so handshakes make progress during a burst."""
NEWCOMERS = 0.25
"""Maximum share of connections without a response yet, enforced at the connection limit."""
GRACE = 0.25
"""Minimum seconds before a connection without a response may be evicted. A handshake takes
milliseconds, even alongside a hundred others."""
NO_DESCRIPTORS_PAUSE = 0.5
"""Seconds to pause accepting when the system is out of file descriptors."""
BODIES_AT_ONCE = 8
"""Maximum-size bodies that may be read at the same time."""
GC_THRESHOLD = 20_000
"""New objects between collections of the youngest generation: those of about fifty reviews, where
Python's default is about two. Reviews leave no reference cycles; a closed connection leaves a small
one of asyncio's."""
RELOAD_INTERVAL = 2.0
"""Seconds between checks of the certificate files; updates of a mounted Secret lag by more."""
CAP_LOG_INTERVAL = 10.0
"""Minimum seconds between log lines about the connection limit."""

_logger = logging.getLogger("holdfast.server")
_logger.addFilter(PeerLogLimit())


class FairSelector(selectors.DefaultSelector):
    """Returns the sockets that are ready, longest-waiting first.

    epoll returns sockets that it has returned before ahead of others. The client served last would
    be last again in the next round, which begins before its next request arrives. It would wait
    twice as long as all others, every time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0
        self._served: dict[int, int] = {}
        """The number of each descriptor's last turn."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for ready sockets, and return them longest-waiting first."""
        ready = super().select(timeout)
        if len(ready) > 1:
            served = self._served
            ready.sort(key=lambda event: served.get(event[0].fd, 0))
        for key, _ in ready:
            self._turn += 1
            self._served[key.fd] = self._turn
        return ready


def boot_error(error: Exception) -> SystemExit:
    """Log why the worker cannot start, and return the exit that also stops the master."""
    unexpected = None if isinstance(error, HoldfastError) else error
    _logger.error("cannot start: %s", error, exc_info=unexpected)
    return SystemExit(Arbiter.WORKER_BOOT_ERROR)


class HoldfastWorker(Worker):  # type: ignore[misc]
    """The worker process."""

    loop: asyncio.AbstractEventLoop
    sockets: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings: ServerSettings = self.app.settings
        self.draining = False
        self.connections: set[Connection] = set()
        self.newcomers: dict[Connection, None] = {}
        """Connections that have had no response yet, oldest first."""
        self._addresses: Counter[str] = Counter()
        """Newcomers by source address."""
        self._limits = {
            Phase.HANDSHAKE: self.settings.handshake_timeout,
            Phase.IDLE: self.settings.keepalive,
            Phase.READING: self.settings.request_deadline,
            Phase.ANSWERING: self.settings.answer_deadline,
            Phase.CLOSING: self.settings.shutdown_timeout,
        }
        self._opening: set[asyncio.Task[Any]] = set()
        self._waiting: deque[Connection] = deque()
        """Connections with pipelined requests to answer."""
        self._evicted = 0
        self._cap_logged = float("-inf")
        self._checked = 0.0
        self._certificate = CertWatcher(
            self.settings.certfile,
            self.settings.keyfile,
            client_ca=self.settings.client_ca,
            on_loaded=self.settings.on_certificate,
            on_failure=self.settings.on_reload_failure,
        )

    def respond(
        self, request: HttpRequest, peer: str
    ) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """Return the response to a request from an address, or a coroutine that returns it."""
        method, path, content_type, content_encoding, body, _ = request
        if method == "POST":
            return self._handler.post(path, content_type, body, content_encoding, peer)
        return self._handler.page(method, path)

    def allows(self, certificate: Mapping[str, Any] | None, address: str) -> bool:
        """Return whether a client with this certificate may send requests."""
        problem = find_name_problem(certificate, self.settings.client_names)
        if problem:
            _logger.warning(
                "closed a connection from %s: %s", address, problem, extra={"peer": address}
            )
        return not problem

    def serve_later(self, connection: Connection) -> None:
        """Queue a connection with pipelined requests; each pass of the loop answers one request.

        This way, clients that pipeline do not keep others waiting.
        """
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._serve_waiting)

    def _serve_waiting(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            self.loop.call_soon(self._serve_waiting)
        connection.serve_next()

    def served(self, connection: Connection) -> None:
        """Remove a client from the newcomers, after its first response."""
        if connection in self.newcomers:
            del self.newcomers[connection]
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.served(connection)

    def handle_exit(self, *_signal: object) -> None:
        """Begin the drain, on SIGTERM."""
        self.draining = True

    def handle_quit(self, *_signal: object) -> None:
        """Stop in order but without a drain, on SIGINT and SIGQUIT."""
        self.alive = False

    def run(self) -> None:
        """Serve until a signal arrives or the master exits."""
        self.loop = asyncio.SelectorEventLoop(FairSelector())
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        finally:
            self.loop.close()

    async def _serve(self) -> None:
        self._boot()
        while not self._is_to_stop():
            await self._tick(TICK)
        await self._drain()
        self._handler.stop()

    def _boot(self) -> None:
        self._handler: AsyncHandler = self.wsgi
        self.body_limit = self._handler.body_limit
        self.bodies = BodyBudget(BODIES_AT_ONCE * self.body_limit)
        try:
            self._certificate.start(await_certificate=self.settings.await_certificate)
            self._handler.on_startup()
            # The collector writes to each object that it visits, which copies pages shared with
            # the master. All objects so far are long-lived, so it can skip them.
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            self._listen()
        except Exception as error:
            raise boot_error(error) from error

    def _listen(self) -> None:
        for listener in self.sockets:
            listener.settimeout(0)
            self.loop.add_reader(listener.fileno(), self._accept, listener)
        host, port = self.sockets[0].getsockname()[:2]
        address = written(host, port)
        _logger.info("serving on https://%s", address)
        if self.settings.ready_file is not None:
            write_whole(self.settings.ready_file, address)

    def _is_to_stop(self) -> bool:
        # A killed master sends no signal, but the worker then gets another parent.
        return self.draining or not self.alive or self.ppid != os.getppid()

    async def _tick(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.notify()
        now = self.loop.time()
        for connection in list(self.connections):
            limit = self._limits.get(connection.phase)
            if limit is None or now - connection.since <= limit:
                continue
            # Close an idle connection in order; a stalled client would stall that close, too.
            if connection.phase is Phase.IDLE:
                connection.finish()
            else:
                connection.drop()
        if now - self._checked >= RELOAD_INTERVAL:
            self._checked = now
            self._certificate.check()
        if self._evicted and now - self._cap_logged >= CAP_LOG_INTERVAL:
            _logger.warning(
                "%d connections are open, the most allowed: closed %d without a request",
                self.settings.max_connections,
                self._evicted,
            )
            self._evicted, self._cap_logged = 0, now

    def _accept(self, listener: socket.socket, at_most: int = ACCEPTS_AT_ONCE) -> None:
        for _ in range(at_most):
            try:
                peer, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listener, error)
                return
            if not self._open(peer, str(address[0])):
                self.loop.remove_reader(listener.fileno())
                self._open_later(listener, peer, str(address[0]))
                return

    def _open_later(self, listener: socket.socket, peer: socket.socket, address: str) -> None:
        """Retry until there is room for this client; others wait in the kernel's backlog."""
        if self._open(peer, address):
            self._resume_accepting(listener)
        else:
            self.loop.call_later(GRACE / 10, self._open_later, listener, peer, address)

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        _logger.error("cannot accept connections for now: %s", error)
        self._evict_newcomer()
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(NO_DESCRIPTORS_PAUSE, self._resume_accepting, listener)

    def _resume_accepting(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _open(self, peer: socket.socket, address: str) -> bool:
        """Start the handshake. Return False if there is no room now."""
        if len(self.connections) >= self.settings.max_connections:
            if not self._make_room():
                return False
            self._evicted += 1
        peer.settimeout(0)
        connection = Connection(self, address)
        self.connections.add(connection)
        self.newcomers[connection] = None
        self._addresses[address] += 1
        connection.transport = transport = TlsTransport(connection, self._certificate.context)
        opening = self.loop.create_task(self.loop.connect_accepted_socket(lambda: transport, peer))
        self._opening.add(opening)  # the loop does not keep a task alive
        opening.add_done_callback(self._opening.discard)
        return True

    def _make_room(self) -> bool:
        """Evict a newcomer if they exceed their share, else the client longest in its phase.

        Clients that have to read a response are evicted first: API servers read at once. Return
        False if no connection can be evicted. Neither clients that stall nor clients that sent one
        request can keep others out.
        """
        if len(self.newcomers) > self.settings.max_connections * NEWCOMERS:
            return self._evict_newcomer()
        served = [
            connection
            for connection in self.connections
            if connection not in self.newcomers and not connection.awaits_review
        ]
        if not served:
            return self._evict_newcomer()
        min(served, key=lambda connection: (not connection.is_reading, connection.since)).drop()
        return True

    def _evict_newcomer(self) -> bool:
        """Evict the oldest newcomer, if past GRACE, from the address with the most newcomers."""
        # A client that opens many connections then displaces itself, not the API server.
        crowded = max(self._addresses, key=self._addresses.__getitem__, default=None)
        for connection in self.newcomers:
            if connection.address == crowded and not connection.awaits_review:
                if self.loop.time() - connection.accepted < GRACE:
                    return False
                connection.drop()
                return True
        return False

    async def _drain(self) -> None:
        """Announce the shutdown in each response for a while, then stop accepting, then close."""
        self.draining = True
        # A keep-alive client learns of the shutdown from a response. Closing at once would fail
        # the request that it is about to send.
        end = self.loop.time() + self.settings.drain
        while self.alive and self.loop.time() < end:
            await self._tick(min(TICK, self.settings.drain))
        self._stop_accepting()
        end = self.loop.time() + FINISH
        while self.alive and self.connections and self.loop.time() < end:
            self._finish_quiet()
            await self._tick(TICK / 5)
        for connection in list(self.connections):
            connection.drop()

    def _stop_accepting(self) -> None:
        for listener in self.sockets:
            # Serve the clients in the kernel's backlog.
            self._accept(listener, self.settings.max_connections)
            self.loop.remove_reader(listener.fileno())
            listener.close()
        self.sockets = []

    def _finish_quiet(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            if now - connection.since < QUIET:
                continue
            if connection.phase is Phase.CLOSING:
                connection.drop()
            elif connection.phase in {Phase.IDLE, Phase.HANDSHAKE}:
                connection.finish()
