import base64
import ipaddress
import math
import ssl
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from holdfast.certs import authority
from holdfast.certs.authority import KeyPair, Usage

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
DAY = timedelta(days=1)
CA = authority.new_ca("test CA", now=NOW)
LEAF = authority.issue(
    CA,
    common_name="holdfast",
    now=NOW,
    dns_names=["holdfast.holdfast.svc", "localhost"],
    ip_addresses=["127.0.0.1", "::1"],
)
CLIENT = authority.issue(
    CA,
    common_name="jane",
    now=NOW,
    organizations=["system:masters", "dev"],
    dns_names=["jane"],
    usage=Usage.CLIENT,
)


def read(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def extension(pair: KeyPair, kind: type[x509.ExtensionType]) -> x509.Extension[x509.ExtensionType]:
    return read(pair).extensions.get_extension_for_class(kind)


def policy(ca: KeyPair = CA) -> PolicyBuilder:
    return PolicyBuilder().store(Store([read(ca)])).time(NOW)


# --- the chain verifies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    [
        x509.DNSName("holdfast.holdfast.svc"),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ],
    ids=["service", "localhost", "IPv4", "IPv6"],
)
def test_server_verifies(subject: x509.DNSName | x509.IPAddress) -> None:
    chain = policy().build_server_verifier(subject).verify(read(LEAF), [])

    assert [read(LEAF), read(CA)] == chain


def test_client_verifies() -> None:
    verified = policy().build_client_verifier().verify(read(CLIENT), [])

    assert [read(CLIENT), read(CA)] == verified.chain


LIMITED = authority.new_ca("limited", now=NOW, dns_names=["hook.system.svc"])


@pytest.mark.parametrize(
    ("names", "verified"),
    [
        pytest.param({"dns_names": ["hook.system.svc"]}, True, id="the service"),
        pytest.param({"dns_names": ["hook.system.svc", "kubernetes"]}, False, id="another name"),
        pytest.param(
            {"dns_names": ["hook.system.svc"], "ip_addresses": ["10.0.0.1"]}, False, id="address"
        ),
    ],
)
def test_name_constrained_ca_is_valid_only_for_its_names(
    names: dict[str, Any], verified: bool
) -> None:
    leaf = authority.issue(LIMITED, common_name="x", now=NOW, **names)
    verifier = policy(LIMITED).build_server_verifier(x509.DNSName("hook.system.svc"))
    with nullcontext() if verified else pytest.raises(VerificationError):
        verifier.verify(read(leaf), [])


def test_name_constrained_ca_signs_no_valid_client_certificates() -> None:
    leaf = authority.issue(LIMITED, common_name="x", now=NOW, usage=Usage.CLIENT)
    with pytest.raises(VerificationError):
        policy(LIMITED).build_client_verifier().verify(read(leaf), [])


# --- contents ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "lifetime"),
    [
        pytest.param(CA, authority.CA_LIFETIME, id="CA"),
        pytest.param(LEAF, authority.LEAF_LIFETIME, id="leaf"),
        pytest.param(
            authority.issue(CA, common_name="x", now=NOW, lifetime=DAY), DAY, id="one-day leaf"
        ),
    ],
)
def test_lifetime_begins_an_hour_early(pair: KeyPair, lifetime: timedelta) -> None:
    assert NOW - timedelta(hours=1) == read(pair).not_valid_before_utc
    assert NOW + lifetime == read(pair).not_valid_after_utc == authority.not_after(pair.certificate)


SERVER_AUTH, CLIENT_AUTH = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(Usage.SERVER, [SERVER_AUTH], id="server"),
        pytest.param(Usage.CLIENT, [CLIENT_AUTH], id="client"),
        pytest.param(Usage.SERVER | Usage.CLIENT, [SERVER_AUTH, CLIENT_AUTH], id="both"),
    ],
)
def test_extended_key_usage(usage: Usage, expected: list[x509.ObjectIdentifier]) -> None:
    pair = authority.issue(CA, common_name="x", now=NOW, usage=usage)

    assert x509.ExtendedKeyUsage(expected) == extension(pair, x509.ExtendedKeyUsage).value


@pytest.mark.parametrize(("pair", "signs"), [(CA, True), (LEAF, False)], ids=["CA", "leaf"])
def test_only_the_ca_may_sign(pair: KeyPair, signs: bool) -> None:
    usage = extension(pair, x509.KeyUsage)
    constraints = extension(pair, x509.BasicConstraints)

    assert usage.critical
    assert isinstance(usage.value, x509.KeyUsage)
    assert (signs, signs, True) == (
        usage.value.key_cert_sign,
        usage.value.crl_sign,
        usage.value.digital_signature,
    )
    assert constraints.critical
    assert x509.BasicConstraints(ca=signs, path_length=0 if signs else None) == constraints.value


def test_client_subject_has_user_and_groups() -> None:
    assert read(CLIENT).subject.rfc4514_string() == "CN=jane,O=dev,O=system:masters"


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        pytest.param(LEAF, True, id="its own key"),
        pytest.param(CA, True, id="CA"),
        pytest.param(KeyPair(LEAF.certificate, CA.key), False, id="key of another certificate"),
        pytest.param(KeyPair(b"", LEAF.key), False, id="no certificate"),
        pytest.param(KeyPair(LEAF.certificate, b""), False, id="no key"),
        pytest.param(KeyPair(LEAF.key, LEAF.certificate), False, id="swapped"),
        pytest.param(KeyPair(LEAF.certificate[:-40], LEAF.key), False, id="truncated"),
    ],
)
def test_pair_matches(pair: KeyPair, expected: bool) -> None:
    assert expected == authority.pair_matches(pair)


def test_encrypted_key_does_not_match() -> None:
    key = serialization.load_pem_private_key(LEAF.key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )

    assert not authority.pair_matches(KeyPair(LEAF.certificate, key))


def test_ca_with_an_rsa_key_is_rejected() -> None:
    key = rsa.generate_private_key(65537, 1024).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(ValueError, match="the CA's key is not an elliptic-curve key; issue a new"):
        authority.issue(KeyPair(CA.certificate, key), common_name="x", now=NOW)


@pytest.mark.parametrize("part", [authority._BEGIN, authority._END, b"\n"])
def test_large_pem_is_read_up_to_the_limits(part: bytes) -> None:
    text = (part + b"\n") * (1_000_000 // len(part))
    assert [certificate.pem for certificate in authority.read_all(CA.certificate + text)] == [
        CA.certificate
    ]
    assert len(authority.read_all(CA.certificate * 1_000)) == authority.MOST
    with pytest.raises(ValueError, match="a certificate may have"):
        authority.read(CA.certificate + text)


def test_long_rsa_key_is_not_checked() -> None:
    """Checking it takes minutes and blocks all other threads."""
    p, q = 2**9_689 - 1, 2**9_941 - 1
    d = pow(65_537, -1, math.lcm(p - 1, q - 1))
    numbers = 0, p * q, 65_537, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)
    der = tlv(0x30, b"".join(tlv(2, n.to_bytes(n.bit_length() // 8 + 1)) for n in numbers))
    body = base64.encodebytes(der)
    key = b"-----BEGIN RSA PRIVATE KEY-----\n" + body + b"-----END RSA PRIVATE KEY-----\n"
    assert not authority.can_sign(KeyPair(CA.certificate, key))


def tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def test_ca_with_an_unreadable_subject_does_not_sign() -> None:
    pair = authority.new_ca("AAAA", now=NOW)
    before, _, after = read(pair).public_bytes(serialization.Encoding.DER).rpartition(b"AAAA")
    pem = ssl.DER_cert_to_PEM_cert(before + b"\xff\xfeAA" + after).encode()
    assert authority.pair_matches(KeyPair(pem, pair.key))
    assert not authority.can_sign(KeyPair(pem, pair.key))


def test_certificate_with_an_unknown_version_is_rejected() -> None:
    """One damaged byte is enough, and the library does not raise ValueError for it."""
    der = read(CA).public_bytes(serialization.Encoding.DER)
    damaged = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", 1)
    pem = ssl.DER_cert_to_PEM_cert(damaged).encode()

    for call, text in (
        (authority.read, pem),
        (authority.read_der, damaged),
        (authority.not_after, pem),
    ):
        with pytest.raises(ValueError, match="not a valid X509 version"):
            call(text)
    assert [certificate.pem for certificate in authority.read_all(pem + CA.certificate)] == [
        CA.certificate
    ]
    assert not authority.pair_matches(KeyPair(pem, CA.key))
    assert not authority.issued_by(CA.certificate, pem)
    assert not authority.issued_by(pem, CA.certificate)
