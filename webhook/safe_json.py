"""Decode JSON from the API server, whose users can nest it as deeply as they like. Pure.

The decoder recurses, even through fields that it skips, and raises RecursionError at about 1,000
levels. The API server accepts 10,000, in `managedFields` of any object. Without this module, one
such object would make a whole response unreadable.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

DEPTH_LIMIT = 150 + secrets.randbelow(100)
"""Levels kept of a text that is nested too deeply; all fields that Holdfast reads have fewer.

Random, so attackers cannot place many brackets at this level, where each is processed separately.
"""

_LARGEST, _SMALLEST = 2_048, 64
"""Bytes whose brackets are counted together; fewer near the depth limit."""
_BRACKETS = b"{}[]"
_BRACKET = re.compile(rb"[{}\[\]]")
_OTHERS = bytes({*range(256)} - {*_BRACKETS, *b'"'})
_BLANK = bytes.maketrans(_BRACKETS, b"    ")

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
"""For objects of any kind."""

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decode a text, with null for parts nested too deeply.

    Raises msgspec.DecodeError or UnicodeDecodeError.
    """
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(b"".join(_shallow(bytes(body))))


def _shallow(body: bytes) -> Iterator[bytes]:
    kept_to = 0
    edges = _edges(body)
    for begin in edges:
        yield body[kept_to:begin]
        yield b"null"
        end = next(edges, None)
        if end is None:
            return  # A truncated text stays invalid: the rest is missing anyway.
        kept_to = end
    yield body[kept_to:]


def _edges(body: bytes) -> Iterator[int]:
    """Yield the start and end of each part that is nested too deeply, in turn."""
    plain = body.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    offset, size, depth, in_string = 0, _LARGEST, 0, False
    while offset < len(plain):
        chunk = plain[offset : offset + size]
        brackets, ends_in_string = _brackets(chunk, in_string=in_string)
        opened = brackets.count(b"{") + brackets.count(b"[")
        closed = len(brackets) - opened
        if depth - closed <= DEPTH_LIMIT < depth + opened:
            if size > _SMALLEST:
                size //= 2
                continue
            for edge in _edges_one_by_one(_without_strings(chunk, in_string=in_string), depth):
                yield offset + edge
        offset, depth, in_string = offset + size, depth + opened - closed, ends_in_string
        size = min(size * 2, _LARGEST)


def _edges_one_by_one(text: bytes, depth: int) -> Iterator[int]:
    for bracket in _BRACKET.finditer(text):
        if bracket[0] in b"{[":
            if depth == DEPTH_LIMIT:
                yield bracket.start()
            depth += 1
        else:
            depth -= 1
            if depth == DEPTH_LIMIT:
                yield bracket.end()


def _brackets(chunk: bytes, *, in_string: bool) -> tuple[bytes, bool]:
    """Return the brackets outside of strings, and whether a string continues after the chunk."""
    # Adjacent quotes have no bracket between them, whether the first opens or closes a string.
    parts = chunk.translate(None, _OTHERS).replace(b'""', b"").split(b'"')
    return b"".join(parts[in_string::2]), in_string ^ (len(parts) % 2 == 0)


def _without_strings(chunk: bytes, *, in_string: bool) -> bytes:
    """Return the chunk with brackets in strings replaced by spaces."""
    parts = chunk.split(b'"')
    strings = slice(not in_string, None, 2)
    parts[strings] = [part.translate(_BLANK) for part in parts[strings]]
    return b'"'.join(parts)
