"""The serving side of TLS: the context of new connections, and another one for each certificate."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from certs import authority
from webhook.errors import StartError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - writable also where the root file system is not
LOOKS_UNTIL_NEXT_TRY = 5
"""A pair that could not be used is tried again at each fifth look: a disk, or a process that has no
descriptor left, may recover."""

_log = logging.getLogger("holdfast.server")


class LiveCertificate:
    """The certificate that is served, kept in step with its files.

    `context` is what new connections are served with: another one for each pair, since a context
    keeps a certificate for each kind of key, and serves the kind that it likes best. A pair that
    cannot be used is counted and logged once, and the last good one served on. `on_loaded` is told
    when a pair that is served now expires, in seconds since 1970.
    """

    def __init__(
        self,
        certfile: Path,
        keyfile: Path,
        *,
        client_ca: Path | None = None,
        on_loaded: Callable[[float], None] = lambda _: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._certfile, self._keyfile = certfile, keyfile
        self._client_ca = client_ca
        self._trusted = ""
        self._on_loaded = on_loaded
        self._on_failure = on_failure
        self._seen: tuple[bytes, bytes] | None = None
        self._looks_left = 0
        """Until what was seen is tried again; 0 where it is served."""

    def open(self, *, await_certificate: bool) -> ssl.SSLContext:
        """Make the first context. Raises StartError when there is no usable pair.

        Where it may be awaited, a certificate that nobody trusts is served until there is one: the
        server can tell then, over TLS, that it is alive and not ready.
        """
        self._trusted = read_client_ca(self._client_ca)
        self.context = self._new_context()
        self._seen = self._read()
        try:
            load_pair(self.context, self._certfile, self._keyfile)
        except StartError as error:
            if not await_certificate:
                raise
            _log.warning("%s; not ready until there is one", error)
            self._looks_left = LOOKS_UNTIL_NEXT_TRY
            _load_placeholder(self.context)
        else:
            self._loaded()
        return self.context

    def look(self) -> None:
        """Take what the files have become, if it is not served yet and can be used."""
        found = self._read()
        is_new = found != self._seen
        if not is_new and not self._is_to_be_tried_again():
            return
        self._seen = found
        try:
            context = self._new_context()
            load_pair(context, self._certfile, self._keyfile)
        except StartError as error:
            self._looks_left = LOOKS_UNTIL_NEXT_TRY
            if is_new:
                self._on_failure()
                _log.error("%s; the last good one is served on", error)
            return
        self.context = context
        self._loaded()

    def _new_context(self) -> ssl.SSLContext:
        """Make one that trusts the clients' CA as it was at the start, whatever its file is now."""
        return new_context(self._client_ca, self._trusted)

    def _is_to_be_tried_again(self) -> bool:
        if self._looks_left:
            self._looks_left -= 1
            return self._looks_left == 0
        return False

    def _loaded(self) -> None:
        self._looks_left = 0
        try:
            expiry = authority.not_after(self._seen[0] if self._seen else b"")
        except ValueError:
            self._seen = None  # the files changed between the look and the load: look again
            return
        self._on_loaded(expiry.timestamp())
        _log.info("serving a certificate that expires at %s", expiry.isoformat())

    def _read(self) -> tuple[bytes, bytes] | None:
        try:
            return self._certfile.read_bytes(), self._keyfile.read_bytes()
        except OSError:
            return None


class Validity:
    """Until when the certificate that is served is valid; by this machine's clock alone."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until = 0.0

    def extend(self, until: float) -> None:
        """Take over from the certificate that is served now."""
        self._until = until

    def lasts(self) -> bool:
        """Tell whether it is valid still; not before there was one."""
        return self._now() < self._until


def read_client_ca(client_ca: Path | None) -> str:
    """Read the clients' CA, PEM; empty where there is none. Raises StartError."""
    if client_ca is None:
        return ""
    try:
        return client_ca.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise _unusable_ca(client_ca, error) from error


def new_context(client_ca: Path | None = None, trusted: str | None = None) -> ssl.SSLContext:
    """Make a server's context without a certificate: TLS 1.2 or newer, HTTP/1.1 only.

    With a `client_ca`, PEM, only clients that have a certificate of it are served; `trusted` is
    what was read of it, if it was. Raises StartError when it cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        trusted = read_client_ca(client_ca) if trusted is None else trusted
        try:
            context.load_verify_locations(cadata=trusted)
        except (OSError, ValueError) as error:
            raise _unusable_ca(client_ca, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _unusable_ca(client_ca: Path, error: Exception) -> StartError:
    return StartError(
        f"cannot use the clients' CA {client_ca}: {_reason(error)}; give PEM certificates "
        "with --client-ca"
    )


def server_context(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """Make a server's context with its certificate.

    Raises StartError when there is no usable certificate with its own key in the files.
    """
    context = new_context()
    load_pair(context, certfile, keyfile)
    return context


def load_pair(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    """Serve this pair to all handshakes from now on; open connections keep theirs.

    Raises StartError, with the context left as it was, when the pair cannot be used.
    """
    try:
        # A scratch context first: a load that fails half-way would leave the live one unusable.
        for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            # Without the empty password an encrypted key would be asked for on the terminal.
            target.load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        raise StartError(
            f"cannot use the certificate {certfile} with the key {keyfile}: {_reason(error)}; "
            "give a PEM certificate and its own unencrypted key"
        ) from error


def _load_placeholder(context: ssl.SSLContext) -> None:
    now = datetime.now(UTC)
    ca = authority.new_ca("holdfast awaits its certificate", now=now)
    pair = authority.issue(ca, common_name="holdfast awaits its certificate", now=now)
    writable = os.access(SHARED_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if writable else None) as folder:
        certfile, keyfile = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certfile.write_bytes(pair.certificate)
        keyfile.write_bytes(pair.key)
        load_pair(context, certfile, keyfile)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key is another certificate's"}.get(
            error.reason or "", error.reason or "not PEM"
        )
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
