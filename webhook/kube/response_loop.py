"""Keep many requests in flight, with one thread that waits for their responses.

With one thread per request, a burst of releases takes twice the CPU, most of it for waking threads
and passing the GIL between them.
"""

import selectors
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.webhook.kube.transport import (
    TRANSPORT_ERRORS,
    ApiConnection,
    Response,
    Transport,
)

CHECK_SECONDS = 1.0
"""Interval, in seconds, of timeout checks."""


@dataclass(eq=False, slots=True)
class _InFlight:
    connection: ApiConnection
    deadline: float
    on_end: Callable[[Response | Exception], None]


class ResponseLoop:
    """Sends requests from any thread over idle connections; `run` receives the responses."""

    def __init__(self, transport: Transport, *, now: Callable[[], float]) -> None:
        self._transport = transport
        self._now = now
        self._selector = selectors.DefaultSelector()
        self._in_flight: set[_InFlight] = set()
        self._check_at = 0.0

    def send(
        self, request: bytes, *, timeout: float, on_end: Callable[[Response | Exception], None]
    ) -> bool:
        """Send a request; return False if no idle connection accepts it.

        `on_end` gets the response, or one of TRANSPORT_ERRORS after `timeout` seconds or if the
        connection breaks. It must not block, because all other responses would wait.
        """
        connection = self._transport.take_idle()
        if connection is None:
            return False
        connection.socket.settimeout(0.0)
        try:
            is_sent = connection.socket.send(request) == len(request)
        except OSError:
            is_sent = False
        if not is_sent:
            connection.close()
            return False
        flight = _InFlight(connection, self._now() + timeout, on_end)
        self._in_flight.add(flight)
        self._selector.register(connection.socket, selectors.EVENT_READ, flight)  # also wakes `run`
        return True

    def run(self, stop: threading.Event) -> None:
        """Receive responses until `stop` is set and none is outstanding."""
        while self._in_flight or not stop.is_set():
            for key, _ in self._selector.select(CHECK_SECONDS):
                self._receive(key.data)
            if (now := self._now()) >= self._check_at:
                self._check_at = now + CHECK_SECONDS
                self._expire(now)

    def _receive(self, flight: _InFlight) -> None:
        try:
            response = flight.connection.receive()
        except (BlockingIOError, ssl.SSLWantReadError):  # an incomplete TLS record
            return
        except TRANSPORT_ERRORS as exc:
            self._transport.close()  # the others are probably closed, too
            self._fail(flight, exc)
            return
        if response is not None:
            self._forget(flight)
            self._transport.give_back(flight.connection)
            flight.on_end(response)

    def _expire(self, now: float) -> None:
        for flight in list(self._in_flight):
            if now >= flight.deadline:
                self._fail(flight, TimeoutError("timed out"))

    def _fail(self, flight: _InFlight, exc: Exception) -> None:
        self._forget(flight)
        flight.connection.close()
        flight.on_end(exc)

    def _forget(self, flight: _InFlight) -> None:
        self._selector.unregister(flight.connection.socket)
        self._in_flight.discard(flight)
