"""The certificates and keys of one control plane, as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from controlplane.layout import write_private
from holdfast.certs.authority import KeyPair, Usage, issue, new_ca

SERVICE_ADDRESS = "10.0.0.1"
"""The first address of the Service range, which is that of the Service `kubernetes`."""
_API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class Files:
    """The paths of a certificate and its key."""

    certificate: Path
    key: Path


class Pki:
    """Issues the components' certificates; keeps CAs and signing keys that already exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = self._keep_or_make("ca", "holdfast test cluster")
        self._etcd_ca = self._keep_or_make("etcd-ca", "holdfast test etcd")
        self.ca = self._files("ca")
        self.etcd_ca = self._files("etcd-ca")
        self._front_ca = self._keep_or_make("front-proxy-ca", "holdfast test front proxy")
        self.front_ca = self._files("front-proxy-ca")
        self.token_key = folder / "sa.key"
        self.token_public = folder / "sa.pub"
        if not self.token_key.exists():
            # any certificate works: the API server reads only its public key
            signing = new_ca("holdfast test tokens", now=datetime.now(UTC))
            write_private(self.token_public, signing.certificate)
            write_private(self.token_key, signing.key)

    def server(
        self,
        name: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        *,
        dns_names: Sequence[str] = (),
    ) -> Files:
        """Issue a server certificate for `addresses` (default: loopback) and `dns_names`."""
        pair = issue(
            self._ca,
            common_name=name,
            now=datetime.now(UTC),
            dns_names=_API_NAMES if name == "kube-apiserver" else ("localhost", *dns_names),
            ip_addresses=addresses,
        )
        return self._write(name, pair)

    def etcd(self, name: str) -> Files:
        """Issue a server and client certificate, signed by etcd's CA."""
        pair = issue(
            self._etcd_ca,
            common_name=name,
            now=datetime.now(UTC),
            dns_names=("localhost",),
            ip_addresses=("127.0.0.1",),
            usage=Usage.SERVER | Usage.CLIENT,
        )
        return self._write(name, pair)

    def front_proxy(self, name: str) -> Files:
        """Issue the client certificate that the API server presents to aggregated API servers."""
        pair = issue(self._front_ca, common_name=name, now=datetime.now(UTC), usage=Usage.CLIENT)
        return self._write(name, pair)

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue a client certificate, from which Kubernetes reads the user and its groups."""
        return issue(
            self._ca,
            common_name=user,
            now=datetime.now(UTC),
            organizations=groups,
            usage=Usage.CLIENT,
        )

    def user_files(self, user: str, groups: Sequence[str]) -> Files:
        """Issue a user's client certificate, and write it to files named after the user."""
        return self._write(user, self.client(user, groups))

    def admin(self) -> tuple[KeyPair, Files]:
        """Issue a cluster admin's client certificate; return it and the files it is written to."""
        pair = self.client("holdfast-admin", ["system:masters"])
        return pair, self._write("admin", pair)

    def _files(self, name: str) -> Files:
        return Files(self._folder / f"{name}.crt", self._folder / f"{name}.key")

    def _write(self, name: str, pair: KeyPair) -> Files:
        files = self._files(name)
        write_private(files.certificate, pair.certificate)
        write_private(files.key, pair.key)
        return files

    def _keep_or_make(self, name: str, common_name: str) -> KeyPair:
        files = self._files(name)
        if files.key.exists() and files.certificate.exists():
            return KeyPair(files.certificate.read_bytes(), files.key.read_bytes())
        pair = new_ca(common_name, now=datetime.now(UTC))
        self._write(name, pair)
        return pair
