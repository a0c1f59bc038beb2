"""What a parser of requests makes of some bytes, in the pieces in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gunicorn.asgi.parser import ParseError, PythonProtocol  # type: ignore[import-untyped]

from webhook import usual_request

LIMITS: dict[str, Any] = {
    "limit_request_line": 4094,
    "limit_request_fields": 64,
    "limit_request_field_size": 8190,
    "permit_unconventional_http_method": False,
    "permit_unconventional_http_version": False,
}


@dataclass
class Found:
    """What a parser makes of some bytes."""

    head: tuple[Any, ...] = ()
    body: bytes = b""
    complete: bool = False
    error: str = ""
    is_answered: bool = True
    """Whether the error, if there is one, is of a kind that a connection answers."""
    behind: bytes = b""


def read(kind: type[Any], pieces: list[bytes]) -> Found:
    """Read one request; what lies behind it is another's."""
    found = Found()

    def on_headers_complete() -> bool:
        found.head = (
            parser.method,
            parser.path,
            parser.http_version,
            tuple(parser.headers),
            parser.content_length,
            parser.is_chunked,
            parser.should_keep_alive,
        )
        return False

    def on_body(chunk: bytes) -> None:
        found.body += chunk

    parser = kind(on_headers_complete=on_headers_complete, on_body=on_body, **LIMITS)
    try:
        for piece in pieces:
            parser.feed(piece)
    except Exception as error:  # noqa: BLE001 - whatever the one raises, the other has to
        found.error = f"{type(error).__name__}: {error}"
        found.is_answered = isinstance(error, ParseError)
    found.complete = parser.is_complete
    found.behind = parser.remaining()
    return found


def check_usual(data: bytes) -> None:
    """What is a usual request to us is the very same request to gunicorn's own parser."""
    found = usual_request.read(data)
    if found is None:
        return
    body = b"x" * found.length
    theirs = read(PythonProtocol, [data[: found.begins] + body])

    framing = (found.length, False, True)  # its length, not chunked, kept alive
    assert theirs.complete, theirs.error
    method, target, *rest = theirs.head
    path, _, query = target.partition(b"?")  # an application is told no more of it than these two
    assert (method, path, query) == (b"POST", found.path.encode(), found.query)
    assert rest == [(1, 1), found.headers, *framing]
    assert theirs.body == body


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(at, len(whole)) for at in cuts), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges) if start < end]
