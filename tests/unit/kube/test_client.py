"""The client of the API server: redirects, size limits, watches, and renewal of tokens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException

from holdfast.webhook.errors import ApiStatusError, ResponseTooLargeError, UnreachableError
from holdfast.webhook.kube import client, transport
from holdfast.webhook.kube.api import JSON_PATCH
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.kube.kubeconfig import Access
from tests.support.byte_server import OK, Serve, Server
from tests.support.kubeconfigs import write_kubeconfig

UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
STATUSES = {301: "Moved Permanently", 302: "Found", 307: "Temporary", 308: "Permanent"}


@pytest.fixture
def redirect_target(serve: Serve) -> Server:
    return serve([OK])


@pytest.fixture(params=["direct", "by proxy"])
def cluster(
    request: pytest.FixtureRequest, serve: Serve, redirect_target: Server, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that answers once, with a redirect."""
    status = request.node.callspec.params["status"]
    redirect = f"Location: http://127.0.0.1:{redirect_target.port}/api\r\nContent-Length: 0\r\n\r\n"
    server = serve([f"HTTP/1.1 {status} {STATUSES[status]}\r\n{redirect}".encode()])
    with closing(connect(server, tmp_path, by_proxy="proxy" in request.param)) as connected:
        yield connected
    assert len(server.requests) == 1


def connect(server: Server, folder: Path, *, by_proxy: bool) -> Cluster:
    address = f"http://127.0.0.1:{server.port}"
    proxied = {"server": "http://cluster.example", "proxy-url": address}
    cluster = {"name": "c", "cluster": proxied if by_proxy else {"server": address}}
    return Cluster.connect(write_kubeconfig(folder / "kubeconfig", clusters=[cluster]))


# Following a redirect would send the token to another server.
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda api: api.request("GET", "/version"), id="GET"),
        pytest.param(
            lambda api: api.request("PATCH", "/x", body=b"[]", content_type=JSON_PATCH), id="PATCH"
        ),
        pytest.param(lambda api: list(api.lines("/x", query={}, timeout=5.0)), id="watch"),
    ],
)
def test_redirect_is_an_error_and_is_not_followed(
    cluster: Cluster, redirect_target: Server, status: int, call: Callable[[Cluster], object]
) -> None:
    with pytest.raises(ApiStatusError, match=rf"^HTTP {status}: ") as caught:
        call(cluster)

    assert caught.value.status == status
    assert redirect_target.requests == []


@pytest.mark.parametrize("by_proxy", [False, True])
def test_oversized_response_is_an_error(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_proxy: bool
) -> None:
    for module in (client, transport):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    server = serve([_response(b"x" * (1 << 20))], [_response(b"x" * (1 << 21))])
    with closing(connect(server, tmp_path, by_proxy=by_proxy)) as connected:
        assert len(connected.request("GET", "/x")) == 1 << 20
        connected.close()
        with pytest.raises(ResponseTooLargeError, match=r"^the response has more than 1 MiB$"):
            connected.request("GET", "/x")


def test_watch_lines_are_assembled_from_chunks(serve: Serve, tmp_path: Path) -> None:
    lines = [b"a" * 200_000, b"", b"b", b"c" * 70_000, b"d"]
    server = serve([_response(b"\n".join([*lines, b"cut off"]))])
    with closing(connect(server, tmp_path, by_proxy=False)) as connected:
        assert list(connected.lines("/x", query={}, timeout=5.0)) == lines


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Token:
    """The token of a connection to a server, which renewal changes from `old` to `new`."""

    def __init__(self, server: Server) -> None:
        self.configuration = Configuration()
        self.configuration.host = f"http://127.0.0.1:{server.port}"
        self.problem: Exception | None = None
        self.reads = 0
        self.renew()
        self.configuration.refresh_api_key_hook = self.read  # type: ignore[assignment]

    def connect(self, **options: Any) -> closing[Cluster]:
        return closing(Cluster(ApiClient(self.configuration), Access(self.renew), **options))

    def renew(self) -> None:
        keys = self.configuration.api_key
        keys["BearerToken"] = f"bearer {'new' if keys else 'old'}"

    def read(self, _configuration: Configuration) -> None:
        self.reads += 1
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def token(serve: Serve) -> Iterator[tuple[Server, Token, Cluster]]:
    server = serve([UNAUTHORIZED, OK])
    source = Token(server)
    with source.connect() as connected:
        yield server, source, connected


def test_unauthorized_response_renews_the_token(token: tuple[Server, Token, Cluster]) -> None:
    server, _, connected = token
    with pytest.raises(ApiStatusError, match=r"^HTTP 401: ") as caught:
        connected.request("GET", "/version")
    connected.request("GET", "/version")

    assert caught.value.status == 401
    assert [b"authorization: bearer old" in server.requests[0]] == [True]
    assert [b"authorization: bearer new" in server.requests[1]] == [True]


def test_unauthorized_patch_renews_the_token_for_the_next_request(serve: Serve) -> None:
    server, outcomes, stop = serve([OK, UNAUTHORIZED, OK]), list[object](), threading.Event()
    stop.set()
    with Token(server).connect() as connected:
        connected.request("GET", "/version")
        assert connected.begin("/x", b"[]", timeout=5.0, on_end=outcomes.append)
        connected.receive(stop)
        assert not connected.begin("/x", b"[]", timeout=5.0, on_end=outcomes.append)
        connected.request("PATCH", "/x", body=b"[]", content_type=JSON_PATCH)

    assert "HTTP 401" in str(outcomes[0])
    has_new_token = [b"authorization: bearer new" in request for request in server.requests]
    assert has_new_token == [False, False, True]


@pytest.mark.parametrize("problem", [OSError(24, "Too many open files"), ConfigException("empty")])
def test_unreadable_token_fails_the_request(
    token: tuple[Server, Token, Cluster], problem: Exception
) -> None:
    server, source, connected = token
    source.problem = problem
    with pytest.raises(
        UnreachableError, match=r"^http://127.0.0.1:[0-9]+ cannot be asked: no credentials: "
    ):
        connected.request("GET", "/version")
    assert server.requests == []


def test_token_is_read_at_most_once_a_second(serve: Serve) -> None:
    server, now = serve([OK] * 4), 100.0
    source = Token(server)
    with source.connect(now=lambda: now) as connected:
        connected.request("GET", "/version")
        now = 100.9
        connected.request("GET", "/version")
        assert source.reads == 1
        source.renew()
        now = 101.1
        connected.request("GET", "/version")

    assert source.reads == 2
    has_new_token = [b"authorization: bearer new" in request for request in server.requests]
    assert has_new_token == [False, False, True]


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        pytest.param(OK, "None", id="written"),
        pytest.param(
            b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 0\r\n\r\n",
            "HTTP 422: Unprocessable Entity",
            id="rejected",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n", "does not answer", id="cut off"),
    ],
)
def test_patch_begins_on_an_idle_connection(serve: Serve, response: bytes, problem: str) -> None:
    server, outcomes, stop = serve([OK, response]), list[object](), threading.Event()
    stop.set()
    with Token(server).connect() as cluster:
        assert not cluster.begin("/x", b"[]", timeout=5.0, on_end=outcomes.append)
        cluster.request("GET", "/version")
        assert cluster.begin("/x", b"[]", timeout=5.0, on_end=outcomes.append)
        cluster.receive(stop)

    assert problem in str(outcomes[0])
    assert server.requests[1].startswith(b"PATCH /x HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json-patch+json\r\n" in server.requests[1]
