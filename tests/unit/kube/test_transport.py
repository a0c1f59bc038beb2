"""Connections to the API server, tested against a real server, which may misbehave."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.certs import authority
from holdfast.webhook.errors import ResponseTooLargeError
from holdfast.webhook.kube import transport
from holdfast.webhook.kube.transport import (
    TRANSPORT_ERRORS,
    Response,
    Transport,
    read_date,
    status_error,
)
from tests.support.byte_server import OK, PATIENCE, Credentials, Serve, Server

Connect = Callable[..., Transport]
Plain = Callable[["Server"], Transport]


@pytest.fixture
def make_transport() -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(credentials: Credentials, *, size: int = 4) -> Transport:
            client = Transport(credentials, now=time.monotonic, size=size, connect_timeout=PATIENCE)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def plain(make_transport: Connect) -> Plain:
    return lambda server: make_transport(Credentials(f"http://127.0.0.1:{server.port}"))


def get(client: Transport, *, timeout: float = PATIENCE) -> Response:
    return client.send("GET", "/version", headers={"X-A": "b"}, body=None, timeout=timeout)


def test_one_connection_carries_many_requests(serve: Serve, plain: Plain) -> None:
    server = serve([OK, OK, OK])
    client = plain(server)
    start = time.monotonic()
    responses = [get(client) for _ in range(3)]

    assert [(reply.status, reply.reason, reply.data) for reply in responses] == [
        (200, "OK", b"{}")
    ] * 3
    assert all(start <= reply.received <= time.monotonic() for reply in responses)
    assert server.requests[0].startswith(b"GET /version HTTP/1.1\r\n")
    assert b"\r\nX-A: b\r\n" in server.requests[0]


@pytest.mark.parametrize("head", ["Content-Length: 20000", "Transfer-Encoding: chunked"])
def test_oversized_response_is_not_read_to_the_end(
    head: str, serve: Serve, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST", 1_000)
    oversized = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode()
    client = plain(serve([OK, oversized + b"7d0\r\n" + b"x" * 2_000], [OK]))
    get(client)
    with pytest.raises(ResponseTooLargeError):
        get(client)
    assert get(client).data == b"{}"


def test_body_is_sent_with_its_length(serve: Serve, plain: Plain) -> None:
    server = serve([OK])
    client = plain(server)
    client.send("PATCH", "/x", headers={}, body=b"[]", timeout=PATIENCE)

    assert b"\r\nContent-Length: 2\r\n" in server.requests[0]


def test_closed_connection_is_not_reused(serve: Serve, plain: Plain) -> None:
    server = serve([OK], [OK])
    client = plain(server)
    get(client)
    assert server.closed.acquire(timeout=PATIENCE)

    assert get(client).status == 200
    assert len(server.requests) == 2


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
LAST = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param([[CHUNKED, OK]], id="chunked"),
        pytest.param([[LAST], [OK]], id="Connection: close"),
        pytest.param([[b"HTTP/1.1 200 OK\r\n\r\n{}"], [OK]], id="until the connection ends"),
        pytest.param([[OK + OK.replace(b"{}", b"[]")], [OK]], id="extra bytes"),
    ],
)
def test_next_response_is_read_from_its_beginning(
    serve: Serve, plain: Plain, scripts: list[list[bytes]]
) -> None:
    client = plain(serve(*scripts))

    assert [get(client).data, get(client).data] == [b"{}", b"{}"]


def test_interim_response_is_skipped(serve: Serve, plain: Plain) -> None:
    client = plain(serve([b"HTTP/1.1 103 Early Hints\r\nDate: x\r\n\r\n" + OK, OK]))
    first = get(client)

    assert (first.status, first.reason, first.data) == (200, "OK", b"{}")
    assert first.headers.get("date") == "Thu, 24 Dec 2026 17:00:00 GMT"
    assert get(client).status == 200


@pytest.mark.parametrize(
    ("target", "header"),
    [
        pytest.param("/a\r\nX: y", "b", id="target"),
        pytest.param("/a", "b\nX: y", id="header"),
        pytest.param("/a", "b\rX: y", id="carriage return"),
        pytest.param("/a", "\u0142", id="not Latin-1"),
    ],
)
def test_invalid_target_or_header_is_not_sent(
    serve: Serve, plain: Plain, target: str, header: str
) -> None:
    server = serve([OK])
    client = plain(server)
    with pytest.raises(TRANSPORT_ERRORS, match="/a"):
        client.send("GET", target, headers={"X-A": header}, body=None, timeout=PATIENCE)

    assert get(client).status == 200
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", id="partial body"),
        pytest.param(b"what?\r\n\r\n", id="not HTTP"),
    ],
)
def test_truncated_response_is_an_error_and_not_retried(
    serve: Serve, plain: Plain, response: bytes
) -> None:
    server = serve([response], [OK])
    client = plain(server)
    with pytest.raises(TRANSPORT_ERRORS):
        get(client)

    assert len(server.requests) == 1
    assert get(client).status == 200


def test_missing_response_times_out_and_discards_idle_connections(make_transport: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = make_transport(Credentials(f"http://127.0.0.1:{server.getsockname()[1]}"))
        client._idle.extend(client._open(PATIENCE) for _ in range(3))
        with pytest.raises(TimeoutError):
            get(client, timeout=0.05)

        assert not client._idle


@pytest.mark.parametrize("size", [0, 4], ids=["too many", "close"])
def test_idle_connection_is_closed(serve: Serve, make_transport: Connect, size: int) -> None:
    server = serve([OK, OK])
    client = make_transport(Credentials(f"http://127.0.0.1:{server.port}"), size=size)
    get(client)
    if size:
        client.close()

    assert server.closed.acquire(timeout=PATIENCE)


# --- TLS ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """A CA, and a certificate from it that is valid only for `kubernetes.test`."""

    ca: Path
    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    now = datetime.now(UTC)
    ca = authority.new_ca("test", now=now)
    pair = authority.issue(ca, common_name="x", now=now, dns_names=["kubernetes.test"])
    tls_files = Files(tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key")
    tls_files.ca.write_bytes(ca.certificate)
    tls_files.cert.write_bytes(pair.certificate)
    tls_files.key.write_bytes(pair.key)
    return tls_files


def secured(server: Server, files: Files, **changes: object) -> Credentials:
    credentials = Credentials(f"https://127.0.0.1:{server.port}", ssl_ca_cert=str(files.ca))
    for name, value in changes.items():
        setattr(credentials, name, value)
    return credentials


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tls_server_name": "kubernetes.test"}, id="by its server name"),
        pytest.param({"assert_hostname": False}, id="by any name"),
        pytest.param({"verify_ssl": False, "ssl_ca_cert": None}, id="unverified"),
    ],
)
def test_trusted_server_gets_requests(
    serve: Serve, make_transport: Connect, files: Files, changes: dict[str, object]
) -> None:
    server = serve([OK, OK], context=files.context())
    client = make_transport(secured(server, files, **changes))

    assert [get(client).status, get(client).status] == [200, 200]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="wrong name"),
        pytest.param({"tls_server_name": "kubernetes.test", "ssl_ca_cert": None}, id="unknown CA"),
    ],
)
def test_untrusted_server_gets_no_request(
    serve: Serve, make_transport: Connect, files: Files, changes: dict[str, object]
) -> None:
    server = serve([OK], context=files.context())
    with pytest.raises(ssl.SSLCertVerificationError):
        get(make_transport(secured(server, files, **changes)))

    assert server.requests == []


# --- what a response says ----------------------------------------------------------------------


def response(headers: str = "", data: bytes = b"") -> Response:
    fields = {}
    for line in filter(None, headers.split("\n")):
        name, _, value = line.partition(": ")
        fields[name] = value
    return Response(503, "Service Unavailable", fields, data, 0.0)


@pytest.mark.parametrize(
    ("headers", "date"),
    [
        pytest.param("date: Thu, 24 Dec 2026 17:00:00 GMT", 1_798_131_600.0, id="valid"),
        pytest.param("date: soon", None, id="invalid"),
        pytest.param("date: Fri, 31 Dec 9999 23:59:59 GMT", None, id="too late for certificates"),
        pytest.param(
            "date: Thu, 24 Dec 2026 17:00:00 +99999999999999999999", None, id="invalid zone"
        ),
        pytest.param("", None, id="missing"),
    ],
)
def test_date_header(headers: str, date: float | None) -> None:
    assert read_date(response(headers).headers) == date


@pytest.mark.parametrize(
    ("headers", "data", "text", "after"),
    [
        pytest.param(
            "retry-after: 3", b'{"message": "too\\nbusy"}', "HTTP 503: too busy", 3.0, id="a Status"
        ),
        pytest.param("retry-after: x", b"<p>busy", "HTTP 503: <p>busy", None, id="HTML"),
        pytest.param("", b"", "HTTP 503: Service Unavailable", None, id="empty"),
        pytest.param(
            "",
            b'{"message": "no", "details": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
            "HTTP 503: no",
            None,
            id="deeply nested",
        ),
        pytest.param(
            "",
            b'{"message": "no' + b"-" * 1_000_000 + b'yes"}',
            f"HTTP 503: no{'-' * 498}…{'-' * 497}yes",
            None,
            id="long message",
        ),
    ],
)
def test_status_error(headers: str, data: bytes, text: str, after: float | None) -> None:
    error = status_error(response(headers, data))

    assert (str(error), error.status, error.retry_after) == (text, 503, after)
