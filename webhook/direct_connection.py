"""A connection that answers usual requests itself, and leaves all others to gunicorn.

gunicorn's parser, task, scope, messages and body receiver cost more than a review. Private names of
gunicorn are marked as in `connection.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from webhook import usual_request
from webhook.asgi import Answer, Bridge
from webhook.connection import READ_AHEAD, Connection, Host, Phase
from webhook.usual_request import UsualRequest

_HTTP_1_1 = SimpleNamespace(version=(1, 1))
"""What gunicorn has to know of a request whose answer it writes."""


class DirectConnection(Connection):
    """One client's connection, whose usual requests go to the bridge as they come."""

    app: Bridge

    def __init__(self, worker: Host) -> None:
        super().__init__(worker)
        self._usual: UsualRequest | None = None
        """The request that is coming now, where it is a usual one."""
        self._come: list[bytes] = []
        """All of it that has come; or what has come ahead of an answer that is waited for."""
        self._size = 0
        """Bytes of that."""
        self._waiting: asyncio.Task[None] | None = None
        """What waits for the answer to a usual request that may block."""

    def data_received(self, data: bytes) -> None:
        """Answer a usual request where it has come; all else is gunicorn's, byte by byte."""
        if self._waiting is not None:
            self._keep(data)
            if self._size > READ_AHEAD:
                self.transport.pause_reading()
            return
        request = self._usual
        if request is None:
            if self.phase is not Phase.IDLE or (request := self._begun(data)) is None:
                super().data_received(data)
                return
            self._usual = request
            self.enter(Phase.READING)
        self._keep(data)
        if self._size < request.size:
            return
        self._usual, data = None, self._kept()
        if len(data) > request.size or not self._answer(request, data[request.begins :]):
            self.enter(Phase.IDLE)
            super().data_received(data)

    def _keep(self, data: bytes) -> None:
        self._come.append(data)
        self._size += len(data)

    def _kept(self) -> bytes:
        """Give what was kept, which is not kept any longer."""
        data = b"".join(self._come)
        self._come.clear()
        self._size = 0
        return data

    def _let_go(self) -> None:
        super()._let_go()
        self._usual = None
        self._kept()

    def _begun(self, data: bytes) -> UsualRequest | None:
        """Give the usual request that begins here; None where gunicorn has a part of another.

        While the worker ends, gunicorn is to announce it.
        """
        # private: bytes that the parser holds of a request.
        if self._callback_parser is None or self._callback_parser._buffer or not self._stays():
            return None
        return usual_request.read(data)

    def _stays(self) -> bool:
        # private: whether the client takes its answers.
        return not (self._ends() or self._flow_control.write_paused)

    def _ends(self) -> bool:
        return self.worker.draining or not self.worker.alive

    def _answer(self, request: UsualRequest, body: bytes) -> bool:
        """Answer a whole request, or begin to wait for its answer, and tell whether that was so."""
        if not self._stays():
            return False
        answer = self.app.begin(request.scope(*self._names), body)
        if isinstance(answer, tuple):
            self._write(*answer)
        else:
            self.enter(Phase.ANSWERING)
            self._waiting = self.worker.loop.create_task(self._answer_later(answer))
        return True

    async def _answer_later(self, coming: Coroutine[Any, Any, Answer]) -> None:
        answer = await coming
        self._waiting = None
        if self.transport is None or self.transport.is_closing():
            return  # the client has left, or has waited for too long
        self._write(*answer)
        ahead = self._kept()
        self.transport.resume_reading()
        if ahead and self.phase is Phase.IDLE:
            self.data_received(ahead)

    def _write(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write the answer to a usual request; while the worker ends, it says so."""
        self._send_response_start(status, headers, _HTTP_1_1, self._ends())
        # private: writes the head, which is kept until then, and the body in one piece.
        self._send_body(body)
        self.enter(Phase.IDLE)
        self.worker.served(self)
        if self._said_close:
            self.finish()
