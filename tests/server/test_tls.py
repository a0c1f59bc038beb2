import http.client
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PosixPath

import pytest

from holdfast.certs import authority
from holdfast.certs.authority import KeyPair
from holdfast.webhook.errors import StartError
from holdfast.webhook.server.tls import CHECKS_UNTIL_RETRY, CertWatcher, load_pair, new_context
from tests.server.conftest import Serve
from tests.server.harness import Pair, Server, ask, wait_until, write_pair
from tests.support.rsa_certificates import rsa_ca


def served(server: Server) -> bytes:
    with server.raw() as client:
        return client.getpeercert(binary_form=True) or b""


def serves(server: Server, pair: KeyPair) -> bool:
    return served(server) == der(pair)


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


def test_http2_is_never_negotiated(serve: Serve) -> None:
    server = serve()
    server.tls.set_alpn_protocols(["h2", "http/1.1"])
    with server.raw() as client:
        assert client.selected_alpn_protocol() == "http/1.1"


def test_minimum_tls_version_is_1_2() -> None:
    assert new_context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_encrypted_key_is_rejected_without_a_prompt(pair: Pair) -> None:
    context = new_context()
    pair.keyfile.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        encoding="utf-8",
    )
    with pytest.raises(StartError, match="unencrypted key"):
        load_pair(context, pair.certfile, pair.keyfile)


def test_key_of_another_certificate_is_reported(pair: Pair, other_pair: Pair) -> None:
    with pytest.raises(StartError, match="the key is another certificate's"):
        load_pair(new_context(), pair.certfile, other_pair.keyfile)


def test_missing_client_ca_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        new_context(tmp_path / "ca.crt")

    assert str(caught.value) == (
        f"cannot use the clients' CA {tmp_path}/ca.crt: No such file or directory; give PEM "
        "certificates with --client-ca"
    )


# --- reloading the files -----------------------------------------------------------------------


def put(pair: Pair, content: KeyPair) -> None:
    pair.certfile.write_bytes(content.certificate)
    pair.keyfile.write_bytes(content.key)


def test_pair_with_another_key_type_replaces_the_last(
    serve: Serve, issued: list[KeyPair], pair: Pair
) -> None:
    """cert-manager issues RSA keys by default. A reused SSL context would keep both pairs."""
    server = serve()
    assert served(server) == der(issued[0])
    for content in (rsa_ca(datetime.now(UTC)), issued[1]):
        put(pair, content)
        wait_until("it is served", partial(serves, server, content))


def test_changed_pair_is_reloaded_and_mismatched_pair_is_ignored(
    serve: Serve, issued: list[KeyPair], pair: Pair
) -> None:
    server = serve()
    assert served(server) == der(issued[0])
    with server.served_clients(1) as (old_client,):
        put(pair, issued[1])
        wait_until("the new pair is served", lambda: served(server) == der(issued[1]))
        answer = ask(old_client, "GET", "/healthz")
        assert answer.body == b"ok", "open connections keep the old pair"
    pair.certfile.write_bytes(issued[0].certificate)
    wait_until(
        "the mismatch is logged",
        lambda: "the last good one stays in use" in server.log_file.read_text(),
    )
    assert served(server) == der(issued[1])
    pair.keyfile.write_bytes(issued[0].key)
    wait_until("the whole pair is served", lambda: served(server) == der(issued[0]))


def test_placeholder_is_served_until_the_certificate_exists(
    serve: Serve, issued: list[KeyPair], pair: Pair
) -> None:
    pair.certfile.unlink()
    pair.keyfile.unlink()
    server = serve(await_certificate=True)
    placeholder = authority.read_der(served(server))
    assert placeholder.dns_names == frozenset()
    assert server.get("/healthz").status == http.client.OK
    put(pair, issued[0])
    wait_until("the certificate is served", lambda: served(server) == der(issued[0]))


def write_client_pair(folder: Path, name: str = "c", *, dns_names: Sequence[str] = ()) -> Pair:
    """Write the pair of a client, and the CA that issued it as `ca.crt`."""
    now, usage = datetime.now(UTC), authority.Usage.CLIENT
    ca = authority.new_ca("clients", now=now)
    (folder / "ca.crt").write_bytes(ca.certificate)
    client = authority.issue(ca, common_name=name, now=now, dns_names=dns_names, usage=usage)
    return write_pair(folder, "client", client)


def test_only_clients_with_a_certificate_of_the_ca_are_served(
    serve: Serve, issued: list[KeyPair], tmp_path: Path
) -> None:
    files = write_client_pair(tmp_path)
    server = serve(client_ca=str(tmp_path / "ca.crt"))
    with pytest.raises(OSError, match=r"(?i)certificate.required|reset|closed|eof"):
        server.get("/healthz")
    server.tls.load_cert_chain(files.certfile, files.keyfile)
    assert server.get("/healthz").status == http.client.OK
    put(files, issued[0])
    server.tls.load_cert_chain(files.certfile, files.keyfile)
    with pytest.raises(OSError, match=r"(?i)unknown.ca|reset|closed|eof"):
        server.get("/healthz")


@pytest.mark.parametrize(
    ("allowed", "served"),
    [
        pytest.param(["kube-apiserver"], True, id="common name"),
        pytest.param(["other", "api.example.com"], True, id="alternative name"),
        pytest.param(["other", "kube-apiserve"], False, id="other names"),
    ],
)
def test_only_clients_with_an_allowed_name_are_served(
    serve: Serve, tmp_path: Path, allowed: list[str], served: bool
) -> None:
    files = write_client_pair(tmp_path, "kube-apiserver", dns_names=["api.example.com"])
    server = serve(client_ca=str(tmp_path / "ca.crt"), client_names=allowed)
    server.tls.load_cert_chain(files.certfile, files.keyfile)
    if served:
        assert server.get("/healthz").status == http.client.OK
    else:
        with pytest.raises(OSError, match=r"(?i)reset|closed|eof"):
            server.get("/healthz")


def test_client_ca_is_read_only_at_startup(
    serve: Serve, issued: list[KeyPair], pair: Pair, tmp_path: Path
) -> None:
    files, ca = write_client_pair(tmp_path), tmp_path / "ca.crt"
    ca.write_text(f"# of the cluster\n{ca.read_text()}")
    server = serve(client_ca=str(ca))
    server.tls.load_cert_chain(files.certfile, files.keyfile)
    ca.unlink()
    put(pair, issued[1])
    wait_until("the new pair is served", partial(serves, server, issued[1]))
    assert server.get("/healthz").status == http.client.OK


class VanishingFile(PosixPath):
    """A file that is deleted right after it is read, `losses` times."""

    losses = 0

    def read_bytes(self) -> bytes:
        content = super().read_bytes()
        if self.losses:
            self.losses -= 1
            self.unlink()
        return content


class WatchedPair:
    """A watched pair whose key file can vanish for a moment, with the reported events."""

    def __init__(self, pair: Pair) -> None:
        self.expiries: list[float] = []
        self.failures = 0
        self.keyfile = VanishingFile(pair.keyfile)
        self.pair = Pair(pair.certfile, self.keyfile)
        self.watcher = CertWatcher(
            self.pair.certfile,
            self.pair.keyfile,
            on_loaded=self.expiries.append,
            on_failure=self._fail,
        )

    def _fail(self) -> None:
        self.failures += 1

    def put_and_lose_key(self, content: KeyPair) -> None:
        """Write a pair whose key file vanishes between the check and the load."""
        put(self.pair, content)
        self.keyfile.losses = 1

    def check(self, times: int) -> None:
        for _ in range(times):
            self.watcher.check()


def test_expiry_and_failures_are_reported(pair: Pair, issued: list[KeyPair]) -> None:
    watched = WatchedPair(pair)
    watched.watcher.start(await_certificate=False)
    watched.check(1)
    assert watched.expiries == [authority.not_after(issued[0].certificate).timestamp()]
    put(pair, issued[1])
    watched.check(1)
    assert len(watched.expiries) == 2
    pair.certfile.unlink()
    watched.check(2)
    assert (len(watched.expiries), watched.failures) == (2, 1)


def test_pair_that_failed_to_load_is_retried(
    pair: Pair, issued: list[KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedPair(pair)
    watched.watcher.start(await_certificate=False)
    watched.put_and_lose_key(issued[1])
    watched.check(1)
    assert (len(watched.expiries), watched.failures) == (1, 1)
    put(watched.pair, issued[1])
    watched.check(CHECKS_UNTIL_RETRY - 1)
    assert len(watched.expiries) == 1
    watched.check(1)
    assert watched.expiries[1:] == [authority.not_after(issued[1].certificate).timestamp()]
    watched.check(2 * CHECKS_UNTIL_RETRY)
    assert (len(watched.expiries), watched.failures) == (2, 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_awaited_pair_that_failed_to_load_is_retried(pair: Pair, issued: list[KeyPair]) -> None:
    watched = WatchedPair(pair)
    watched.put_and_lose_key(issued[0])
    watched.watcher.start(await_certificate=True)
    assert watched.expiries == []
    put(watched.pair, issued[0])
    watched.check(CHECKS_UNTIL_RETRY)
    assert watched.expiries == [authority.not_after(issued[0].certificate).timestamp()]
