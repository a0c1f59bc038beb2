"""The contents of the two Secrets. Pure: no I/O, no clock.

`holdfast.certs.rotation` decides whether they are valid at a given time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.certs import authority
from holdfast.certs.authority import Certificate, KeyPair

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""In both Secrets: the signing CA, or the leaf, and its key."""
CA_CERTIFICATE: Final = "ca.crt"
"""In the leaf's Secret: the CA that signed it."""
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
"""In the CA's Secret: the next CA."""
RETIRED, RETIRED_UNTIL = "retired.crt", "retired-until"
"""In the CA's Secret: retired CAs, and when the last of their leaves expires."""

Data = Mapping[str, bytes]
"""The data of a Secret."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The contents of the CA's Secret."""

    signer: KeyPair
    next: KeyPair | None
    retired: tuple[Certificate, ...]
    retired_until: datetime | None

    @classmethod
    def read(cls, data: Data | None) -> Authority | None:
        """Parse the Secret, regardless of the time; None if no CA can sign."""
        if data is None:
            return None
        signer = _ca(data.get(CERTIFICATE, b""), data.get(KEY, b""))
        if signer is None:
            return None
        upcoming = _ca(data.get(NEXT_CERTIFICATE, b""), data.get(NEXT_KEY, b""))
        retired = cas_in([data.get(RETIRED, b"")])
        return cls(signer, upcoming, retired, read_time(data.get(RETIRED_UNTIL, b"")))

    @property
    def cas(self) -> tuple[Certificate, ...]:
        """All trusted CAs, without duplicates."""
        pairs = [pair for pair in (self.signer, self.next) if pair is not None]
        found = [*(authority.read(pair.certificate) for pair in pairs), *self.retired]
        return tuple({one.fingerprint: one for one in found}.values())

    @property
    def bundle(self) -> bytes:
        """The bundle (PEM) for API servers."""
        return b"".join(one.pem for one in self.cas)

    def data(self) -> Data:
        """Return it as a Secret's data."""
        found = {CERTIFICATE: self.signer.certificate, KEY: self.signer.key}
        if self.next is not None:
            found |= {NEXT_CERTIFICATE: self.next.certificate, NEXT_KEY: self.next.key}
        if self.retired:
            found[RETIRED] = b"".join(one.pem for one in self.retired)
        if self.retired and self.retired_until is not None:
            found[RETIRED_UNTIL] = self.retired_until.isoformat().encode()
        return found


def _ca(certificate: bytes, key: bytes) -> KeyPair | None:
    pair = KeyPair(certificate, key)
    try:
        usable = authority.can_sign(pair)
    except ValueError:
        return None
    return pair if usable else None


def cas_in(texts: Iterable[bytes]) -> tuple[Certificate, ...]:
    """Parse the CAs in PEM texts, without duplicates."""
    found = [one for text in texts for one in authority.read_all(text)]
    return tuple({one.fingerprint: one for one in found if one.is_ca}.values())


def read_time(text: bytes) -> datetime | None:
    """Parse a time with offset; None if invalid."""
    try:
        found = datetime.fromisoformat(text.decode())
    except (ValueError, UnicodeDecodeError):
        return None
    return found if found.tzinfo is not None else None
