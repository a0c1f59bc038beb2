"""gunicorn's HTTP parser, with the usual head of a request read in one go."""

from __future__ import annotations

import re
import sys

from gunicorn.asgi.parser import (  # type: ignore[import-untyped]
    InvalidChunkSize,
    InvalidHeader,
    PythonProtocol,
)

USUAL_HEAD = 4096
"""Bytes; a longer head is read line by line, as it comes."""
LENGTH_DIGITS: int = sys.int_info.str_digits_check_threshold
"""Digits of a length: as many as int() reads however Python is set up. gunicorn's parser would
raise a bare ValueError at 4,301."""
LARGEST_CHUNK = 1 << 63
"""Bytes that a chunk may announce; whoever announces more does not mean to send them."""

_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_HEAD = re.compile(rb"(?:" + _NAME + rb":" + _VALUE + rb"\r\n)+\r\n").fullmatch
_FIELDS = re.compile(rb"(" + _NAME + rb"):(" + _VALUE + rb")\r\n").findall
_END = b"\r\n\r\n"


class RequestParser(PythonProtocol):  # type: ignore[misc]
    """gunicorn's parser in Python, which looks at names and values byte by byte otherwise.

    A head that is there as a whole, and in which every line is a field by RFC 9110, section 5, is
    taken apart by a regular expression. All else is left to gunicorn: every error, every limit, and
    what the fields mean together; but a length that is longer than anybody means is refused here.
    Its parser in C is no choice: it takes an unfinished line of any length into memory, and the
    newest one that is published accepts bare line feeds and folded fields.
    """

    def _parse_headers(self) -> bool:
        # private: reads the fields, and has them examined as a whole.
        buffer: bytearray = self._buffer
        end = -1 if self._header_count else buffer.find(_END, 0, USUAL_HEAD)
        head = bytes(buffer[: end + len(_END)])
        if end < 0 or _HEAD(head) is None:
            return bool(super()._parse_headers())
        fields = [(name.lower(), value.strip(b" \t")) for name, value in _FIELDS(head)]
        if len(fields) > self._limit_request_fields:
            return bool(super()._parse_headers())
        del buffer[: len(head)]
        self._headers_list, self._scan_from = fields, 0
        self._header_count: int = len(fields)  # fields behind the body count on from there
        self._finalize_headers()
        return True

    def _finalize_headers(self) -> None:
        # private: examines all fields, and reads the length.
        for name, value in self._headers_list:
            if len(value) > LENGTH_DIGITS and name == b"content-length":
                raise InvalidHeader("Invalid Content-Length value")
        super()._finalize_headers()

    def _parse_chunked_body(self) -> bool:
        # private: reads chunks as far as they have come.
        going_on = bool(super()._parse_chunked_body())
        if self._chunk_size > LARGEST_CHUNK:
            raise InvalidChunkSize("Invalid chunk size")
        return going_on
