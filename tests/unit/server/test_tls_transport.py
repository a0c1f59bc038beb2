import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from holdfast.certs import authority
from holdfast.webhook.server import tls
from holdfast.webhook.server.tls_transport import DISCARDED_LIMIT, TlsTransport

NAME = "webhook.test"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
"""The contexts of a server and of its client."""


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    folder = tmp_path_factory.mktemp("tls")
    now = datetime.now(UTC)
    ca = authority.new_ca("test CA", now=now)
    pair = authority.issue(ca, common_name=NAME, now=now, dns_names=[NAME])
    (folder / "crt").write_bytes(pair.certificate)
    (folder / "key").write_bytes(pair.key)
    server = tls.new_context()
    tls.load_pair(server, folder / "crt", folder / "key")
    return server, ssl.create_default_context(cadata=ca.certificate.decode())


class Tcp:
    """Records the calls of a transport to its TCP transport."""

    def __init__(self) -> None:
        self.sent = b""
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.sent += data

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda **_limits: self.calls.append(name)


class Connection:
    """Records the calls of a transport, and the data that it passes on."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received: list[bytes] = []
        self.on_data: Callable[[], None] = lambda: None

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        self.on_data()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


class Client:
    """A client of a transport, without sockets."""

    def __init__(self, contexts: Contexts) -> None:
        server, client = contexts
        self.connection, self.tcp = Connection(), Tcp()
        self.transport = TlsTransport(cast("Any", self.connection), server)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client.wrap_bio(self._incoming, self._outgoing, server_hostname=NAME)
        self.transport.connection_made(cast("Any", self.tcp))

    def shake_hands(self) -> None:
        for _ in range(2):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.deliver(self.pending())
        self.deliver(self.pending())
        assert self.connection.calls == ["connection_made"]

    def pending(self) -> bytes:
        """Take the bytes that the client has encrypted, and has not sent yet."""
        return self._outgoing.read()

    def deliver(self, data: bytes) -> None:
        """Send bytes, in pieces as large as the transport's buffer."""
        while data:
            buffer = self.transport.get_buffer(-1)
            piece, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(piece)] = piece
            self.transport.buffer_updated(len(piece))
            self._incoming.write(self.tcp.sent)
            self.tcp.sent = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.tls.write(piece)
        self.deliver(self.pending())

    def read(self) -> bytes:
        self._incoming.write(self.tcp.sent)
        self.tcp.sent = b""
        return bytes(self.tls.read(100_000))


@pytest.fixture
def client(contexts: Contexts) -> Client:
    client = Client(contexts)
    client.shake_hands()
    return client


def test_data_is_decrypted_and_responses_are_encrypted(client: Client) -> None:
    client.connection.on_data = lambda: client.transport.write(b"response")
    client.send(b"request", b"another")

    assert client.connection.received == [b"requestanother"]
    assert client.read() == b"response"


def test_record_may_arrive_in_pieces(client: Client) -> None:
    client.tls.write(b"x" * 16_384)
    record = client.pending()
    client.deliver(record[:1])
    client.deliver(record[1:-1])
    assert client.connection.received == []
    client.deliver(record[-1:])
    assert client.connection.received == [b"x" * 16_384]


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00"]
)
def test_failed_handshake_closes_the_socket(contexts: Contexts, hello: bytes) -> None:
    client = Client(contexts)
    client.deliver(hello)
    client.deliver(b"more")

    assert (client.connection.calls, client.connection.received) == ([], [])
    assert client.tcp.calls == ["set_write_buffer_limits", "close"]


def test_forged_record_closes_the_socket(client: Client) -> None:
    client.tls.write(b"request")
    record = client.pending()
    client.deliver(record[:-1] + bytes([record[-1] ^ 1]))

    assert client.connection.received == []
    assert client.tcp.calls[-1] == "close"
    with pytest.raises(ssl.SSLError):  # the alert
        client.read()


def test_pause_stops_the_socket(client: Client) -> None:
    client.transport.pause_reading()
    client.transport.pause_reading()
    client.transport.resume_reading()
    client.transport.resume_reading()

    assert client.tcp.calls[1:] == ["pause_reading", "resume_reading"]


def test_full_socket_pauses_reading_until_the_client_reads(client: Client) -> None:
    client.transport.pause_reading()
    client.transport.pause_writing()
    client.transport.resume_reading()
    assert client.tcp.calls[1:] == ["pause_reading", "pause_reading"]
    client.transport.resume_writing()

    assert client.tcp.calls[3:] == ["resume_reading"]
    assert client.connection.calls[1:] == ["pause_writing", "resume_writing"]


@pytest.mark.parametrize("pieces", [[b"last"], []], ids=["after data", "without data"])
def test_closing_client_ends_the_connection(client: Client, pieces: list[bytes]) -> None:
    for piece in pieces:
        client.tls.write(piece)
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.deliver(client.pending())

    assert client.connection.received == pieces
    assert client.connection.calls[1:] == ["finish"]


def test_close_sends_everything_and_then_discards_input(client: Client) -> None:
    client.transport.write(b"last")
    client.transport.close()
    client.transport.close()
    client.transport.write(b"too late")
    assert client.tcp.calls[1:] == ["resume_reading", "write_eof"]
    assert client.read() == b"last"
    assert client.read() == b""

    client.send(b"ignored")
    client.deliver(b"x" * DISCARDED_LIMIT)
    assert client.connection.received == []
    assert client.tcp.calls[3:] == ["abort"]


def test_response_that_cannot_be_encrypted_closes_the_connection(contexts: Contexts) -> None:
    client = Client(contexts)
    client.transport.write(b"before the handshake")

    assert client.tcp.calls[1:] == ["abort"]
    assert client.tcp.sent == b""


def test_transport_aborted_before_it_has_a_socket(contexts: Contexts) -> None:
    transport, tcp = TlsTransport(cast("Any", Connection()), contexts[0]), Tcp()
    transport.abort()
    transport.connection_made(cast("Any", tcp))

    assert tcp.calls == ["abort"]


def test_lost_connection_is_reported(client: Client) -> None:
    client.transport.connection_lost(None)
    client.transport.write(b"nobody reads this")

    assert client.connection.calls[1:] == ["connection_lost"]
    assert client.tcp.sent == b""
