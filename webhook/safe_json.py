"""Decode JSON of the API server, which may be nested as deeply as its users like. Pure.

The decoder recurses, also through fields that it skips, and raises RecursionError at some 1,000
levels. The API server accepts 10,000, in `managedFields` of any object: without this, one such
object would keep everything from being read.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

DEPTH_LIMIT = 200
"""Levels that are kept where a text has too many; all fields that Holdfast reads have fewer."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|[{}\[\]]', re.DOTALL)

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
"""For objects of any kind."""

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decode a text, with null for what is nested too deeply. Raises msgspec.DecodeError."""
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(b"".join(_shallow(bytes(body))))


def _shallow(body: bytes) -> Iterator[bytes]:
    depth = kept_to = 0
    for token in _TOKEN.finditer(body):
        if token[0] in b"{[":
            if depth == DEPTH_LIMIT:
                yield body[kept_to : token.start()]
                yield b"null"
            depth += 1
        elif token[0] in b"}]":
            depth -= 1
            if depth == DEPTH_LIMIT:
                kept_to = token.end()
    # A text that ends early stays invalid: what follows the cut is missing anyway.
    if depth <= DEPTH_LIMIT:
        yield body[kept_to:]
