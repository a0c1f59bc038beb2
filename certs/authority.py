"""A small certificate authority: keys, a CA, and the certificates it issues.

Pure: the caller passes the time and gets bytes. Keys are P-256, and serial numbers are random (RFC
5280, 4.1.2.2). Certificates are backdated by an hour for peers whose clocks are behind.
"""

import enum
import ipaddress
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

T = TypeVar("T")
Extension = TypeVar("Extension", bound=x509.ExtensionType)

CA_LIFETIME = timedelta(days=365)
LEAF_LIFETIME = timedelta(days=30)
BACKDATED = timedelta(hours=1)
"""How far certificates are backdated, for peers whose clocks are behind."""

LARGEST = 1 << 16
"""Maximum bytes of a PEM text. Holdfast's bundles have one to three CAs of 1 KiB."""
MOST = 32
"""Maximum certificates read from a PEM text."""
LARGEST_KEY = 1 << 10
"""Maximum bytes of a private key (PEM); a P-521 key has 400."""

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_USAGE_OIDS = {"SERVER": ExtendedKeyUsageOID.SERVER_AUTH, "CLIENT": ExtendedKeyUsageOID.CLIENT_AUTH}


class Usage(enum.Flag):
    """The permitted uses of a certificate."""

    SERVER = enum.auto()
    CLIENT = enum.auto()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key (PEM, unencrypted PKCS#8)."""

    certificate: bytes
    key: bytes


def new_ca(
    common_name: str,
    *,
    now: datetime,
    lifetime: timedelta = CA_LIFETIME,
    dns_names: Sequence[str] = (),
) -> KeyPair:
    """Create a self-signed CA that can only sign leaf certificates.

    With `dns_names`, it can only sign server certificates for these names (RFC 5280, 4.2.1.10).
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    builder = _builder(name, key, name, key, now=now, lifetime=lifetime, is_ca=True)
    if dns_names:
        all_addresses = [
            x509.IPAddress(ipaddress.ip_network(network)) for network in ("0.0.0.0/0", "::/0")
        ]
        builder = builder.add_extension(
            x509.NameConstraints([x509.DNSName(dns_name) for dns_name in dns_names], all_addresses),
            critical=True,
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
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

    Kubernetes reads `organizations` as a client's groups and `common_name` as its user name.
    Raises ValueError if `ca` or an address is invalid.
    """
    ca_certificate = _loaded(x509.load_pem_x509_certificate, ca.certificate)
    ca_key = _elliptic_key(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(common_name, organizations)
    builder = _builder(
        subject, key, ca_certificate.subject, ca_key, now=now, lifetime=lifetime, is_ca=False
    ).add_extension(
        x509.ExtendedKeyUsage([_USAGE_OIDS[flag.name or ""] for flag in usage]), critical=False
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _signed(builder, key, ca_key)


def not_after(certificate: bytes) -> datetime:
    """Return the expiry of the first certificate in a PEM text. Raises ValueError."""
    return _loaded(x509.load_pem_x509_certificate, certificate).not_valid_after_utc


def issued_by(certificate: bytes, bundle: bytes) -> bool:
    """Return whether a CA in a PEM bundle issued a certificate; False if either is invalid."""
    try:
        leaf = _loaded(x509.load_pem_x509_certificate, certificate)
        authorities = _loaded(x509.load_pem_x509_certificates, bundle)
    except ValueError:
        return False
    for ca in authorities:
        with suppress(ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            leaf.verify_directly_issued_by(ca)
            return True
    return False


@dataclass(frozen=True, slots=True)
class Certificate:
    """A parsed certificate; `pem` contains this certificate only."""

    pem: bytes
    fingerprint: str
    not_before: datetime
    not_after: datetime
    dns_names: frozenset[str]
    is_ca: bool

    @property
    def issued_at(self) -> datetime:
        """The time of issue, if Holdfast issued the certificate."""
        return self.not_before + BACKDATED

    def valid_at(self, now: datetime) -> bool:
        """Return whether the certificate is valid at this time."""
        return self.not_before <= now < self.not_after

    def remaining_share(self, now: datetime) -> float:
        """Return the share of the certificate's lifetime, counted from its issue, that is left."""
        lifetime = self.not_after - self.issued_at
        return (self.not_after - now) / lifetime if lifetime else 0.0


def read(pem: bytes) -> Certificate:
    """Parse the first certificate in a PEM text. Raises ValueError."""
    return _read(_loaded(x509.load_pem_x509_certificate, pem))


def read_der(der: bytes) -> Certificate:
    """Parse a DER certificate. Raises ValueError."""
    return _read(_loaded(x509.load_der_x509_certificate, der))


def read_all(pem: bytes) -> list[Certificate]:
    """Parse the certificates in a PEM text, up to the limits. Skips invalid ones."""
    certificates = []
    for part in pem[:LARGEST].split(_END)[:-1][:MOST]:
        try:
            certificates.append(read(b"".join(part.rpartition(_BEGIN)[1:]) + _END))
        except ValueError:
            continue
    return certificates


def signed_by(certificate: Certificate, ca: Certificate) -> bool:
    """Return whether this CA signed the certificate."""
    return ca.is_ca and issued_by(certificate.pem, ca.pem)


def _loaded(load: Callable[[bytes], T], content: bytes) -> T:
    """Call a loader of the cryptography package. Raises ValueError if the content is invalid."""
    if len(content) > LARGEST:
        raise ValueError(f"a certificate may have {LARGEST} bytes, not {len(content)}")
    try:
        return load(content)
    except x509.InvalidVersion as exc:  # not a ValueError
        raise ValueError(str(exc)) from exc


def _read(certificate: x509.Certificate) -> Certificate:
    try:
        names = _extension(certificate, x509.SubjectAlternativeName)
        constraints = _extension(certificate, x509.BasicConstraints)
        return Certificate(
            pem=certificate.public_bytes(serialization.Encoding.PEM),
            fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            dns_names=frozenset(names.get_values_for_type(x509.DNSName) if names else ()),
            is_ca=constraints is not None and constraints.ca,
        )
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as exc:
        raise ValueError(f"an extension of the certificate cannot be read: {exc}") from exc


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def pair_matches(pair: KeyPair) -> bool:
    """Return whether the elliptic-curve key belongs to the certificate; False if one is invalid."""
    try:
        certificate = _loaded(x509.load_pem_x509_certificate, pair.certificate)
        return certificate.public_key() == _elliptic_key(pair.key).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def can_sign(pair: KeyPair) -> bool:
    """Return whether `issue` accepts this pair: a CA with its elliptic-curve key."""
    try:
        if not (pair_matches(pair) and read(pair.certificate).is_ca):
            return False
        # A subject may be unreadable, or change when it is re-encoded.
        leaf = issue(pair, common_name="test", now=datetime(2000, 1, 1, tzinfo=UTC))
    except ValueError:
        return False
    return issued_by(leaf.certificate, pair.certificate)


def _elliptic_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Load an unencrypted key. Raises ValueError, TypeError or UnsupportedAlgorithm."""
    # Checking an RSA key of a few KiB takes minutes and blocks all other threads.
    if len(pem) <= LARGEST_KEY:
        key = serialization.load_pem_private_key(pem, password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    raise ValueError("the CA's key is not an elliptic-curve key; issue a new CA")


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime,
    lifetime: timedelta,
    is_ca: bool,
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(issuer_id, critical=False)
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(signer, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem)
