"""The serving side of TLS: one live context, and swapping the certificate in it."""

from __future__ import annotations

import ssl
from pathlib import Path

from webhook.errors import StartError


def server_context(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """Make the TLS context: TLS 1.2 or newer, HTTP/1.1 only.

    Raises StartError when there is no usable certificate with its own key in the files.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
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


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key is another certificate's"}.get(
            error.reason or "", error.reason or "not PEM"
        )
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
