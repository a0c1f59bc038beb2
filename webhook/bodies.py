"""Reading the bodies of requests: within a limit each, and within one for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

BODY_LIMIT = 7 * 1024 * 1024
"""Bytes: an object of etcd's 1.5 MiB, old and new, their envelope, and room, as in Go's kit."""
BODIES_AT_ONCE = 8
"""How many bodies of the greatest size may be in the reading at the same time."""

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]


class BodyRefusedError(Exception):
    """A body is not read to its end; `status` is the HTTP status that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True, eq=False)
class _Reading:
    """A body as far as it has come."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0


class Bodies:
    """All bodies that are being read; `limit` is the bytes of one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._readings: dict[_Reading, None] = {}
        """The bodies of which parts have come, the oldest first."""
        self._read = 0
        """Bytes of all of them."""

    async def read(self, announced: str, receive: Receive) -> bytes | None:
        """Read the whole body; None when the client left before its end.

        `announced` is its Content-Length. Raises BodyRefusedError.
        """
        if announced.isdecimal() and int(announced) > self._limit:
            raise self.too_large()
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            return await self._long_body(body, receive)
        if len(body) > self._limit:
            raise self.too_large()
        return body

    async def _long_body(self, first: bytes, receive: Receive) -> bytes | None:
        reading = _Reading()
        self._readings[reading] = None
        chunk, more = first, True
        try:
            while True:
                self._take(reading, chunk)
                if not more:
                    return b"".join(reading.chunks)
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
        finally:
            self._let_go(reading)

    def _take(self, reading: _Reading, chunk: bytes) -> None:
        """Keep a part of a body; where there is too much of all of them, the oldest makes room.

        Whoever sends without a pause is soon done: it is those that stall who are given up.
        """
        if reading.size + len(chunk) > self._limit:
            raise self.too_large()
        if reading in self._readings:
            reading.chunks.append(chunk)
            reading.size += len(chunk)
            self._read += len(chunk)
            while self._read > BODIES_AT_ONCE * self._limit:
                self._let_go(next(iter(self._readings)))
        if reading not in self._readings:
            raise BodyRefusedError(429, "too many large bodies at once; try again")

    def _let_go(self, reading: _Reading) -> None:
        """Free what has been read of a body; one that is given up learns of it at its next part."""
        if reading in self._readings:
            del self._readings[reading]
            self._read -= reading.size
            reading.chunks.clear()

    def too_large(self) -> BodyRefusedError:
        """Say that a body is longer than one may be."""
        return BodyRefusedError(413, f"the body is larger than {self._limit} bytes")
