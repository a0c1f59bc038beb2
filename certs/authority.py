"""A small certificate authority: keys, a CA, and the certificates it issues.

No I/O and no clock: the time is passed in, bytes come back. Keys are P-256, serial numbers are
random (RFC 5280, 4.1.2.2), and every certificate is valid from an hour before it was issued, so
that a peer whose clock is a little behind accepts it.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

T = TypeVar("T")

CA_LIFETIME = timedelta(days=365)
LEAF_LIFETIME = timedelta(days=30)
BACKDATED = timedelta(hours=1)
"""How far before its issue a certificate becomes valid: room for clocks that are behind."""

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_USAGE_OIDS = {"SERVER": ExtendedKeyUsageOID.SERVER_AUTH, "CLIENT": ExtendedKeyUsageOID.CLIENT_AUTH}


class Usage(enum.Flag):
    """What a certificate may be used for."""

    SERVER = enum.auto()
    CLIENT = enum.auto()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM; the key is PKCS#8 and not encrypted."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A bare P-256 key pair, PEM: what an API server signs ServiceAccount tokens with."""

    private: bytes
    public: bytes


def new_ca(common_name: str, *, now: datetime, lifetime: timedelta = CA_LIFETIME) -> KeyPair:
    """Make a self-signed CA that may sign leaves and no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    builder = (
        _builder(name, name, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return _signed(builder, key, key)


def issue(
    ca: KeyPair,
    *,
    common_name: str,
    now: datetime,
    lifetime: timedelta = LEAF_LIFETIME,
    dns_names: Sequence[str] = (),
    ip_addresses: Sequence[str] = (),
    organizations: Sequence[str] = (),
    usage: Usage = Usage.SERVER,
) -> KeyPair:
    """Issue a leaf certificate with a new key.

    `organizations` are what Kubernetes reads as a client's groups, `common_name` as its name.
    Raises ValueError when `ca` is not a readable pair or an address is none.
    """
    ca_certificate = _loaded(x509.load_pem_x509_certificate, ca.certificate)
    ca_key = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the CA's key is not an elliptic-curve key; issue a new CA")  # noqa: TRY004
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(
            _name(common_name, organizations),
            ca_certificate.subject,
            key.public_key(),
            now,
            lifetime,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([_USAGE_OIDS[one.name or ""] for one in usage]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _signed(builder, key, ca_key)


def new_signing_key() -> SigningKey:
    """Make a bare P-256 key pair."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return SigningKey(private=_private_pem(key), public=public)


def not_after(certificate: bytes) -> datetime:
    """Tell when the first certificate in a PEM text expires. Raises ValueError on anything else."""
    return _loaded(x509.load_pem_x509_certificate, certificate).not_valid_after_utc


def issued_by(certificate: bytes, bundle: bytes) -> bool:
    """Tell whether a CA of a PEM bundle issued a certificate; False for what cannot be read."""
    try:
        leaf = _loaded(x509.load_pem_x509_certificate, certificate)
        authorities = _loaded(x509.load_pem_x509_certificates, bundle)
    except ValueError:
        return False
    return any(_issued(leaf, one) for one in authorities)


def _issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Certificate:
    """What of a certificate decides; `pem` is the certificate itself, alone."""

    pem: bytes
    fingerprint: str
    not_before: datetime
    not_after: datetime
    dns_names: frozenset[str]
    is_ca: bool

    def valid_at(self, now: datetime) -> bool:
        """Tell whether it has begun and not expired."""
        return self.not_before <= now < self.not_after

    def remaining_share(self, now: datetime) -> float:
        """Tell which share of its lifetime, counted from its issue, lies ahead."""
        lifetime = self.not_after - self.not_before - BACKDATED
        return (self.not_after - now) / lifetime if lifetime else 0.0


def read(pem: bytes) -> Certificate:
    """Read the first certificate in a PEM text. Raises ValueError on anything else."""
    return _read(_loaded(x509.load_pem_x509_certificate, pem))


def read_der(der: bytes) -> Certificate:
    """Read a certificate as TLS shows it. Raises ValueError on anything else."""
    return _read(_loaded(x509.load_der_x509_certificate, der))


def read_all(pem: bytes) -> list[Certificate]:
    """Read whatever certificates a PEM text has; what cannot be read is left out."""
    blocks = _BLOCK.findall(pem)
    found = []
    for block in blocks:
        try:
            found.append(read(block))
        except ValueError:
            continue
    return found


def signed_by(certificate: Certificate, ca: Certificate) -> bool:
    """Tell whether this CA has signed that certificate."""
    return ca.is_ca and issued_by(certificate.pem, ca.pem)


def _loaded(load: Callable[[bytes], T], content: bytes) -> T:
    """Load what there is. Raises ValueError where that cannot be read."""
    try:
        return load(content)
    except x509.InvalidVersion as exc:  # it is no ValueError
        raise ValueError(str(exc)) from exc


def _read(found: x509.Certificate) -> Certificate:
    try:
        return Certificate(
            pem=found.public_bytes(serialization.Encoding.PEM),
            fingerprint=found.fingerprint(hashes.SHA256()).hex(),
            not_before=found.not_valid_before_utc,
            not_after=found.not_valid_after_utc,
            dns_names=frozenset(_dns_names(found)),
            is_ca=_is_ca(found),
        )
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as exc:
        raise ValueError(f"an extension of the certificate cannot be read: {exc}") from exc


def _dns_names(found: x509.Certificate) -> list[str]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)


def _is_ca(found: x509.Certificate) -> bool:
    try:
        return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def pair_matches(pair: KeyPair) -> bool:
    """Tell whether the key is the certificate's own; False also for what cannot be read."""
    try:
        certificate = _loaded(x509.load_pem_x509_certificate, pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
        return certificate.public_key() == key.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def can_sign(pair: KeyPair) -> bool:
    """Tell whether `issue` takes this pair: a CA, with its own elliptic-curve key."""
    if not pair_matches(pair):
        return False
    key = serialization.load_pem_private_key(pair.key, password=None)
    return isinstance(key, ec.EllipticCurvePrivateKey) and read(pair.certificate).is_ca


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(signer, hashes.SHA256())
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_private_pem(key)
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
