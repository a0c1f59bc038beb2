"""The requests that API servers send, recognised whole: all else is gunicorn's to read. Pure.

Nothing is judged here. What has another form than this one, down to the last byte, is no usual
request: a field that is named twice or not known, a length that is missing or in another notation.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

LONGEST_BODY = 64 * 1024
"""Bytes of a body that is waited for as a whole; an application takes longer ones as they come."""
LONGEST_HEAD = 1024
"""Bytes; an API server's has about three hundred."""
REMEMBERED = 256
"""Heads: those of an API server differ by the body's length alone."""

_NAMES = (
    rb"Host|User-Agent|Content-Length|Accept|Content-Type|Accept-Encoding"
    rb"|Traceparent|Tracestate|Baggage"
)
"""What Go's client sends, and the API server's tracing. None of them says anything of how long a
request is, or what becomes of its connection, but for the length itself."""
_HEAD = re.compile(
    rb"POST (/[a-z]+)(?:\?([0-9A-Za-z=&]*))? HTTP/1\.1\r\n"
    rb"((?:(?i:%b): [\x20-\x7e]*\r\n)+)\r\n" % _NAMES
).fullmatch
_FIELDS = re.compile(rb"([^:]+): ([^\r]*)\r\n").findall
_LENGTH = re.compile(rb"[1-9][0-9]{0,6}").fullmatch
_END = b"\r\n\r\n"


class UsualRequest(NamedTuple):
    """A POST's head: what it asks, where its body begins, and how many bytes that has."""

    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case, each once. Whoever sends the same head has the same."""
    begins: int
    length: int

    @property
    def size(self) -> int:
        """How many bytes it has in all."""
        return self.begins + self.length

    def scope(self, server: Any, client: Any) -> dict[str, Any]:
        """Describe it as an ASGI server does; the addresses are those of its connection."""
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "https",
            "path": self.path,
            "query_string": self.query,
            "headers": self.headers,
            "server": server,
            "client": client,
        }


def read(data: bytes) -> UsualRequest | None:
    """Read the head that the data begins with; None where it is not there, whole and usual."""
    end = data.find(_END, 0, LONGEST_HEAD)
    return None if end < 0 else _parsed(data[: end + len(_END)])


@lru_cache(REMEMBERED)
def _parsed(head: bytes) -> UsualRequest | None:
    found = _HEAD(head)
    if found is None:
        return None
    path, query, lines = found.groups(b"")
    headers = tuple((name.lower(), value.strip(b" ")) for name, value in _FIELDS(lines))
    known = dict(headers)
    length = known.get(b"content-length", b"")
    if len(known) != len(headers) or b"host" not in known or _LENGTH(length) is None:
        return None
    number = int(length)
    if number > LONGEST_BODY:
        return None
    return UsualRequest(path.decode(), query, headers, len(head), number)
