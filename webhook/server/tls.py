"""Server-side TLS: the context for new connections, replaced with each new certificate."""

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.certs import authority
from holdfast.webhook.errors import StartError
from holdfast.webhook.model import messages

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - writable even if the root file system is not
CHECKS_UNTIL_RETRY = 5
"""An unusable pair is retried at every fifth check: the cause may have been a disk error or a lack
of file descriptors."""
_MAX_NAMED = 3
"""Maximum names of a rejected certificate in a log line."""

_log = logging.getLogger("holdfast.server")


@dataclass(eq=False)
class CertWatcher:
    """Keeps the served certificate in sync with its files.

    `context` is for new connections. Each pair gets a new context, because a context keeps one
    certificate per key type and serves the type that it prefers. An unusable pair is counted and
    logged once, and the last good one stays in use. `on_loaded` is called with the expiry of each
    served pair, in seconds since 1970.
    """

    certfile: Path
    keyfile: Path
    _: KW_ONLY
    client_ca: Path | None = None
    on_loaded: Callable[[float], None] = lambda _: None
    on_failure: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.context: ssl.SSLContext
        self._trusted = ""
        self._seen: tuple[bytes, bytes] | None = None
        self._checks_until_retry = 0
        """0 if the pair that was last read is served."""

    def start(self, *, await_certificate: bool) -> None:
        """Create the first context. Raises StartError if there is no usable pair.

        With `await_certificate`, an untrusted certificate is served until there is a usable one.
        The server can then report over TLS that it is alive but not ready.
        """
        self._trusted = _read_client_ca(self.client_ca)
        self.context = self._new_context()
        self._seen = self._read()
        try:
            load_pair(self.context, self.certfile, self.keyfile)
        except StartError as error:
            if not await_certificate:
                raise
            _log.warning("%s; not ready until there is one", error)
            self._checks_until_retry = CHECKS_UNTIL_RETRY
            self.context = self._new_context()  # the failed one may have half of the pair
            _load_placeholder(self.context)
        else:
            self._loaded()

    def check(self) -> None:
        """Switch to the pair in the files, if it is new and usable."""
        content = self._read()
        is_new = content != self._seen
        if not is_new and not self._is_retry_due():
            return
        self._seen = content
        try:
            context = self._new_context()
            load_pair(context, self.certfile, self.keyfile)
        except StartError as error:
            self._checks_until_retry = CHECKS_UNTIL_RETRY
            # Each unusable pair is reported once, not at each retry.
            if is_new:
                self.on_failure()
                _log.error("%s; the last good one stays in use", error)
            return
        # Only new handshakes use it; open connections keep the old certificate.
        self.context = context
        self._loaded()

    def _new_context(self) -> ssl.SSLContext:
        """Return a context that trusts the client CA read at startup, even if its file changed."""
        return new_context(self.client_ca, self._trusted)

    def _is_retry_due(self) -> bool:
        if self._checks_until_retry:
            self._checks_until_retry -= 1
            return self._checks_until_retry == 0
        return False

    def _loaded(self) -> None:
        self._checks_until_retry = 0
        try:
            expiry = authority.not_after(self._seen[0] if self._seen else b"")
        except ValueError:
            self._seen = None  # the files changed between the check and the load: check again
            return
        self.on_loaded(expiry.timestamp())
        _log.info("serving a certificate that expires at %s", expiry.isoformat())

    def _read(self) -> tuple[bytes, bytes] | None:
        try:
            return self.certfile.read_bytes(), self.keyfile.read_bytes()
        except OSError:
            return None


def _read_client_ca(client_ca: Path | None) -> str:
    if client_ca is None:
        return ""
    try:
        return client_ca.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise _unusable_ca(client_ca, error) from error


def new_context(client_ca: Path | None = None, trusted: str | None = None) -> ssl.SSLContext:
    """Return a server context without a certificate: TLS 1.2 or newer, HTTP/1.1 only.

    With `client_ca` (PEM), only clients with a certificate from this CA are served; `trusted` is
    its content, if it was read before. Raises StartError if the CA is unusable.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        trusted = _read_client_ca(client_ca) if trusted is None else trusted
        try:
            context.load_verify_locations(cadata=trusted)
        except (OSError, ValueError) as error:
            raise _unusable_ca(client_ca, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def find_name_problem(certificate: Mapping[str, Any] | None, allowed: Collection[str]) -> str:
    """Return why a client may not connect, as a message; empty if it may.

    `certificate` is the result of `SSLSocket.getpeercert()`. If `allowed` is empty, all clients may
    connect.
    """
    fields = certificate or {}
    attributes = [pair for group in fields.get("subject", ()) for pair in group]
    names = {value for kind, value in attributes if kind == "commonName"}
    names |= {value for _, value in fields.get("subjectAltName", ())}
    if not allowed or names.intersection(allowed):
        return ""
    shown = ", ".join(messages.quote(str(name)) for name in sorted(names, key=str)[:_MAX_NAMED])
    return f"its certificate is for {shown or 'no name'}; --client-name allows others"


def _unusable_ca(client_ca: Path, error: Exception) -> StartError:
    return StartError(
        f"cannot use the clients' CA {client_ca}: {_reason(error)}; give PEM certificates "
        "with --client-ca"
    )


def load_pair(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    """Load a pair for all later handshakes. Raises StartError if the pair is unusable."""
    try:
        # Without the empty password, OpenSSL prompts for the password of an encrypted key.
        context.load_cert_chain(certfile, keyfile, password="")
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
