"""The Secrets with the certificates: how to read and damage them, and which ones are served."""

import base64
import json
import socket
import ssl
from typing import Protocol

from holdfast.certs import authority

CA, LEAF = "holdfast-ca", "holdfast-tls"


class Installed(Protocol):
    def kubectl(self, *arguments: str) -> str: ...


def secret(installed: Installed, name: str) -> dict[str, str]:
    text = installed.kubectl("get", "secret", name, "--ignore-not-found", "-o", "json")
    return dict(json.loads(text).get("data") or {}) if text else {}


def leaf(installed: Installed) -> authority.Certificate:
    return authority.read(base64.b64decode(secret(installed, LEAF)["tls.crt"]))


def usable(installed: Installed) -> bool:
    """Return whether the leaf's Secret holds a valid pair that the CA has signed."""
    try:
        data = {key: base64.b64decode(value) for key, value in secret(installed, LEAF).items()}
        certificate = authority.read(data["tls.crt"])
    except (KeyError, ValueError):
        return False
    pair = authority.KeyPair(data["tls.crt"], data["tls.key"])
    ca = authority.read(base64.b64decode(secret(installed, CA)["tls.crt"]))
    return authority.pair_matches(pair) and authority.signed_by(certificate, ca)


def delete(installed: Installed) -> None:
    installed.kubectl("delete", "secret", LEAF)


def mismatch(installed: Installed) -> None:
    """Replace the key with that of another certificate."""
    _edit(installed, LEAF, "tls.key", secret(installed, CA)["tls.key"])


def corrupt(installed: Installed, name: str = LEAF) -> None:
    """Replace a certificate with invalid data."""
    _edit(installed, name, "tls.crt", base64.b64encode(b"no PEM").decode())


def shown(address: str) -> str:
    """Return the fingerprint of the certificate that a server at `host:port` presents."""
    host, _, port = address.rpartition(":")
    context = ssl._create_unverified_context()
    with (
        socket.create_connection((host, int(port)), timeout=10) as connection,
        context.wrap_socket(connection) as tls,
    ):
        return authority.read_der(tls.getpeercert(binary_form=True) or b"").fingerprint


def _edit(installed: Installed, name: str, key: str, value: str) -> None:
    patch = json.dumps({"data": {key: value}})
    installed.kubectl("patch", "secret", name, "--type=merge", "-p", patch)
