"""Usual requests are recognised whole; what deviates by anything is left to gunicorn's parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import reviews
from tests.server.parsing import check_usual
from tests.server.shapes import OURS, SHAPES
from webhook import usual_request

REQUEST = reviews.request(b"{}")
HEAD = REQUEST.removesuffix(b"{}")


def test_what_an_api_server_sends_is_usual() -> None:
    found = usual_request.read(REQUEST)

    assert found is not None
    assert (found.path, found.query) == ("/mutate", b"timeout=3s")
    assert found.headers == (
        (b"host", b"127.0.0.1:9443"),
        (b"user-agent", b"kube-apiserver-admission"),
        (b"accept", b"application/json, */*"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"accept-encoding", b"gzip"),
    )
    assert (found.begins, found.length, found.size) == (len(HEAD), 2, len(REQUEST))


def test_scope_names_what_the_bridge_reads() -> None:
    found = usual_request.read(REQUEST)

    assert found is not None
    scope = found.scope(("127.0.0.1", 9443), ("127.0.0.1", 5))
    assert (scope["method"], scope["path"], scope["scheme"]) == ("POST", "/mutate", "https")
    assert (scope["server"], scope["client"]) == (("127.0.0.1", 9443), ("127.0.0.1", 5))


def test_body_need_not_be_there() -> None:
    assert usual_request.read(HEAD) == usual_request.read(REQUEST)


def changed(old: bytes, new: bytes) -> bytes:
    assert old in REQUEST
    return REQUEST.replace(old, new)


UNUSUAL = {
    "nothing": b"",
    "half a head": HEAD[:-1],
    "another method": changed(b"POST", b"GET"),
    "a method in lower case": changed(b"POST", b"post"),
    "another version": changed(b"HTTP/1.1", b"HTTP/1.0"),
    "a version in lower case": changed(b"HTTP/1.1", b"http/1.1"),
    "an empty line ahead": b"\r\n" + REQUEST,
    "a path with signs": changed(b"/mutate", b"/%6dutate"),
    "two slashes": changed(b"/mutate", b"//mutate"),
    "a query with signs": changed(b"?timeout=3s", b"?timeout=%33s"),
    "a whole address": changed(b"/mutate", b"https://x/mutate"),
    "an unknown field": changed(b"Accept:", b"X-Accept:"),
    "a coding": changed(b"Accept:", b"Transfer-Encoding: chunked\r\nAccept:"),
    "a coding of the content": changed(b"Accept:", b"Content-Encoding: gzip\r\nAccept:"),
    "a connection that ends": changed(b"Accept:", b"Connection: close\r\nAccept:"),
    "an expectation": changed(b"Accept:", b"Expect: 100-continue\r\nAccept:"),
    "an upgrade": changed(b"Accept:", b"Upgrade: h2c\r\nAccept:"),
    "a field twice": changed(b"Accept:", b"Host: y\r\nAccept:"),
    "a field twice, in another case": changed(b"Accept:", b"content-length: 3\r\nAccept:"),
    "no host": changed(b"Host: 127.0.0.1:9443\r\n", b""),
    "no length": changed(b"Content-Length: 2\r\n", b""),
    "a length of zero": changed(b"Length: 2", b"Length: 0"),
    "a length with a zero ahead": changed(b"Length: 2", b"Length: 02"),
    "a signed length": changed(b"Length: 2", b"Length: +2"),
    "a length with a blank": changed(b"Length: 2", b"Length: 2 2"),
    "no blank behind the colon": changed(b"Length: 2", b"Length:2"),
    "a blank ahead of the colon": changed(b"Content-Length: 2", b"Content-Length : 2"),
    "a tab": changed(b"Length: 2", b"Length: \t2"),
    "a folded field": changed(b"application/json, */*", b"application/json,\r\n */*"),
    "a bare line feed": changed(b"gzip\r\n", b"gzip\n"),
    "NUL": changed(b"gzip", b"gz\x00ip"),
    "others' letters": changed(b"gzip", "gz\u0131p".encode()),
    "a long body": changed(b"Length: 2", b"Length: %d" % (usual_request.LONGEST_BODY + 1)),
    "a long head": changed(b"gzip", b"g" * usual_request.LONGEST_HEAD),
}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL)
def test_what_deviates_is_not_usual(data: bytes) -> None:
    assert usual_request.read(data) is None


@pytest.mark.parametrize("data", (SHAPES | OURS).values(), ids=SHAPES | OURS)
def test_what_is_no_request_is_not_usual(data: bytes) -> None:
    assert usual_request.read(data) is None


@pytest.mark.parametrize("field", [b"Traceparent: 00-1-2-01", b"TRACESTATE: a=b", b"baggage: c=d"])
def test_tracing_is_usual(field: bytes) -> None:
    assert usual_request.read(changed(b"Accept:", field + b"\r\nAccept:")) is not None


@pytest.mark.parametrize("target", [b"/mutate", b"/mutate?", b"/validate?timeout=3s", b"/x?a=&b"])
def test_target_is_read_as_gunicorn_does(target: bytes) -> None:
    request = changed(b"/mutate?timeout=3s", target)

    assert usual_request.read(request) is not None
    check_usual(request)


MORE = [
    *(b"\r\n", b"\n", b" ", b"\t", b":", b"Host: y\r\n", b"{}", b"P"),
    *(b"Content-Length: 3\r\n", b"content-length: 2\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Traceparent: 00-1-2-01\r\n", b"Accept-Encoding:   a  \r\n"),
]
PIECES = st.sampled_from([*HEAD.splitlines(keepends=True), *MORE])


def spoilt(pieces: list[bytes], at: int, more: bytes) -> bytes:
    whole = b"".join(pieces)
    return whole[: at % (len(whole) + 1)] + more + whole[at % (len(whole) + 1) :]


LINES = st.permutations(HEAD.splitlines(keepends=True)[1:-1]).map(
    lambda lines: [HEAD.splitlines(keepends=True)[0], *lines, b"\r\n"]
)


@given(
    st.builds(
        spoilt,
        LINES | st.lists(PIECES, min_size=1, max_size=12),
        st.integers(min_value=0, max_value=500),
        st.just(b"") | PIECES | st.binary(max_size=3),
    )
)
def test_what_is_usual_is_to_gunicorn_the_very_same_request(head: bytes) -> None:
    check_usual(head)
