import base64
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from demo.command import Command
from holdfast.certs import authority
from tests.e2e.accounts import NAMESPACE
from tests.e2e.certificate_secrets import CA, LEAF, corrupt, delete, leaf, shown, usable
from tests.e2e.installed import REPAIR, Installation
from tests.e2e.steady_load import creations

pytestmark = pytest.mark.xdist_group("installed")


@pytest.fixture
def short_lived(installed: Installation) -> Iterator[Installation]:
    """The installation, with certificates that are valid for ten minutes."""
    installed.controllers[0].stop()
    controller = installed.controller("--leaf-lifetime", "10m", "--ca-propagation", "3s")
    yield installed
    controller.stop()
    installed.controllers[0].start()
    delete(installed)
    installed.ns.eventually(lambda: usable(installed), REPAIR)


def test_startup_creates_certificates_and_registers_webhooks(installed: Installation) -> None:
    certificate = leaf(installed)
    assert certificate.dns_names == {
        "holdfast-webhook",
        f"holdfast-webhook.{NAMESPACE}",
        f"holdfast-webhook.{NAMESPACE}.svc",
    }
    assert sorted(installed.secret(CA)) == ["tls.crt", "tls.key"]
    assert sorted(installed.secret(LEAF)) == ["ca.crt", "tls.crt", "tls.key"]
    assert installed.bundles() == {installed.secret(CA)["tls.crt"]}
    assert [len(manifest["webhooks"]) for manifest in installed.configurations()] == [2, 7]


def test_wrong_clock_does_not_affect_issued_certificates(installed: Installation) -> None:
    issued = leaf(installed).not_before + authority.BACKDATED
    assert abs((datetime.now(UTC) - issued).total_seconds()) < 300


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(delete, id="deleted"),
        pytest.param(corrupt, id="corrupted"),
    ],
)
def test_corrupt_leaf_is_replaced_without_failed_calls(
    installed: Installation, damage: Callable[[Installation], None]
) -> None:
    before = leaf(installed).fingerprint
    ca = installed.secret(CA)
    damage(installed)
    assert creations(installed.ns, 3) == []
    installed.ns.eventually(lambda: usable(installed), REPAIR)
    assert leaf(installed).fingerprint != before
    assert installed.secret(CA) == ca
    assert creations(installed.ns, 3) == []
    assert served(installed) == {leaf(installed).fingerprint}


def test_deleted_ca_is_replaced_with_overlap(installed: Installation) -> None:
    before = installed.secret(CA)["tls.crt"]
    certificate = leaf(installed).fingerprint
    installed.kubectl("delete", "secret", CA)
    assert creations(installed.ns, 3) == []
    installed.ns.eventually(lambda: installed.secret(CA), REPAIR)
    after = installed.secret(CA)
    assert after["tls.crt"] != before
    assert after["retired.crt"] == before
    bundle = base64.b64encode(
        base64.b64decode(after["tls.crt"]) + base64.b64decode(before)
    ).decode()
    installed.ns.eventually(lambda: installed.bundles() == {bundle}, REPAIR)
    assert leaf(installed).fingerprint == certificate  # until API servers know the new CA
    assert creations(installed.ns, 3) == []


def test_deleting_both_secrets_revokes_stolen_keys(
    short_lived: Installation,
) -> None:
    stolen_ca = short_lived.secret(CA)["tls.crt"]
    short_lived.kubectl("delete", "secret", CA, LEAF)
    assert creations(short_lived.ns, 3) == []
    short_lived.ns.eventually(lambda: short_lived.secret(CA) and short_lived.bundles(), REPAIR)
    # ten minutes, or a hundredth of the certificate's lifetime: 6 s
    short_lived.ns.eventually(
        lambda: short_lived.bundles() == {short_lived.secret(CA)["tls.crt"]}, REPAIR
    )
    assert short_lived.secret(CA)["tls.crt"] != stolen_ca
    assert creations(short_lived.ns, 3) == []


def served(installed: Installation) -> set[str]:
    """Wait until all replicas serve the same certificate; return its fingerprint."""

    def same() -> set[str]:
        fingerprints = {shown(replica.address) for replica in installed.replicas}
        return fingerprints if len(fingerprints) == 1 else set()

    return installed.ns.eventually(same)


def test_server_with_client_ca_serves_probes_and_metrics_on_another_port(
    installed: Installation, tmp_path: Path
) -> None:
    ca = authority.new_ca("api-servers", now=datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    files = ["--cert", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key")]
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(base64.b64decode(installed.secret(LEAF)[name]))
    options = ["--client-ca", str(tmp_path / "ca.crt"), "--health-port", str(port), "--port", "0"]
    options += ["--kubeconfig", str(installed.plane.kubeconfig)]

    def read(page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as response:
            return str(response.read().decode())

    with Command("serve", *files, *options, log=tmp_path / "serve.log") as server:
        assert read("readyz") == "ok\n"
        name = "holdfast_certificate_expiry_timestamp_seconds "
        (line,) = (metric for metric in read("metrics").splitlines() if metric.startswith(name))
        assert float(line.removeprefix(name)) == leaf(installed).not_after.timestamp()
        assert len(read("conditions").strip()) == 64
        with pytest.raises(OSError, match=r"(?i)certificate.required|reset|closed|eof"):
            urllib.request.urlopen(
                f"https://{server.address}/healthz",
                context=ssl._create_unverified_context(),
                timeout=10,
            )
