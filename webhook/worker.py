"""gunicorn's asgi worker, made fit for an admission webhook.

The stock worker serves plaintext when its certificate cannot be loaded, lets stalled clients stay
for ever, does not count its connections, and closes kept-alive connections at SIGTERM without
having said so. This one accepts connections itself, gives every phase of a connection a limit in
time, and announces its end. It builds on private names of gunicorn 27.0.1, each marked with
"private:" and why it is used; gunicorn is pinned to that version, and tests/server holds each
point.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import gc
import logging
import os
import socket
from typing import Any

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.asgi.lifespan import LifespanManager  # type: ignore[import-untyped]
from gunicorn.workers.gasgi import ASGIWorker  # type: ignore[import-untyped]

from webhook import listening
from webhook.connection import Connection, Phase
from webhook.direct_connection import DirectConnection
from webhook.process import write_whole
from webhook.settings import ServerSettings
from webhook.tls import LiveCertificate
from webhook.turns import FairSelector

TICK = 0.25
"""Seconds between two looks at all connections, and at the master: how exact the limits are."""
FINISH = 3.0
"""Seconds after the drain for requests that still run; more than the 2.5 s a review may take."""
QUIET = 0.5
"""Seconds that a connection which opened at the very end of the drain has to send its request."""
ACCEPTS_AT_ONCE = 100
"""Connections accepted in one go, so that a storm of them leaves time for those at hand."""
NEWCOMERS = 0.25
"""The share of all connections that those may have which have had no answer yet, at the cap."""
NO_DESCRIPTORS_PAUSE = 0.5
"""Seconds without accepting after the system refused a descriptor."""
READ_BUFFER = 32 * 1024
"""Bytes that asyncio holds for each TLS connection, idle ones too; a TLS record has at most 16 KiB.
Its own 256 KiB make 300 MB of a thousand connections that stall in their handshake."""
GC_THRESHOLD = 20_000
"""New objects between two collections of the youngest: as many as some fifty reviews make, not as
two. Reviews leave no cycles behind."""
COLLECT_AFTER = 32
"""Connections that have gone until the collector is called: it knows those that know themselves,
and hardly ever comes by itself."""
RELOAD_INTERVAL = 2.0
"""Seconds between two looks at the certificate's files; a mounted Secret lags by more."""
CAP_LOG_INTERVAL = 10.0
"""Seconds between two log lines about the connection cap."""

_logger = logging.getLogger("holdfast.server")


class HoldfastWorker(ASGIWorker):  # type: ignore[misc]
    """The worker: accepts, watches over the limits, drains."""

    loop: asyncio.AbstractEventLoop
    sockets: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings: ServerSettings = self.app.settings
        self.draining = False
        self.connections: set[Connection] = set()
        self.newcomers: dict[Connection, None] = {}
        """Connections that have had no answer yet, in the order in which they came."""
        self._limits = {
            Phase.IDLE: self.settings.keepalive,
            Phase.READING: self.settings.request_deadline,
            Phase.ANSWERING: self.settings.answer_deadline,
            Phase.CLOSING: self.settings.shutdown_timeout,
        }
        self.sent_ahead = asyncio.Lock()
        self._gone = 0
        self._turned_away = 0
        self._cap_logged = float("-inf")
        self._looked = 0.0
        self._certificate = LiveCertificate(
            self.settings.certfile,
            self.settings.keyfile,
            client_ca=self.settings.client_ca,
            on_loaded=self.settings.on_certificate,
            on_failure=self.settings.on_reload_failure,
        )

    def _setup_event_loop(self) -> None:
        # private: where gunicorn makes its loop, whose selector serves whom it likes first.
        self.loop = asyncio.SelectorEventLoop(FairSelector())
        asyncio.set_event_loop(self.loop)

    def served(self, connection: Connection) -> None:
        """Take note that a connection has had an answer."""
        self.newcomers.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer."""
        self.connections.discard(connection)
        self.newcomers.pop(connection, None)
        self._gone += 1

    def handle_exit_signal(self) -> None:
        """SIGTERM: begin the drain."""
        self.draining = True

    async def _serve(self) -> None:
        # private: the whole life of a worker. Nothing of gunicorn's own loop is used.
        lifespan = await self._boot()
        while not self._told_to_stop():
            await self._tick(TICK)
        await self._drain()
        await lifespan.shutdown()

    async def _boot(self) -> LifespanManager:
        lifespan = LifespanManager(self.asgi, self.log, self.state)
        # Not documented, yet the only place: no argument of asyncio's reaches this size.
        asyncio.sslproto.SSLProtocol.max_size = READ_BUFFER
        try:
            tls = self._certificate.open(await_certificate=self.settings.await_certificate)
            if self.settings.on_tls is not None:
                self.settings.on_tls(tls)
            await lifespan.startup()
            # The collector writes to every object that it looks at: what has been made so far
            # stays, and looking at it would only copy the pages that are shared with the master.
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            self._listen()
        except Exception as error:
            _logger.error("cannot start: %s", error)  # noqa: TRY400 - the cause is in one line
            raise SystemExit(Arbiter.WORKER_BOOT_ERROR) from error
        return lifespan

    def _listen(self) -> None:
        for listener in self.sockets:
            self.loop.add_reader(listener.fileno(), self._accept, listener.sock)
        host, port = self.sockets[0].getsockname()[:2]
        address = listening.written(host, port)
        _logger.info("serving on https://%s", address)
        if self.settings.ready_file is not None:
            write_whole(self.settings.ready_file, address)

    def _told_to_stop(self) -> bool:
        return self.draining or not self.alive or self.ppid != os.getppid()

    async def _tick(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.notify()
        now = self.loop.time()
        for connection in list(self.connections):
            limit = self._limits.get(connection.phase)
            if limit is None or now - connection.since <= limit:
                if connection.has_owed_for(now) > self.settings.answer_deadline:
                    connection.drop()
            elif connection.phase is Phase.IDLE:
                connection.finish()
            else:
                connection.drop()
        if self._gone >= COLLECT_AFTER:
            self._gone = 0
            gc.collect()
        if now - self._looked >= RELOAD_INTERVAL:
            self._looked = now
            self._certificate.look()
        if self._turned_away and now - self._cap_logged >= CAP_LOG_INTERVAL:
            _logger.warning(
                "%d connections are open, the most allowed: closed %d that asked nothing",
                self.settings.max_connections,
                self._turned_away,
            )
            self._turned_away, self._cap_logged = 0, now

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                peer, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listener, error)
                return
            self._open(peer)

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        _logger.error("cannot accept connections for now: %s", error)
        self._drop_newcomer()
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(NO_DESCRIPTORS_PAUSE, self._resume_accepting, listener)

    def _resume_accepting(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _open(self, peer: socket.socket) -> None:
        if len(self.connections) >= self.settings.max_connections:
            self._turned_away += 1
            if not self._make_room():
                peer.close()
                return
        peer.settimeout(0)
        connection = DirectConnection(self)
        self.connections.add(connection)
        self.newcomers[connection] = None
        opening = self.loop.create_task(self._shake_hands(connection, peer))
        opening.add_done_callback(lambda _: self._opened(connection, peer))
        connection.opening = opening

    def _make_room(self) -> bool:
        """Drop a connection for a new one, and tell whether there was one to drop.

        Where newcomers have more than their share, one of them goes; else whoever has had an
        answer, and has been at nothing, or at the same request, for the longest time: neither those
        that stall nor those that asked once can keep all places.
        """
        if len(self.newcomers) > self.settings.max_connections * NEWCOMERS:
            return self._drop_newcomer()
        served = [
            one
            for one in self.connections
            if one not in self.newcomers and one.phase is not Phase.ANSWERING
        ]
        if served:
            min(served, key=lambda one: one.since).drop()
            return True
        return self._drop_newcomer()

    def _drop_newcomer(self) -> bool:
        """Drop the oldest connection that has never had an answer, and tell whether there was one.

        So clients that stall cannot lock out the API server: it has its answer in milliseconds,
        and it is they who are the oldest.
        """
        for connection in self.newcomers:
            if connection.phase is not Phase.ANSWERING:
                connection.drop()
                return True
        return False

    async def _shake_hands(self, connection: Connection, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):  # whatever the client did, it is not served
            await self.loop.connect_accepted_socket(
                lambda: connection,
                peer,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self.settings.handshake_timeout,
                ssl_shutdown_timeout=self.settings.shutdown_timeout,
            )

    def _opened(self, connection: Connection, peer: socket.socket) -> None:
        connection.opening = None
        if connection.transport is None:
            self.forget(connection)
            peer.close()  # asyncio has done so too, unless its task was cancelled before it began

    async def _drain(self) -> None:
        """Announce the end with every answer for a while, then stop accepting, then close."""
        self.draining = True
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
            self._accept(listener.sock)  # who has been let in by the kernel is still served
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
