import itertools
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.certs import authority
from holdfast.webhook.registration import replicas
from holdfast.webhook.registration.replicas import Service, ask_all, rolled_out
from holdfast.webhook.server import tls
from holdfast.webhook.telemetry.pages import HealthServer
from tests.support.byte_server import Serve, Server
from tests.support.fakes import FakeApi

SLICES = "/apis/discovery.k8s.io/v1/namespaces/system/endpointslices"
DEPLOYMENT = "/apis/apps/v1/namespaces/system/deployments/holdfast-webhook"
SERVICE = Service("system")


def replica(folder: Path, serve: Serve) -> tuple[Server, authority.Certificate]:
    """Serve a digest over TLS, and return the server and its certificate."""
    now = datetime.now(UTC)
    pair = authority.issue(authority.new_ca("ca", now=now), common_name="r", now=now)
    certfile, keyfile = folder / "tls.crt", folder / "tls.key"
    certfile.write_bytes(pair.certificate)
    keyfile.write_bytes(pair.key)
    context = tls.new_context()
    tls.load_pair(context, certfile, keyfile)
    server = serve([b"HTTP/1.1 200 OK\r\n\r\nabc\n"], context=context)
    return server, authority.read(pair.certificate)


def slices(port: int | None, *conditions: dict[str, bool], address: str = "127.0.0.1") -> FakeApi:
    api = FakeApi()
    endpoints = [{"addresses": [address], "conditions": condition} for condition in conditions]
    ports = [] if port is None else [{"port": port}]
    api.put(SLICES, {"items": [{"endpoints": endpoints, "ports": ports}]})
    return api


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "fd00:10:244::1", "fd00:10:244::1a"])
def test_certificate_and_digest_of_each_replica_are_read(
    address: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection
    monkeypatch.setattr(
        socket,
        "create_connection",
        lambda endpoint, timeout: connect(("127.0.0.1", endpoint[1]), timeout),
    )
    server, certificate = replica(tmp_path, serve)
    (result,) = ask_all(slices(server.port, {"ready": True}, address=address), SERVICE)
    assert result == replicas.Replica(address, True, certificate, "abc")
    assert server.requests[0].startswith(b"GET /conditions ")


def digest_from(*parts: bytes) -> str | None:
    """Read a digest from a server that sends a part every 0.5 s and repeats the last one."""
    reads = itertools.count()

    class Peer(socket.socket):
        def sendall(self, *_: object) -> None:
            """Accept the request."""

        def recv(self, *_: object) -> bytes:
            return parts[min(next(reads), len(parts) - 1)]

    seconds = itertools.count()
    with Peer() as peer:
        return replicas.read_digest(peer, lambda: next(seconds) / 2)


@pytest.mark.parametrize(
    ("parts", "digest"),
    [
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nab", b"c\n", b""], "abc", id="two parts"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n"], None, id="no final status"),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nab", b"c"], None, id="endless body"),
        pytest.param([b"HTTP/1.1 200 OK\r\nx: " + b"x" * 9_999], None, id="endless head"),
        pytest.param([b"HTTP/1.1 404 no\r\n\r\nabc", b""], None, id="another status"),
        pytest.param([b"200", b""], None, id="not HTTP"),
        pytest.param([b""], None, id="nothing"),
    ],
)
def test_only_a_complete_and_timely_digest_is_read(parts: list[bytes], digest: str | None) -> None:
    assert digest_from(*parts) == digest


def test_number_of_queried_endpoints_is_limited() -> None:
    result = ask_all(slices(free_port(), *[{"ready": True}] * 1_000), SERVICE)
    assert len(result) == replicas.MOST


def test_digest_is_read_from_the_health_port(tmp_path: Path, serve: Serve) -> None:
    server, certificate = replica(tmp_path, serve)
    health = HealthServer("127.0.0.1", 0, ready=lambda: True, exposition=lambda: b"", digest="def")
    health.start()
    try:
        service = Service("system", health_port=health.port)
        (result,) = ask_all(slices(server.port, {}), service)
    finally:
        health.stop()
    assert (result.certificate, result.digest) == (certificate, "def")


def test_certificate_is_read_if_the_health_port_is_closed(tmp_path: Path, serve: Serve) -> None:
    server, certificate = replica(tmp_path, serve)
    service = Service("system", health_port=free_port())
    (result,) = ask_all(slices(server.port, {}), service)
    assert (result.certificate, result.digest) == (certificate, None)


@pytest.mark.parametrize(
    ("conditions", "called"),
    [
        pytest.param({}, True, id="unknown"),
        pytest.param({"ready": True, "serving": True}, True, id="ready"),
        pytest.param({"ready": False, "serving": False}, False, id="not-ready"),
        pytest.param({"ready": False}, False, id="not-ready-without-serving"),
        pytest.param(
            {"ready": False, "serving": True, "terminating": True}, True, id="terminating"
        ),
    ],
)
def test_unresponsive_replica_is_listed_and_is_called_as_its_endpoint_says(
    conditions: dict[str, bool], called: bool
) -> None:
    (result,) = ask_all(slices(free_port(), conditions), SERVICE)
    assert result == replicas.Replica("127.0.0.1", called)


def test_no_replicas() -> None:
    assert ask_all(slices(None, {"ready": True}), SERVICE) == []
    api = FakeApi()
    api.put(SLICES, {"items": None})
    assert ask_all(api, SERVICE) == []


def deployed(**status: Any) -> FakeApi:
    api = FakeApi()
    counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    status = {"observedGeneration": 1, **counts, **status}
    spec = {"replicas": 2}
    api.put(DEPLOYMENT, {"metadata": {"generation": 1}, "spec": spec, "status": status})
    return api


def test_rollout_is_complete_once_all_replicas_are_new_and_available() -> None:
    assert rolled_out(deployed(), SERVICE)
    counts = {"replicas": 3, "updatedReplicas": 1, "availableReplicas": 1, "observedGeneration": 0}
    for name, count in counts.items():
        assert not rolled_out(deployed(**{name: count}), SERVICE)
