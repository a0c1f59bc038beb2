"""Invalid requests, and requests whose end two parsers could place differently."""

HIDDEN = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request(*headers: bytes, line: bytes = b"POST /mutate HTTP/1.1", body: bytes = b"{}") -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers, b"", body])


SHAPES = {
    "both lengths": request(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "two lengths": request(b"Content-Length: 2", b"Content-Length: 200"),
    "a list of lengths": request(b"Content-Length: 2, 200"),
    "a signed length": request(b"Content-Length: +2"),
    "a negative length": request(b"Content-Length: -2"),
    "a hexadecimal length": request(b"Content-Length: 0x2"),
    "a length with a blank": request(b"Content-Length: 2 2"),
    "digits of another script": request("Content-Length: \u0662".encode()),
    "a blank before the colon": request(b"Content-Length : 2"),
    "a blank before the colon of a transfer coding": request(
        b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"
    ),
    "a blank before the colon, and a length": request(
        b"Content-Length: 2", b"Transfer-Encoding : chunked"
    ),
    "a folded header": request(b"Content-Length:", b" 2"),
    "an unknown coding": request(b"Transfer-Encoding: xchunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
    "chunked twice": request(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked not last": request(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "a coding after a control character": request(
        b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"
    ),
    "a chunk size with 0x": request(CHUNKED[:-2], body=b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a signed chunk size": request(CHUNKED[:-2], body=b"+2\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than its size": request(CHUNKED[:-2], body=b"1\r\n{}\r\n0\r\n\r\n"),
    "NUL in a header": request(b"Content-Length: 2", b"X-A: a\x00b"),
    "a bare line feed in a header": request(b"Content-Length: 2", b"X-A: a\nContent-Length: 200"),
    "chunked in HTTP/1.0": request(
        CHUNKED[:-2], line=b"POST /mutate HTTP/1.0", body=b"2\r\n{}\r\n0\r\n\r\n"
    ),
    "chunked in two lines": request(CHUNKED[:-2], CHUNKED[:-2], body=b"2\r\n{}\r\n0\r\n\r\n"),
    "lines that end with a line feed only": request(b"Content-Length: 2").replace(b"\r", b""),
    "a bare line feed after a chunk size": request(CHUNKED[:-2], body=b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
    "a bare carriage return after a chunk size": request(
        CHUNKED[:-2], body=b"2;a\rb\r\n{}\r\n0\r\n\r\n"
    ),
    "two hosts": request(b"Host: y", b"Content-Length: 2"),
    "no version": request(b"Content-Length: 2", line=b"POST /mutate"),
    "another version": request(b"Content-Length: 2", line=b"POST /mutate HTTP/9.9"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a long line": request(b"Content-Length: 2", line=b"POST /%s HTTP/1.1" % (b"x" * 9_000)),
    "a long field": request(b"Content-Length: 2", b"X-A: " + b"x" * 9_000),
    "many fields": request(b"Content-Length: 2", *[b"X-A: y"] * 70),
    "many trailers": request(CHUNKED[:-2], body=b"0\r\n" + b"X-A: y\r\n" * 70 + b"\r\n"),
    "a trailer with a length": request(CHUNKED[:-2], body=b"0\r\nContent-Length: 2\r\n\r\n"),
    "control and right-to-left characters": request(
        "X-\u202e\x1b[2J: x\n2026-01-01 00:00:00,000 ERROR holdfast: forged".encode()
    ),
    "a method with control characters": request(line="\u202eERROR forged\x1b[2J HTTP/1.1".encode()),
    "a method with a parenthesis": request(b"Content-Length: 2", line=b"P(ST /mutate HTTP/1.1"),
}

OURS = {
    "a length of 5,000 digits": request(b"Content-Length: " + b"9" * 5_000),
    "a length of 5,000 zeros": request(b"Content-Length: " + b"0" * 5_000 + b"2"),
    "a length of 5,000 digits after a long field": request(
        b"X-A: " + b"x" * 5_000, b"Content-Length: " + b"9" * 5_000
    ),
    "a chunk of 8,000 hexadecimal digits": request(
        CHUNKED[:-2], body=b"f" * 8_000 + b"\r\n{}\r\n0\r\n\r\n"
    ),
}
"""Inputs that gunicorn's parser accepts, or fails to handle."""

_BEGUN = b"POST /mutate HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\n"
ENDLESS = {
    "a line": (b"POST /", b"x" * 1_000),
    "a field": (b"POST /mutate HTTP/1.1\r\nX-A: ", b"x" * 1_000),
    "fields": (b"POST /mutate HTTP/1.1\r\n", b"X-A: %s\r\n" % (b"x" * 1_000)),
    "a chunk size": (_BEGUN, b"0" * 1_000),
    "a chunk extension": (_BEGUN + b"1", b";a=" + b"x" * 1_000),
    "chunk extensions": (_BEGUN, b"1;a=%s\r\n \r\n" % (b"x" * 8_000)),
    "a trailer": (_BEGUN + b"0\r\nX-A: ", b"x" * 1_000),
    "trailers": (_BEGUN + b"0\r\n", b"X-A: %s\r\n" % (b"x" * 1_000)),
}
"""The start of requests, and what a client can repeat after it."""
