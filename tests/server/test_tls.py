from __future__ import annotations

import http.client
import ssl

import pytest

from certs.authority import KeyPair
from tests.server.conftest import Serve
from tests.server.harness import Pair, Server, ask
from webhook.errors import StartError
from webhook.tls import load_pair, server_context


def served(server: Server) -> bytes:
    with server.raw() as client:
        return client.getpeercert(binary_form=True) or b""


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


def test_http2_is_never_chosen(serve: Serve) -> None:
    server = serve()
    server.tls.set_alpn_protocols(["h2", "http/1.1"])
    with server.raw() as client:
        assert client.selected_alpn_protocol() == "http/1.1"


def test_tls_is_at_least_1_2(pair: Pair) -> None:
    context = server_context(pair.certfile, pair.keyfile)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_new_pair_serves_new_connections_and_leaves_old_ones_alone(
    serve: Serve, issued: list[KeyPair]
) -> None:
    server = serve()
    assert served(server) == der(issued[0])
    old = server.client()
    try:
        assert ask(old, "GET", "/swap").body == b"swapped"
        assert served(server) == der(issued[1])
        assert ask(old, "GET", "/healthz").body == b"ok"
    finally:
        old.close()


def test_pair_that_does_not_match_leaves_the_live_one(
    serve: Serve, issued: list[KeyPair], pair: Pair, other_pair: Pair
) -> None:
    server = serve()
    other_pair.keyfile.write_bytes(pair.keyfile.read_bytes())
    assert server.get("/swap").status == http.client.INTERNAL_SERVER_ERROR
    assert served(server) == der(issued[0])


def test_encrypted_key_is_refused_without_a_question(pair: Pair) -> None:
    context = server_context(pair.certfile, pair.keyfile)
    pair.keyfile.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        encoding="utf-8",
    )
    with pytest.raises(StartError, match="unencrypted key"):
        load_pair(context, pair.certfile, pair.keyfile)
